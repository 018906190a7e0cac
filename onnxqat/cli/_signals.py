"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it started ends, and nothing that it staged is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import click

from onnxqat import printing

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
PATIENCE = 5.0
"""Seconds for cleaning up; `docker stop` kills after 10. Native code that does not come back in time is left."""


class SignalError(KeyboardInterrupt):
    """A signal that ends the command: a KeyboardInterrupt, since libraries clean up after those.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Handler:
    """Raises at the first signal that it is called for, and remembers it."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def __call__(self, number: int, _: FrameType | None) -> None:
        if not self.received:
            self.received.append(number)
            raise SignalError(number)


def interruptions() -> tuple[type[BaseException], ...]:
    """Exceptions that mean that the command was interrupted: any, after a signal, since native code makes others of it."""
    return (click.Abort, KeyboardInterrupt, *((Exception,) if _received_signals() else ()))


def _received_signals() -> list[int]:
    handlers = [signal.getsignal(getattr(signal, name)) for name in NAMES if hasattr(signal, name)]
    return [number for handler in handlers if isinstance(handler, _Handler) for number in handler.received]


def status() -> int:
    """Exit status of a command that was interrupted, as shells have it: 128 and the number of the signal."""
    return 128 + next(iter(_received_signals()), signal.SIGINT)


def words_for(status: int) -> str:
    """The line that a command ends with that was interrupted with `status`."""
    number = status - 128
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


@contextlib.contextmanager
def hinted(text: str) -> Iterator[None]:
    """Say `text` on standard error when the block is interrupted, such as how to go on."""
    try:
        yield
    except interruptions():
        with contextlib.suppress(OSError):
            printing.echo(text, err=True)
        raise


@contextlib.contextmanager
def handled(*, ends: bool = True) -> Iterator[None]:
    """Raise :class:`SignalError` in the block at the first signal, once; end the process if that does not end it.

    Signals that the process was started to ignore, as by ``nohup``, stay ignored; so do all outside of the main thread,
    where Python takes no signals.

    Args:
        ends: the process ends behind the block: a signal ends it at once then, without a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) not in (signal.SIG_IGN, None)}
    handle = _Handler()

    def leave_to_default() -> None:
        """In a process that was forked off, such as a data loader's: it has no cleaning up to do."""
        for number in before:
            if signal.getsignal(number) is handle:
                signal.set_wakeup_fd(-1)
                signal.signal(number, signal.SIG_DFL)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=leave_to_default)
    with _exit_deadline(frozenset(before)):
        for number in before:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if ends else handler)


@contextlib.contextmanager
def _exit_deadline(numbers: frozenset[int]) -> Iterator[None]:
    """End the process when the block does not end within :data:`PATIENCE` of one of the signals `numbers`.

    Handlers written in Python run between two steps of the main thread, which may be in native code for hours; the
    byte that the interpreter writes at once wakes a thread.
    """
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    over = threading.Event()
    threading.Thread(target=_watch, args=(reads, numbers, over), daemon=True).start()
    before = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        writes.close()


def _watch(reads: socket.socket, numbers: frozenset[int], over: threading.Event) -> None:
    with reads:
        while content := reads.recv(64):
            for number in content:
                if number in numbers and not over.wait(PATIENCE):
                    status = 128 + number
                    with contextlib.suppress(OSError):
                        os.write(2, f"{words_for(status)}, in the middle of a computation\n".encode())
                    os._exit(status)
