"""onnxruntime sessions on the CPU: graph optimizations off (the reference) or as the runtime ships, tensors fetched by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data import inputs as model_inputs
from onnxqat.data.inputs import InputInfo
from onnxqat.discover import unknown
from onnxqat.errors import ModelError, QatError, UnsupportedError
from onnxqat.graph import build, omitted, query, sizes, walk
from onnxqat.passes import convert_to_float32
from onnxqat.runtime import branch_tensors, unshared
from onnxqat.runtime import custom_ops as user_ops
from onnxqat.runtime.isolated_session import Settings, TriedSession

Array = npt.NDArray[Any]

_OF_SIGNED = "output_dtype INT8 does not match y_zero_point type UINT8"
# What onnxruntime says of types that do not fit together: a model without kernels is another thing.
_ILL_TYPED = (": INVALID_GRAPH :", "Type Error: ")
_MOVES_PAIRS = ("QDQPropagationTransformer",)
_DROPS_RELU = ("ReluQuantRewrite", "ClipQuantRewrite")
_DROPS_RIGHTLY = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


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
        threads: that share the work of an operator; 0 is one a core.
        sized: the model that `model` was made from, where all large tensors are tensors of that: the sizes of its tensors
            are checked instead, since its shapes are known and those of new nodes would have to be inferred.

    Attributes:
        inputs: what must be fed.
        output_names: the graph's outputs, in order, without `tensors`.
        converted: whether the runtime has no kernels for the types of the model (bfloat16, many operators in double), so
            that it runs in float32; inputs and outputs of bfloat16, for which numpy has no type, are float32 then.
        unmoved: whether the default optimizations run without the one that moves pairs, since they fail with it:
            onnxruntime 1.32 moves a QuantizeLinear of opset 21 in front of data movement, and leaves int8 in its
            ``output_dtype``; and it ends the process where a body of If, Loop or Scan reads what it moves.
        keeps_relu: whether the default optimizations run without those that drop a Relu or Clip in front of a quantizer:
            onnxruntime 1.32 drops a Relu whatever the zero point is, where codes are of 4 bits or float8.

    Raises:
        ModelError: ``model-not-runnable`` with onnxruntime's reason; ``model-too-large``; ``runtime-failed`` where it
            ended the child process in which the session was tried.
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
        threads: int = 0,
        sized: ir.Model | None = None,
    ) -> None:
        self.what = what
        self.output_names = tuple(str(v.name) for v in model.graph.outputs)
        sizes.check(model if sized is None else sized, what)
        entries = {"session.x64quantprecision": "1"} if precise else {}
        settings = Settings(optimize, entries, (*custom_ops, *user_ops.libraries()), threads=threads)
        extended, self._outputs = _with_outputs(model, tensors)
        if precise:
            extended = extended.clone() if extended is model else extended
            unshared.unshare(extended)
        plain = _without_bfloat16(extended)
        self.converted = plain is not extended
        self.unmoved = False
        self.keeps_relu = optimize and _has_relu_in_front_of_small_codes(plain)
        if self.keeps_relu:
            settings = dataclasses.replace(settings, without=_DROPS_RELU)
        try:
            self._session, self.unmoved = _open(plain, settings, what)
        except (QatError, OSError):
            raise
        except Exception as error:
            converted = None if any(text in str(error) for text in _ILL_TYPED) else _in_float32(plain)
            if converted is None:
                raise _not_runnable(what, error) from None
            try:
                self._session = TriedSession(converted, settings, what)
            except QatError:
                raise
            except Exception:
                raise _not_runnable(what, error) from None
            self.converted = True
        self.inputs: list[InputInfo] = model_inputs.of_session(self._session.session)
        self._floats = {info.name: info.dtype for info in self.inputs if info.dtype.startswith("float")}

    @property
    def settings(self) -> Settings:
        """Settings that the session was opened with."""
        return self._session.settings

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
        """Tensors by name; without `names`, the graph's outputs. Floats are fed in the type of the input.

        Raises:
            ModelError: ``model-not-runnable``, and at the first run as of the class.
        """
        wanted = list(self.output_names if names is None else names)
        if not wanted:
            return {}
        found = self.run_list(feeds, wanted)
        return {name: value for name, value in zip(wanted, found, strict=True) if isinstance(value, np.ndarray)}

    def run_list(self, feeds: Mapping[str, Array], names: Sequence[str], where: str = "") -> list[Any]:
        """The same as a list that the caller may empty as it goes; `where` ends the message of an error."""
        fed = {name: self._as_input(name, value) for name, value in feeds.items()}
        try:
            return self._session.run([self._outputs.get(name, name) for name in names], fed, where)
        except QatError:
            raise
        except Exception as error:
            raise _not_runnable(self.what + where, error) from None

    def _as_input(self, name: str, value: Array) -> Array:
        kind = self._floats.get(name)
        if kind is None or value.dtype.kind != "f" or value.dtype == kind:
            return value
        with np.errstate(over="ignore"):
            return value.astype(kind)


def main_values(graph: ir.Graph) -> dict[str, ir.Value]:
    """Values that the nodes of the main graph make, by name, in graph order."""
    return {v.name: v for v in walk.outputs(graph) if v.name}


def _with_outputs(model: ir.Model, names: Iterable[str]) -> tuple[ir.Model, dict[str, str]]:
    """`model` with more outputs, and the output of each tensor that lies in a branch of If.

    A copy, where anything is to be changed.
    """
    renamed: dict[str, str] = {}
    outputs = {v.name for v in model.graph.outputs}
    wanted = [name for name in names if name not in outputs]
    if not wanted and not _is_misread(model):
        return model, renamed
    copy = omitted.drop(model.clone())
    seen: set[str] = set()
    for node in walk.nodes(copy):
        if node.name in seen:  # which onnxruntime refuses, and ONNX allows
            node.name = None
        seen.update([node.name] if node.name else [])
    if not wanted:
        return copy, renamed
    values, fresh = branch_tensors.observable(copy), build.Names(copy)
    for name in wanted:
        if name in outputs:  # repeated
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


def _is_misread(model: ir.Model) -> bool:
    """Check whether onnxruntime refuses or misreads what ONNX allows: a repeated name, an empty name as last input."""
    names: set[str] = set()
    for node in walk.nodes(model):
        if node.name in names or (node.inputs and node.inputs[-1] is None):
            return True
        names.update([node.name] if node.name else [])
    return False


def _without_bfloat16(model: ir.Model) -> ir.Model:
    """`model`, or a copy in float32 where it holds bfloat16: neither onnxruntime's kernels nor its Python take that."""
    if ir.DataType.BFLOAT16 not in convert_to_float32.other_floats(model):
        return model
    try:
        return convert_to_float32.convert(model, keep_io_types=False)
    except UnsupportedError:
        return model


