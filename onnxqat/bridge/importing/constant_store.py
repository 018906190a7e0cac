"""The constants of the module that is being built."""

from __future__ import annotations

from torch import nn

from onnxqat.bridge.importing import names, values
from onnxqat.bridge.importing.values import Const


class RefusedError(Exception):
    """A lowering does not implement this form of its operator."""


class Store:
    """Parameters, buffers and submodules of the module that is being built; one for all scopes."""

    def __init__(self) -> None:
        self.root = nn.Module()
        self.paths = names.Paths()
        self.parameter_names: dict[str, str] = {}
        self._keys: dict[int, str] = {}
        self._kept: list[Const] = []
        self._by_tensor: dict[int, Const] = {}

    def key_of(self, constant: Const, *, trainable: bool = True) -> str:
        """State dict key of a constant, registered at first use and once."""
        if id(constant) not in self._keys:
            path = self.paths.claim(constant.name)
            try:
                tensor = constant.to_torch()
            except TypeError as error:
                raise RefusedError(str(error)) from None
            if trainable and constant.trainable and constant.dtype in values.FLOATS:
                names.attach(self.root, path, nn.Parameter(tensor))
            else:
                names.attach(self.root, path, None, buffer=tensor)
            if constant.trainable:
                self.parameter_names[path] = constant.name
            self._keys[id(constant)] = path
            self._kept.append(constant)  # so that no other object gets its id
        return self._keys[id(constant)]

    def tensor(self, key: str) -> object:
        """Return the tensor under a state dict key; None where the key is one of a subgraph's module."""
        folder, _, leaf = key.rpartition(".")
        return getattr(self.root.get_submodule(folder), leaf, None)

    def drop(self, key: str) -> None:
        """Take a constant that nothing reads any more out of the module."""
        names.detach(self.root, key)
        self.parameter_names.pop(key, None)

    def same(self, constant: Const) -> Const:
        """The first constant with the tensor of `constant`: calls of a function have one Constant node each."""
        return self._by_tensor.setdefault(id(constant.data), constant)
