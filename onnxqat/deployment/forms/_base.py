"""Base class of forms; each is a file of this folder with a class ``Form``."""

from __future__ import annotations

import abc
from collections.abc import Collection

from onnxqat import discover
from onnxqat.deployment.layer_ranges import ModelRanges

_PACKAGE = __name__.rpartition(".")[0]


class BaseForm(abc.ABC):
    """A vendor's file of ranges, written into bundles beside ``float.onnx``.

    Attributes:
        file: name of the file in the bundle.
        compilers: compilers and backends whose own tools read it.
    """

    file: str = ""
    compilers: frozenset[str] = frozenset()

    @abc.abstractmethod
    def text(self, ranges: ModelRanges) -> str:
        """Content of the file."""

    def accepts(self, ranges: ModelRanges) -> str:
        """Why the form cannot say these ranges; empty where it can."""
        return ""


def names() -> list[str]:
    """Names of the forms."""
    return [n.replace("_", "-") for n in discover.names(_PACKAGE)]


def forms_for(lineage: Collection[str]) -> list[BaseForm]:
    """The forms that belong to a backend.

    Args:
        lineage: names of the backend, of its compiler, and of the tables that it extends.
    """
    found: list[BaseForm] = []
    for name in names():
        form = discover.load(_PACKAGE, name).Form()
        assert isinstance(form, BaseForm)
        if not form.compilers or form.compilers.intersection(lineage):
            found.append(form)
    return found