def _in_float32(model: ir.Model) -> ir.Model | None:
    """A copy of `model` in float32; None where it is already, or has no form in float32."""
    try:
        converted = convert_to_float32.convert(model)
    except UnsupportedError:
        return None
    return None if converted is model else converted


def _has_relu_in_front_of_small_codes(model: ir.Model) -> bool:
    for node in walk.nodes(model):
        if node.op_type != "QuantizeLinear" or node.inputs[0] is None:
            continue
        zero_point = query.input_at(node, 2)
        typed = node.outputs[0] if zero_point is None else zero_point
        producer = node.inputs[0].producer()
        if producer is not None and producer.op_type in ("Relu", "Clip") and typed.dtype not in _DROPS_RIGHTLY:
            return True
    return False


def _open(model: ir.Model, settings: Settings, what: str) -> tuple[TriedSession, bool]:
    """The session, and whether it runs without the optimizer that moves pairs, with which it does not open."""
    try:
        return TriedSession(model, settings, what), False
    except Exception as error:
        crashed = isinstance(error, QatError) and error.code == "runtime-failed"
        if not settings.optimize or not (crashed or _OF_SIGNED in str(error)):
            raise
        try:
            return TriedSession(
                model, dataclasses.replace(settings, without=(*settings.without, *_MOVES_PAIRS)), what
            ), True
        except Exception:
            raise error from None


def _not_runnable(what: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0][:400] if lines else type(error).__name__
    custom = "not a registered" in str(error) or "is not registered" in str(error)
    return ModelError(
        "model-not-runnable",
        f"onnxruntime cannot run {what}: {reason}",
        hint=f"name the library of its custom operators in {user_ops.VARIABLE}" if custom else "",
    )
