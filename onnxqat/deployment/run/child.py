"""A child process that ends: by itself, when its time is up, or with this process, and its children with it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from onnxqat.errors import UsageError

MEMORY_VARIABLE = "ONNXQAT_COMPILER_MEMORY"
_GUARD = Path(__file__).with_name("guard.py")
_SHARE = 0.75  # of the machine's memory: a compiler that wants more ends, before the system ends something else
_CONTAINERS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)  # limits of cgroups, in bytes


def run_child(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: IO[bytes], timeout: float
) -> int | None:
    """Run `command` in a session of its own; standard output and standard error go to `log`.

    Its process group is killed when it has ended, when `timeout` seconds are over, and when this process ends, killed
    or not, so that nothing that it started is left. Each of its processes may use :func:`memory_limit` bytes.

    Returns:
        Exit status, negative for a signal; None when time ran out.

    Raises:
        UsageError: ``option-invalid``, as of :func:`memory_limit`.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), str(memory_limit(env)), *command],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.PIPE,  # never written to: its end is this process's end
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            _kill(process)
        except BaseException:  # a second signal while the first one is being answered
            _kill(process)
            raise


def memory_limit(env: Mapping[str, str]) -> int:
    """Bytes that a child process may use: ``$ONNXQAT_COMPILER_MEMORY`` gigabytes, or most of what the machine has.

    Args:
        env: the child's environment.

    Returns:
        The limit; 0 for none.

    Raises:
        UsageError: ``option-invalid``: the variable is no number, or negative.
    """
    given = env.get(MEMORY_VARIABLE)
    if not given:
        return int(_SHARE * _machine_memory())
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < 2**30:
        raise UsageError(
            "option-invalid", f"{MEMORY_VARIABLE} is {given!r}", hint="give gigabytes, such as 8; 0 is no limit"
        )
    return int(gigabytes * 2**30)


def _machine_memory() -> int:
    """Bytes of memory that this machine or container has; 0 where that is not known."""
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        return 0
    for path in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
            found.append(int(Path(path).read_text(encoding="ascii")))
    return max(min(found), 0)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
