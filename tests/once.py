"""A folder that one of the workers of a test run makes, and all of them read."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def folder(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `name`, which `make` fills where no other worker has; the others wait for it meanwhile."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # each worker has a folder of its own in it
    made, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(made, ignore_errors=True)  # of a worker that failed half way
            made.mkdir()
            make(made)
            done.touch()
    return made
