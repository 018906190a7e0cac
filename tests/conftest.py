"""Fixtures that any test may use."""

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# As `make test` does, before anything loads torch: the nets of tests are small, and threads of several workers that wait
# for each other on a busy machine took fifteen times the processor time (training the digits: 45 CPU seconds for 3).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each test that exports or compiles traces a graph of its own once: what torch keeps of fake tensors for the next time
# took a seventh of their time.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

# A shell starts what it puts in the background with SIGINT ignored, and children inherit that: tests that interrupt a
# run would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through two million objects of modules and tests again and again.

    It took a third of the collection's time, and 8 % of that of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # in place of 700, 10, 10
        gc.enable()


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
