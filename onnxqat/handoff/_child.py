"""A child process that ends: by itself, or with all its children when its time is up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def run_child(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: IO[bytes], timeout: float
) -> int | None:
    """Run `command` in a session of its own; standard output and standard error go to `log`.

    Its process group is killed when it has ended, when `timeout` seconds are over, and when this process is
    interrupted, so that nothing that it started is left.

    Returns:
        Exit status, negative for a signal; None when time ran out.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
