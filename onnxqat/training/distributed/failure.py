"""Failure of one process of a run: the other processes end too, with an error that names it."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Protocol

import torch.distributed as dist

from onnxqat.errors import QatError

ROLL_CALL = 3.0
"""Seconds in which the remaining processes report, so that the missing ones can be named."""

_LOST = re.compile(r"gloo|nccl|connection|processgroup|process group|timed? ?out|broken pipe|socket", re.IGNORECASE)
_FAILED = "onnxqat/failed"


class Store(Protocol):
    """Methods of torch's key-value stores that are used here."""

    def set(self, key: str, value: str) -> None:
        """Write `value` under `key`."""

    def get(self, key: str) -> bytes:
        """Read the value under `key`."""

    def check(self, keys: list[str]) -> bool:
        """Check whether every one of `keys` has a value."""


def lost(error: RuntimeError) -> bool:
    """Check whether `error` says that another process cannot be reached."""
    return isinstance(error, dist.DistError) or bool(_LOST.search(str(error)))


def line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def explained(rank: int, size: int, store: Store | None) -> Iterator[None]:
    """A lost connection inside a ``with`` block becomes an error that names the process that is gone.

    Args:
        rank: this process.
        size: how many there are.
        store: where they leave messages; None where the group is not onnxqat's: then nobody is named.

    Raises:
        QatError: ``distributed-failed``.
    """
    try:
        yield
    except RuntimeError as error:
        if size == 1 or not lost(error):
            _announce_end(store, rank, error)
            raise
        raise QatError(
            "distributed-failed",
            f"process {rank} of {size} lost the others: {_verdict(rank, size, store) or line(error)}",
            hint="the last checkpoint is whole: start again with --resume",
        ) from error
    except (Exception, SystemExit) as error:  # the second: of the user's loss, data or score
        _announce_end(store, rank, error)
        raise


def _announce_end(store: Store | None, rank: int, error: BaseException) -> None:
    """Tell the others why this process ends."""
    if store is not None:
        with contextlib.suppress(RuntimeError):
            store.set(_FAILED, f"process {rank} ended: {line(error)}")


def _verdict(rank: int, size: int, store: Store | None) -> str:
    """Describe the process that failed, or the processes that no longer answer; empty where nothing is known."""
    if store is None:
        return ""
    try:
        store.set(_here(rank), "")
        deadline = time.monotonic() + ROLL_CALL
        while True:
            if store.check([_FAILED]):
                return store.get(_FAILED).decode(errors="replace")
            missing = [other for other in range(size) if not store.check([_here(other)])]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    except RuntimeError:
        return "the process that holds the rendezvous (0, or torchrun) is gone"
    if not missing:
        return ""
    return f"process{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing))} no longer answer" + (
        "s" if len(missing) == 1 else ""
    )


def _here(rank: int) -> str:
    return f"onnxqat/here/{rank}"
