"""onnxruntime sessions on the CPU: graph optimizations off (the reference) or as the runtime ships, tensors fetched by name."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import branch_tensors
from onnxqat.calibration import inputs as model_inputs
from onnxqat.calibration.inputs import InputInfo
from onnxqat.discover import unknown
from onnxqat.errors import ModelError
from onnxqat.graph import build, io

Array = npt.NDArray[Any]

_IN_MEMORY = 2**29
_FATAL_ONLY = 4


class Session:
    """One model in onnxruntime, on the CPU, with a silent log.

    Args:
        model: it is not changed.
        optimize: the runtime's default graph optimizations, integer kernels included; without, the graph is computed as it
            is written, which is the reference that everything else is compared with.
        precise: on x64 processors without VNNI, integer kernels that add products at 32 bits instead of the faster ones
            that saturate at 16 (onnxruntime's session option ``session.x64quantprecision``).
        tensors: tensors of the main graph, or of branches of If in it, that :meth:`run` may return besides the outputs.
            They keep some fusions from happening, so a session that stands for deployment has none. A tensor of a
            branch that does not run is empty.
        what: what messages call the model.
        custom_ops: shared libraries with custom operators.

    Attributes:
        inputs: what must be fed.
        output_names: the graph's outputs, in order, without `tensors`.

    Raises:
        ModelError: ``model-not-runnable`` with onnxruntime's reason.
        UsageError: ``name-unknown``: there is no such tensor.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        optimize: bool,
        precise: bool = False,
        tensors: Iterable[str] = (),
        what: str = "the model",
        custom_ops: Sequence[str] = (),
    ) -> None:
        import onnxruntime

        self.what = what
        self.output_names = tuple(str(v.name) for v in model.graph.outputs)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        if precise:
            options.add_session_config_entry("session.x64quantprecision", "1")
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        with contextlib.ExitStack() as stack:
            extended, self._outputs = _with_outputs(model, tensors)
            content = _serialized(extended, stack)
            try:
                for library in custom_ops:
                    options.register_custom_ops_library(library)
                self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            except Exception as error:
                raise _not_runnable(what, error) from None
        self.inputs: list[InputInfo] = model_inputs.of_session(self._session)

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
        """Tensors by name; without `names`, the graph's outputs.

        Raises:
            ModelError: ``model-not-runnable``.
        """
        wanted = list(self.output_names if names is None else names)
        if not wanted:
            return {}
        found = self.run_list(feeds, wanted)
        return {name: value for name, value in zip(wanted, found, strict=True) if isinstance(value, np.ndarray)}

    def run_list(self, feeds: Mapping[str, Array], names: Sequence[str], where: str = "") -> list[Any]:
        """The same as a list that the caller may empty as it goes; `where` ends the message of an error."""
        try:
            return list(self._session.run([self._outputs.get(name, name) for name in names], dict(feeds)))
        except Exception as error:
            raise _not_runnable(self.what + where, error) from None


def main_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Values that the nodes of the main graph make, by name, in graph order."""
    return {v.name: v for node in graph for v in node.outputs if v.name}


def _with_outputs(model: ir.Model, names: Iterable[str]) -> tuple[ir.Model, dict[str, str]]:
    """A copy with more outputs, and the output of each tensor that lies in a branch of If."""
    copy, renamed = model.clone(), dict[str, str]()
    values, fresh = branch_tensors.observable(copy), build.Names(copy)
    outputs = {v.name for v in copy.graph.outputs}
    for name in names:
        if name in outputs:
            continue
        if name not in values:
            raise unknown("tensor", name, sorted(values))
        value = branch_tensors.lifted(values[name], fresh)
        renamed[name] = str(value.name)
        # A stale shape in the file does no harm before it is that of an output.
        value.shape = None
        copy.graph.outputs.append(value)
        outputs.add(name)
    return copy, renamed


def _serialized(model: ir.Model, stack: contextlib.ExitStack) -> bytes | str:
    """The model as bytes; a large one through a temporary folder, since a protobuf ends at 2 GB."""
    held = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    if sum(t.nbytes for t in held if t is not None) <= _IN_MEMORY:
        return bytes(io.to_proto(model).SerializeToString())
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxqat-"))
    path = Path(folder) / "model.onnx"
    ir.save(model, path, external_data="model.data", size_threshold_bytes=1024)
    return str(path)


def _not_runnable(what: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:400] if lines else type(error).__name__
    custom = "not a registered" in str(error) or "is not registered" in str(error)
    return ModelError(
        "model-not-runnable",
        f"onnxruntime cannot run {what}: {reason}",
        hint="pass the library of its custom operators" if custom else "",
    )
