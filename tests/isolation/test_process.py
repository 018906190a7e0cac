"""The child process answers, dies alone, and is replaced."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from onnxqat.isolation.process import Child, DiedError, RefusedError


@pytest.fixture
def one() -> Iterator[Child]:
    made = Child()
    yield made
    made.stop()


def test_what_it_raises_comes_back_and_it_lives_on(one: Child) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError, match="unknown"):
            one.request(None, do="unknown")
    assert one.generation == 1


def test_a_child_that_dies_is_named_and_replaced(one: Child) -> None:
    one.request(None, do="close", number=0)
    assert one._process is not None
    os.kill(one._process.pid, signal.SIGSTOP)  # it is in the middle of a request for sure
    one._send({"do": "close", "number": 0})
    os.kill(one._process.pid, signal.SIGKILL)
    with pytest.raises(DiedError) as caught:
        one._answer(None)
    assert caught.value.how == "was ended by SIGKILL"
    one.request(None, do="close", number=0)
    assert one.generation == 2


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells when a process ends that is no child")
def test_it_ends_with_its_parent() -> None:
    code = """
import os
from onnxqat.isolation.process import Child
one = Child()
one.request(None, do="close", number=0)
print(one._process.pid, flush=True)
os.kill(os.getpid(), 9)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        waiting = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([waiting], [], [], 60)[0]
    finally:
        os.close(waiting)
