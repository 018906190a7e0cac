"""Times of layers in float and on integers, from the profiler of the backend's own runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.deployment import base_compiler, choice, deploy
from onnxqat.deployment.base_compiler import BaseCompiler
from onnxqat.errors import UsageError
from onnxqat.graph import saving, staging
from onnxqat.runtime.session import Session


@dataclasses.dataclass(frozen=True)
class LayerTimes:
    """Measured times of one sample, in seconds.

    Attributes:
        integers: by the name of a node, in the file whose layers are all quantized.
        floats: by the name of a node, in the float model.
        integer_total: of all kernels of that file.
        float_total: of all kernels of the float model.
    """

    integers: Mapping[str, float]
    floats: Mapping[str, float]
    integer_total: float
    float_total: float

    def nanoseconds(self, node: str, *, is_float: bool) -> int:
        """Time of the kernel of `node`; 0 where the runtime fused it into that of another."""
        return round(1e9 * (self.floats if is_float else self.integers).get(node, 0.0))


def measure(model: ir.Model, table: Backend, feeds: Mapping[str, npt.NDArray[np.generic]]) -> LayerTimes:
    """Time the kernels of a quantized model, and of its float form, on one thread.

    Args:
        model: the quantized model, whose layers all run on integers.
        table: its backend, whose compiler runs it.
        feeds: one sample.

    Raises:
        UsageError: ``option-invalid``: the backend's compiler measures no times here; ``dependency-missing``.
    """
    compiler = timing(table)
    integers, integer_total = of(deploy.deploy_form(model, table, []), compiler, feeds)
    floats, float_total = of(deploy.float_form(model), compiler, feeds)
    return LayerTimes(integers, floats, integer_total, float_total)


def of(
    model: ir.Model, compiler: BaseCompiler, feeds: Mapping[str, npt.NDArray[np.generic]]
) -> tuple[dict[str, float], float]:
    """Seconds by node of `model` for one sample, and of all its kernels together.

    Raises:
        ModelError: ``model-not-runnable``: onnxruntime does not run it, which is tried in a child process first.
    """
    Session(model, optimize=True, what="the model that is timed").run(feeds)
    with staging.scratch() as folder:
        path = folder / "timed.onnx"
        saving.save(model, path)
        return compiler.node_times(path, feeds)


def timing(table: Backend) -> BaseCompiler:
    """The compiler of `table`, where it measures times of kernels.

    Raises:
        UsageError: see :func:`measure`.
    """
    compiler = choice.expected(table)
    if compiler is None or type(compiler).node_times is base_compiler.BaseCompiler.node_times:
        why = "it has no compiler here" if compiler is None else f"{compiler.name} tells no times of its kernels"
        raise UsageError(
            "option-invalid",
            f"no latency of {table.backend} can be measured: {why}",
            hint="take a table of onnxruntime or OpenVINO for --latency, or limit --multiply-bits",
        )
    if compiler.version() is None:
        raise compiler.missing()
    compiler.threads = 1
    return compiler
