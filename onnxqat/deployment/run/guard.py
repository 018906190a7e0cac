"""The process between onnxqat and a compiler: ``python -I -S guard.py BYTES COMMAND...``, on the standard library alone.

It leads the process group of the compiler and everything that the compiler starts. Standard input is a pipe that nobody
writes to: it ends when onnxqat does, however that was, and then the group is killed. A thread of the compiler's own
process could not see to that while native code holds the interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(memory: int, command: list[str]) -> None:
    """Run `command` and end as it ends, by the same signal or with the same status.

    Args:
        memory: bytes of data that each process of the group may have; 0 for any number.
        command: program and arguments.
    """
    _limit(memory)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)  # as a shell does
    threading.Thread(target=_end_with_parent, args=(process,), daemon=True).start()
    status = process.wait()
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)  # without waiting for the thread


def _limit(memory: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory:
        # Private memory that can be written. Address space would count what Java and CUDA reserve and never use.
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))


def _end_with_parent(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    process.kill()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
