"""Base class of compilers; each is a file of this folder with a class ``Compiler``, found by its name."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy.typing as npt
import onnx

from onnxqat import extension
from onnxqat._version import installed
from onnxqat.errors import UsageError

Array: TypeAlias = "npt.NDArray[Any]"
Kind = Literal["integer", "moved", "float", "rejected"]

HEAVY = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "AveragePool",
    "GlobalAveragePool",
    "MaxPool",
    "Add",
    "Mul",
    "Concat",
)
"""Operators whose integer coverage is reported."""

MOVES = (
    "Reshape",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Split",
    "Gather",
    "Tile",
    "Expand",
    "DepthToSpace",
    "SpaceToDepth",
    "Identity",
    "Resize",
    "Pad",
)
"""Operators that only move numbers: on integers they count as integer."""

ABSORBED = "absorbed by a neighbour"
_PACKAGE = f"{__name__.rpartition('.')[0]}.compilers"


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """Execution of one node of the user's model by the compiler; quantizers are not listed.

    Attributes:
        name: the node's name; its first output where it has none.
        op_type: its operator.
        kind: ``integer``: computed on integers; ``moved``: only moves or reinterprets, on integers, or was absorbed by
            a neighbour; ``float``; ``rejected``: the compiler leaves it to something else.
        detail: the operator or kernel that the compiler chose.
        why: why it is not on integers; empty where it is.
        steps: largest difference of its quantized result from the reference, in LSB of that quantizer; None where it
            has none, or where the compiler runs no numbers here.
        own_steps: the same against the reference on the inputs that the node had in the compiler: the node's own share.
    """

    name: str
    op_type: str
    kind: Kind
    detail: str
    why: str = ""
    steps: float | None = None
    own_steps: float | None = None


@dataclasses.dataclass(frozen=True)
class CompilerResult:
    """Result of one compilation.

    Attributes:
        outputs: the graph outputs by name, one dict per batch; empty where the compiler runs no numbers here.
        nodes: the nodes of the main graph, in graph order.
        files: names of the vendor files that were written.
        settings: how it was compiled, as far as that decides which kernels run: ``shapes`` (``static`` or ``dynamic``)
            and ``threads``.
    """

    outputs: tuple[dict[str, Array], ...]
    nodes: tuple[NodeResult, ...]
    files: tuple[str, ...] = ()
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ScriptJob:
    """A compilation by a script in an environment of its own.

    Attributes:
        name: the script.
        interpreter: the environment's Python.
        model: file that the script reads.
        original: model with static shapes, before the compiler's own changes.
    """

    name: str
    interpreter: Path
    model: Path
    original: onnx.ModelProto


class BaseCompiler(abc.ABC):
    """A compiler or runtime that takes QDQ ONNX.

    Args:
        options: settings that the backend's table asks for.

    Attributes:
        name: the file's name.
        file: path of a user's file, empty for others; set by :func:`load`.
        package: the Python package that carries it; empty where it needs none.
        extra: the extra of onnxqat that installs it, None where an environment of its own does.
        integer_kernels: operators that it has an integer kernel for, with spaces between; every other is float
            whatever surrounds it.
        runs_numbers: whether outputs come back on a machine without the target.
        arithmetic: how its integer kernels round (:mod:`onnxqat.arithmetic`), where that is known to the last bit.
        traces: whether a second compilation for differences by node tells more than the first.
        takes_threads: whether it runs on as many threads as :attr:`threads` says.
        threads: number of threads that the user asks for; None: as many as it takes by itself.
    """

    name: str = ""
    file: str = ""
    package: str = ""
    extra: str | None = None
    integer_kernels: str = ""
    runs_numbers = True
    arithmetic: str | None = None
    traces = True
    takes_threads = False
    threads: int | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})

    def version(self) -> str | None:
        """Version of the installed package, None where it is not installed; empty where it needs none."""
        return installed(self.package) if self.package else ""

    def missing(self) -> UsageError:
        """The error for a compiler that is not installed."""
        what = f"onnxqat[{self.extra}]" if self.extra else self.package
        return UsageError(
            "dependency-missing", f"{self.name} needs the package {self.package}", hint=f"pip install '{what}'"
        )

    def incomplete(self) -> str:
        """Return the command that installs the part of an installed compiler that is missing; empty where none is."""
        return ""

    def script_job(self, path: Path, batches: Sequence[Mapping[str, Array]], folder: Path) -> ScriptJob | None:
        """Return the job of a script in another environment, its model written into `folder`; None: in this Python."""
        return None

    def nodes_of(self, report: Mapping[str, Any], script: ScriptJob | None) -> tuple[NodeResult, ...]:
        """Return the execution of each node, from the `report` of the process that compiled."""
        return tuple(NodeResult(**node) for node in report["nodes"])

    def node_times(self, path: Path, feeds: Mapping[str, Array]) -> tuple[dict[str, float], float]:
        """Time the kernels of the model at `path` on one sample; compilers with a profiler of their own override this.

        Args:
            path: an ONNX file.
            feeds: one sample by input name.

        Returns:
            Seconds by name of a node of that file, those that were fused into it included, and of all kernels together:
            the fastest of several runs.

        Raises:
            UsageError: ``option-invalid``: it measures no times here.
        """
        raise UsageError("option-invalid", f"{self.name} measures no times of kernels here")

    @abc.abstractmethod
    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Compile the model at `path`, run `batches` through it and read back how each node runs.

        Args:
            path: the deploy form.
            batches: feeds by input name.
            artefacts: folder for the vendor's own files, if it makes any that others can load.

        Raises:
            UsageError: ``dependency-missing``.
        """


KIND = extension.Kind(
    name="compiler",
    package=_PACKAGE,
    group="onnxqat.compilers",
    lacks=extension.class_named("Compiler", lambda: BaseCompiler),
    page="docs/extending.md",
)


def names() -> list[str]:
    """Names of the compilers, those of other packages last."""
    return extension.names(KIND)


def load(name: str, options: Mapping[str, str] | None = None) -> BaseCompiler:
    """The compiler called `name`, or that of the file `name`.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file without a compiler.
    """
    made = extension.load(KIND, name).Compiler(options)
    assert isinstance(made, BaseCompiler)
    made.file = str(Path(name).resolve()) if extension.is_file(name) else ""
    return made
