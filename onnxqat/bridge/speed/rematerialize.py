"""Rematerialization: backward computes quantized tensors again, so that nothing keeps them from forward to backward.

A convolution keeps what it reads for its backward pass. Where that comes from a quantizer, the quantizer keeps its own
input beside it, which the gradients of input and scale need: two tensors where a float model has one. The quantized one
follows from the other, by the kernel that has made it and so with the same bits; backward runs that kernel once for
each reader. In the terms of Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016 (arXiv 1604.06174,
section 3), it is a cheap operator whose result is dropped.

::

    with rematerialized():
        output = module(x)
    loss(output).backward()

It works on every module with a :class:`onnxqat.bridge.quantizers.fake_quantize.FakeQuantize` in it, whatever calls it and whatever
reads the tensor: torch shows each tensor that autograd saves to :func:`torch.autograd.graph.saved_tensors_hooks`. One
that lies in the memory of a quantizer's result (the result or a view of it) is replaced by how to make it; all
others stay what they are. Under autocast a result of float32 is cast for its reader, and the cast is kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

SMALLEST = 2**20
"""Bytes: smaller results are kept, as of most weights; for so little the launch of a kernel is too much."""


# Tuples, as autograd saves a thousand tensors in the forward pass of an ordinary network.
class _Kept(NamedTuple):
    """A tensor that is saved, and its version then."""

    tensor: Tensor
    version: int

    def unpacked(self) -> Tensor:
        if _version(self.tensor) != self.version:  # torch leaves this check to those who have hooks
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {list(self.tensor.shape)}, version {_version(self.tensor)} in place of {self.version}"
            )
        return self.tensor


class _Made(NamedTuple):
    """Recipe of a tensor: the function and inputs that compute it, and the place of its elements in memory."""

    function: Callable[..., Tensor]
    inputs: tuple[_Saved, ...]
    dtype: torch.dtype
    place: tuple[Any, ...]
    version: int

    def unpacked(self) -> Tensor:
        with torch.no_grad():
            made = self.function(*(one.unpacked() for one in self.inputs))
        size, stride, _ = self.place
        if made.stride() != stride:
            made = torch.empty_strided(size, stride, dtype=made.dtype, device=made.device).copy_(made)
        return made


class _View(NamedTuple):
    """A view of a tensor that is made again."""

    base: _Made
    place: tuple[Any, ...]

    def unpacked(self) -> Tensor:
        return self.base.unpacked().as_strided(*self.place)


_Saved = _Kept | _Made | _View


class _Rematerialized(AbstractContextManager["_Rematerialized"]):
    """Tensors that quantizers have made within the context, by the identifier of their memory.

    A weak reference does not hold the memory; while it is there, no other memory has its identifier.
    """

    def __init__(self) -> None:
        self.made: dict[int, tuple[StorageWeakRef, _Made]] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.packed, lambda saved: saved.unpacked())

    def __enter__(self) -> _Rematerialized:
        self._hooks.__enter__()
        _of_thread.current = self
        return self

    def __exit__(self, *raised: object) -> None:
        _of_thread.current = None
        self.made = {}
        self._hooks.__exit__(*raised)

    def packed(self, tensor: Tensor) -> _Saved:
        """Return the object that is saved in place of `tensor`: a recipe, a view of its result, or the tensor."""
        noted = self.made.get(_memory(tensor)) if _is_plain(tensor) else None
        if noted is None:
            return _Kept(tensor, _version(tensor))
        _, found = noted
        if found.dtype is not tensor.dtype or found.version != _version(tensor):
            return _Kept(tensor, _version(tensor))
        return found if _memory_layout(tensor) == found.place else _View(found, _memory_layout(tensor))


class _OfThread(threading.local):
    current: _Rematerialized | None = None


_of_thread = _OfThread()


def rematerialized() -> AbstractContextManager[object]:
    """A context for the forward pass: what quantizers return in it is computed again in backward, and not kept.

    Outputs and gradients have the same bits as without. Compilers see nothing of it, as they decide by themselves
    what to compute again. Hooks of the caller that are to see saved tensors, such as
    :func:`torch.autograd.graph.save_on_cpu`, take its place where they are entered within it, and it takes theirs where
    they are entered around it.
    """
    if torch.compiler.is_compiling() or _of_thread.current is not None:
        return contextlib.nullcontext()
    return _Rematerialized()


def is_on() -> bool:
    """Check whether the forward pass is within such a context, and not traced by a compiler."""
    return not torch.compiler.is_compiling() and _of_thread.current is not None


def note(result: Tensor, function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Say that ``function(*inputs)`` makes `result` once more, bit for bit; for who keeps `inputs` for backward anyway."""
    context = None if torch.compiler.is_compiling() else _of_thread.current
    if context is None or not _is_plain(result):
        return
    storage = result.untyped_storage()
    if storage.nbytes() < SMALLEST:
        return
    if result.storage_offset() or storage.nbytes() != result.numel() * result.element_size():
        return
    kept = tuple(context.packed(one.detach()) for one in inputs)
    made = _Made(function, kept, result.dtype, _memory_layout(result), _version(result))
    context.made[_memory(result)] = StorageWeakRef(storage), made  # type: ignore[no-untyped-call]


def _is_plain(tensor: Tensor) -> bool:
    """Check whether `tensor` has memory of its own that identifies it; subclasses may not."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _memory(tensor: Tensor) -> int:
    """Return the identifier of the memory of `tensor` that torch and weak references to it use."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - as StorageWeakRef does


def _version(tensor: Tensor) -> int:
    """Return the number of in-place changes of `tensor` and the tensors that share its memory."""
    return tensor._version  # noqa: SLF001 - torch has no other name for it


def _memory_layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()
