"""A limit on address space (``ulimit -v``), under which native libraries end the process in words and statuses of their own.

OpenBLAS exits with status 1, which means here that a check failed, glibc with 127 where thread-local data do not fit, and
torch by SIGABRT. So a library is not loaded where the limit leaves less than that takes.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from onnxqat.errors import InputError

_MEGABYTE = 2**20
# Megabytes of address space that loading takes, and what is computed at once; measured on Linux, and rounded up.
NEEDS = {"numpy": 128, "onnx": 64, "onnxruntime": 96, "torch": 480}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing: it looks at what is left before others find a library."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None, for the finders behind this one.

        Raises:
            InputError: ``machine-limit``.
        """
        if name in NEEDS:
            check(name, self.limit - _used_bytes())
        return None


def guard() -> None:
    """Look at each library of :data:`NEEDS` before it is loaded, where there is a limit."""
    limit = _limit()
    if limit is not None and _used_bytes():
        sys.meta_path.insert(0, _Finder(limit))


def check(library: str, left: int) -> None:
    """Refuse to load `library` with `left` bytes of address space.

    Raises:
        InputError: ``machine-limit``.
    """
    if left < NEEDS[library] * _MEGABYTE:
        raise InputError(
            "machine-limit",
            f"out of memory: {library} takes {NEEDS[library]} MB of address space, and {left // _MEGABYTE} MB are left",
            hint="raise the limit: ulimit -v unlimited",
        )


def _limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _used_bytes() -> int:
    """Bytes of address space in use; 0 where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
