"""The child process of :mod:`onnxqat.isolation.process`: opens sessions of onnxruntime and runs them, on request.

It is started by its path, without onnxqat: the standard library, numpy and onnxruntime are all that it loads. A request
is a pickled dictionary behind its length, from the parent; an answer is JSON in a line. Output of the libraries goes to
standard error, whose last words the parent shows after a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

LENGTH = struct.Struct("<Q")
_MARGIN_A_CORE = 2**24  # bytes: the stack of one of onnxruntime's threads, and what malloc keeps for it
FATAL_ONLY = 4
_ANSWER = 4000  # characters of an exception; the parent shows one line


def main() -> None:
    """Answer requests until standard input ends."""
    # Ctrl-C at the terminal reaches the whole group: the parent decides what it means for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    sys.path[:] = requests.get()["path"]
    _without_core_dump()
    handlers = _handlers()
    answer: dict[str, Any] = {}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        request = requests.get()
        try:
            answer = {"result": handlers[request.pop("do")](**request)}
        except Exception as error:  # whatever onnxruntime raises is the answer
            answer = {"error": str(error)[:_ANSWER] or type(error).__name__}


def _read(source: IO[bytes], requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hand on what the parent asks; end the process with it, in the middle of a run too."""
    while header := source.read(LENGTH.size):
        requests.put(pickle.loads(source.read(*LENGTH.unpack(header))))
    os._exit(0)


def _handlers() -> dict[str, Any]:
    """Return the requests that the child process serves: open, run and close sessions of onnxruntime."""
    import numpy  # noqa: F401  # loaded before the parent is told that this process is ready
    import onnxruntime

    sessions: dict[int, Any] = {}

    def open_session(number: int, model: bytes | str, options: dict[str, Any], need: int) -> None:
        with _limited(need):
            sessions[number] = onnxruntime.InferenceSession(**session_arguments(model, options))

    def run_session(number: int, names: list[str], feeds: dict[str, Any], need: int) -> bool:
        if number not in sessions:
            return False
        with _limited(need):
            sessions[number].run(names, feeds)
        return True

    def close_session(number: int) -> None:
        sessions.pop(number, None)

    return {"open": open_session, "run": run_session, "close": close_session}


def session_arguments(model: bytes | str, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``onnxruntime.InferenceSession``, here and in the parent.

    Args:
        model: bytes or path.
        options: ``level`` (a name of GraphOptimizationLevel), ``entries`` (of the session's configuration), ``libraries``
            (of custom operators), ``without`` (names of optimizers that are left out) and ``threads`` (0: one a core).
    """
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.log_severity_level = FATAL_ONLY
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, options["level"])
    made.intra_op_num_threads = options["threads"]
    # Between two runs threads would wait for work in a loop, and take the cores from numpy, torch and other sessions.
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for key, value in options["entries"].items():
        made.add_session_config_entry(key, value)
    for library in options["libraries"]:
        made.register_custom_ops_library(library)
    return {
        "path_or_bytes": model,
        "sess_options": made,
        "providers": ["CPUExecutionProvider"],
        "disabled_optimizers": list(options["without"]),
    }


def _without_core_dump() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextlib.contextmanager
def _limited(need: int) -> Iterator[None]:
    """Let memory grow by `need` bytes at most; no limit where the system does not say what is held, or `need` is 0."""
    import resource

    held = _held_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not need or not held:
        yield
        return
    most = held + need + _MARGIN_A_CORE * (os.cpu_count() or 1)
    limits = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _held_bytes() -> int:
    """Bytes of writable memory that this process has, as RLIMIT_DATA counts them; 0 where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


if __name__ == "__main__":
    main()
