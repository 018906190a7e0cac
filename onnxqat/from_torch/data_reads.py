"""Places at which a module's Python code reads the values of tensors that depend on its inputs.

A tracer records what happens for one input: an ``if`` on a tensor's values, or a number taken out of one, is frozen as it
was for that input. Shapes are no such values, nor are constants and parameters. The module runs once as it is, while two
modes of torch watch: one follows which storages hold something that was computed from an input, the other sees the reads.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import os
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

_READERS = frozenset(
    [
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "__array__",
        "__contains__",
        "item",
        "tolist",
        "numpy",
        "is_nonzero",
        "equal",
        "allclose",
    ]
)
_OWN = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep)


@dataclasses.dataclass(frozen=True)
class DataRead:
    """One place that reads values.

    Attributes:
        module: path of the module whose code it is, with its class: ``blocks.0.gate (Gate)``.
        place: file name and line.
        code: that line.
        in_assert: whether it only feeds an ``assert``, which a graph does not have.
    """

    module: str
    place: str
    code: str
    in_assert: bool

    def __str__(self) -> str:
        return f"{self.module} at {self.place}: {self.code}"


class Watch:
    """Watches one call of `module`; ``with Watch(module, inputs) as watch: ...``, then ``watch.reads``."""

    def __init__(self, module: nn.Module, inputs: Iterable[Tensor]) -> None:
        self._names = {id(m): name for name, m in module.named_modules()}
        self._from_inputs = _FromInputs(inputs)
        self._reads = _Reads(self._from_inputs.holds, self._found)
        self._places: dict[tuple[str, int], DataRead] = {}

    def __enter__(self) -> Watch:
        self._from_inputs.__enter__()  # type: ignore[no-untyped-call]
        self._reads.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._reads.__exit__(*error)  # type: ignore[no-untyped-call]
        self._from_inputs.__exit__(*error)  # type: ignore[no-untyped-call]
        if self._from_inputs.compiled or error[0] is not None:
            torch.compiler.reset()  # torch.cond compiles when it runs: what it compiled under watch serves nothing else

    @property
    def reads(self) -> tuple[DataRead, ...]:
        """The places, in the order in which they were reached."""
        return tuple(self._places.values())

    def _found(self, frame: types.FrameType | None) -> None:
        frames = list(_outwards(frame))
        own = next((f for f in frames if not f.f_code.co_filename.startswith(_OWN)), None)
        if own is None:
            return
        file, line = own.f_code.co_filename, own.f_lineno
        module = next((m for m in map(_module_of, frames) if id(m) in self._names), None)
        name = "the module" if module is None else self._names[id(module)]
        title = f"{name or 'the module'} ({type(module).__name__})" if module is not None else name
        code = linecache.getline(file, line).strip()
        place = f"{Path(file).name}:{line}"
        self._places.setdefault((file, line), DataRead(title, place, code, _in_assert(file, line)))


class _FromInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is computed from the inputs, by storage; a weak reference keeps its number from being used again."""

    supports_higher_order_operators = True  # torch.cond and its like are followed as one operator

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, StorageWeakRef] = {}
        self.compiled = False
        for tensor in inputs:
            self._mark(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Check whether the storage of `tensor` holds something that was computed from an input."""
        storage = _storage(tensor)
        return storage is not None and storage.cdata in self._storages

    def _mark(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage is not None:
            self._storages[storage.cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.compiled |= isinstance(func, HigherOrderOperator)
        if not _reads_shapes_only(func) and any(map(self.holds, _tensors((args, kwargs)))):
            for tensor in _tensors(result):
                self._mark(tensor)
        return result


class _Reads(TorchFunctionMode):
    """Sees each call by which Python gets at values."""

    def __init__(self, concerns: Callable[[Tensor], bool], found: Callable[[types.FrameType | None], None]) -> None:
        super().__init__()
        self._concerns, self._found = concerns, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READERS and any(map(self._concerns, _tensors(args))):
            self._found(inspect.currentframe())
        return func(*args, **(kwargs or {}))


def _reads_shapes_only(func: Any) -> bool:
    name = str(func).split(".")[1] if "." in str(func) else str(func)
    return name.endswith("_like") or name.startswith("new_")


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    try:
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage
        return None


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_of(frame: types.FrameType) -> Any:
    return frame.f_locals.get("self") if isinstance(frame.f_locals.get("self"), nn.Module) else None


def _in_assert(file: str, line: int) -> bool:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    inside = (n for n in ast.walk(tree) if isinstance(n, ast.Assert))
    return any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in inside)
