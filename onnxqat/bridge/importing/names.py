"""Names of an ONNX file as attribute paths of a torch module and as function names of lowerings.

A path may reach generated code only after :meth:`Paths.claim`: fx writes path elements into its source between quotes.
"""

from __future__ import annotations

import builtins
import keyword
import re

from torch import nn

_UNSAFE = re.compile(r"[^\w/:+\-@# ,;=()<>\[\]]|\n")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TAKEN_BY_MODULES = frozenset(dir(nn.Module())) | {"graph", "code", "meta", "self"}


def function_name(domain: str, op_type: str) -> str:
    """Name of the lowering of an operator: ``GlobalAveragePool`` -> ``global_average_pool``, ``PRelu`` -> ``p_relu``.

    Python's keywords and builtins get an underscore (``If`` -> ``if_``, ``Max`` -> ``max_``); operators of other
    domains are prefixed with the domain (``com_microsoft_gelu``).
    """
    name = _WORDS.sub("_", op_type.replace("NaN", "Nan")).lower()
    if domain:
        return f"{re.sub(r'[^a-z0-9]', '_', domain.lower())}_{name}"
    return f"{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else name


def identifier(name: str, default: str) -> str:
    """A readable fx node name for an ONNX name; fx makes it unique."""
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if not found or found[0].isdigit():
        return f"{default}_{found}".rstrip("_")
    return f"{found}_" if keyword.iskeyword(found) or found in ("self", "torch") else found


class Paths:
    """Gives out attribute paths that are safe in generated code, unique, and equal to the ONNX name where that works."""

    def __init__(self) -> None:
        self._leaves: set[str] = set()
        self._folders: set[str] = set()

    def claim(self, name: str) -> str:
        """The path for ONNX name `name`; every call gives another path.

        Kept: dots as nesting, and every character that cannot end a quoted string. An element that a module defines
        itself (``training``) or that is a keyword (``global``: fx writes ``self.global``) gets an underscore; where
        ``a`` is a tensor, ``a.b`` becomes ``a_.b``.
        """
        elements = [self._element(e) for e in name.split(".")]
        for depth in range(1, len(elements)):
            while ".".join(elements[:depth]) in self._leaves:
                elements[depth - 1] += "_"
        base, count = ".".join(elements), 0
        path = base
        while path in self._leaves or path in self._folders:
            count += 1
            path = f"{base}_{count}"
        self._leaves.add(path)
        parts = path.split(".")
        self._folders.update(".".join(parts[:depth]) for depth in range(1, len(parts)))
        return path

    @staticmethod
    def _element(text: str) -> str:
        safe = _UNSAFE.sub("_", text) or "_"
        taken = safe in _TAKEN_BY_MODULES or safe.startswith("__") or keyword.iskeyword(safe)
        return f"{safe}_" if taken else safe


def attach(root: nn.Module, path: str, value: nn.Parameter | nn.Module | None, *, buffer: object = None) -> None:
    """Put a parameter, a module or a `buffer` at dotted `path`, making the modules in between."""
    *folders, leaf = path.split(".")
    home = root
    for folder in folders:
        if folder not in home._modules:  # noqa: SLF001 - hasattr would also find methods
            home.add_module(folder, nn.Module())
        home = home.get_submodule(folder)
    if isinstance(value, nn.Parameter):
        home.register_parameter(leaf, value)
    elif isinstance(value, nn.Module):
        home.add_module(leaf, value)
    else:
        home.register_buffer(leaf, buffer)  # type: ignore[arg-type]


def detach(root: nn.Module, path: str) -> None:
    """Take what is at dotted `path` away, and the modules in between that are empty then."""
    *folders, leaf = path.split(".")
    homes = [root]
    for folder in folders:
        homes.append(homes[-1].get_submodule(folder))
    delattr(homes[-1], leaf)
    for depth in range(len(folders), 0, -1):
        home = homes[depth]
        left: list[object] = [*home.children(), *home.parameters(recurse=False), *home.buffers(recurse=False)]
        if left:
            return
        delattr(homes[depth - 1], folders[depth - 1])
