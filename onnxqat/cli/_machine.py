"""Limits of the machine and of its files, in whatever words a library reports them: they are no defects."""

from __future__ import annotations

import errno
import os
import re

from onnxqat.cli import _gone_folder
from onnxqat.errors import InputError, QatError, UsageError

_LIMITS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EROFS,
)
_OF_FILES = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ESPIPE)
# As the C and C++ libraries of numpy, torch, onnxruntime and CUDA, the loader of shared objects and threads put it.
_NO_MEMORY = re.compile(
    r"bad[ _]alloc|(can ?not|can't|failed to|unable to) allocate|not enough memory|out of memory|MemoryError"
    r"|memory allocation still failed|failed to map segment|can't start new thread|pthread_\w+ failed",
    re.IGNORECASE,
)
HINT = "free some space or memory, or raise the limit"


def limit(error: BaseException) -> InputError | None:
    """`error` as one that a user can act on, where the machine is at fault or a file cannot be used; None elsewhere."""
    if isinstance(error, QatError):
        # onnxruntime names the model for everything that goes wrong in it.
        told = error.code in ("model-not-runnable", "runtime-failed")
        of_memory = told and _NO_MEMORY.search(error.message) is not None
        # The checker says no more than this; a name in a model cannot be the end of a sentence about it.
        of_memory = of_memory or (error.code == "model-invalid" and error.message.endswith(": std::bad_alloc"))
        return InputError("machine-limit", f"out of memory: {error.message}", hint=HINT) if of_memory else None
    if isinstance(error, FileNotFoundError) and _gone_folder.is_gone():
        return _gone_folder.error()
    if isinstance(error, OSError) and error.errno in _OF_FILES and error.filename is not None:
        return UsageError("option-invalid", _in_words(error), hint="give another path, or mend that one")
    if isinstance(error, OSError) and error.errno in _LIMITS:
        return InputError("machine-limit", _in_words(error), hint=HINT)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or _NO_MEMORY.search(str(cause)):
            said = str(cause).strip().split("\n")[0]
            hint = "lower --batch-size, or give --recompute" if "CUDA" in said else HINT
            return InputError("machine-limit", f"out of memory{f': {said}' if said else ''}", hint=hint)
        cause = cause.__cause__ or cause.__context__
    return None


def _in_words(error: OSError) -> str:
    return str(error.strerror) if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"
