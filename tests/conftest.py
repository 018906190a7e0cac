"""Fixtures that any test may use."""

import os
import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that: tests that interrupt a
# run would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the real models, data sets and suites, which are too large for the repository."""
    folder = Path(os.environ.get("ONNXQAT_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no real models and data at {folder}; set ONNXQAT_SHARED to the folder that holds them")
    return folder
