"""One child process that outlives what it is asked for, and is replaced when it does not."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from onnxqat.isolation.child import LENGTH

_SCRIPT = Path(__file__).with_name("child.py")
_START = 120.0  # seconds that a loaded machine may need to load numpy and onnxruntime
_PIECE = 2**16


class UnavailableError(Exception):
    """There is no child process here: not a POSIX system, no interpreter to start, or it does not come up."""


class DiedError(Exception):
    """The child process ended in the middle of a request.

    Attributes:
        how: "was ended by SIGSEGV", for example.
        words: the last line that it wrote, printable; may be empty.
    """

    def __init__(self, how: str, words: str) -> None:
        super().__init__(how)
        self.how, self.words = how, words


class TookTooLongError(Exception):
    """The child process was stopped because its time was up."""


class RefusedError(Exception):
    """The child process raised an exception, whose text this is."""


class Child:
    """A child process, started at the first request and again after each that it did not survive.

    Attributes:
        generation: counts the processes: what one of them holds is lost with it.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False
        self._unread = b""
        self._words: IO[bytes] | None = None

    def start(self) -> None:
        """Start the process, if there is none, without waiting until it can answer.

        Raises:
            UnavailableError: see there.
        """
        with self._lock:
            if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
                return
            self._close_pipes()
            if os.name != "posix" or not sys.executable:
                raise UnavailableError
            self._words = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SCRIPT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._words,
                    # Threads of OpenBLAS, which nothing here needs, hold 32 MB each.
                    env=dict(os.environ, OPENBLAS_NUM_THREADS="1"),
                    bufsize=0,
                )
            except OSError:
                raise UnavailableError from None
            self.generation += 1
            self._owner, self._ready, self._unread = os.getpid(), False, b""
            try:
                self._send({"path": sys.path})
            except OSError:
                raise UnavailableError from None

    def request(self, seconds: float | None = None, /, **message: Any) -> Any:
        """Ask for something, as :mod:`onnxqat.isolation.child` knows it.

        Args:
            seconds: time that it may take; None for any. An interrupt ends it at any time.
            message: the request.

        Raises:
            UnavailableError: nothing was done.
            DiedError: the process ended.
            TookTooLongError: it was stopped.
            RefusedError: what it raised.
        """
        with self._lock:
            self.start()
            done = False
            try:
                if not self._ready:
                    try:
                        self._answer(_START)
                    except (DiedError, TookTooLongError):
                        raise UnavailableError from None
                    self._ready = True
                try:
                    self._send(message)
                except OSError:
                    raise self._died() from None
                answer = self._answer(seconds)
                done = True
            finally:
                if not done:
                    self.stop()
            if "error" in answer:
                raise RefusedError(answer["error"])
            return answer.get("result")

    def stop(self) -> None:
        """End the process now, if it is this one's."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()
                self._process.wait()
            self._close_pipes()

    def _close_pipes(self) -> None:
        """Close this end of the pipes; the process, where it is another one's after a fork, goes on."""
        process, self._process = self._process, None
        streams = [] if process is None else [process.stdin, process.stdout]
        for stream in (*streams, self._words):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._words = None
        if process is not None and self._owner != os.getpid():
            process.returncode = 0  # it is no child of this process, which must not wait for it

    def _send(self, message: dict[str, Any]) -> None:
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        assert self._process is not None
        assert self._process.stdin is not None
        for part in (LENGTH.pack(len(content)), content):
            view = memoryview(part)
            while view:
                view = view[self._process.stdin.write(view) or 0 :]

    def _answer(self, seconds: float | None) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        end = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()  # unlike select, it takes any number of a file
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            left = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not poll.poll(left):
                raise TookTooLongError
            piece = os.read(self._process.stdout.fileno(), _PIECE)
            if not piece:
                raise self._died()
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _died(self) -> DiedError:
        assert self._process is not None
        status = self._process.wait()
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        words = b""
        if self._words is not None:
            self._words.seek(0, os.SEEK_END)
            self._words.seek(max(0, self._words.tell() - _PIECE))
            words = self._words.read()
        lines = [_printable(line) for line in words.decode("utf-8", "replace").splitlines()]
        return DiedError(how, next((line for line in reversed(lines) if line), "")[:300])


def _printable(line: str) -> str:
    """`line` without colours and other characters that are for terminals."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return "".join(c for c in plain if c.isprintable()).strip()


@functools.cache
def child() -> Child:
    """The one child of this process."""
    made = Child()
    atexit.register(made.stop)
    return made
