"""A float model with a switch for each quantizer: any subset of them, on any parameters, runs in one session."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.noise import squares
from onnxqat.data.inputs import Feeds
from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.passes import _base
from onnxqat.passes.place_qdq import PlaceQdq
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.runtime import joined_runs
from onnxqat.runtime.session import Session
from onnxqat.types import Placement, QParams

Array = npt.NDArray[Any]

FED = frozenset({"int8", "uint8", "int16", "uint16"})
"""Storage types whose zero points numpy has, so that a run can be given others."""


LOUD = 1e6
"""Largest share of noise: that of an output that is 0 without quantizers is no number."""


@dataclasses.dataclass(frozen=True)
class _Wire:
    """Names of the constants of a pair that a run may replace.

    Attributes:
        switch: whether the pair is on.
        scale: None where numpy lacks the type of the codes.
        zero_point: the same.
        dtype: of the codes.
        values: of a constant that was rounded on data; None elsewhere.
    """

    switch: str
    scale: str | None
    zero_point: str | None
    dtype: str
    values: str | None = None


class Switchboard:
    """The noise that some of the quantizers of a model bring to its outputs, against none of them.

    Each Q/DQ pair is one branch of an If whose other branch passes the tensor through. Its switch, scale and zero point
    are initializers that are graph inputs too, so that a run can replace them. Biases stay in float: their steps are those
    of the accumulator, far below the noise of the products. The first run, all switches off, gives the reference.

    Args:
        model: prepared float model; it is not changed.
        placements: quantizers to insert; runs name them by their number in this order.
        pairs: as of the backend table.
        batches: samples.
        watched: tensors that are to be finite, besides the outputs.
        rounded: by name, constants that were rounded on data; a run with other parameters takes those of `model`.

    Attributes:
        runs: runs so far, that of the reference among them.

    Raises:
        ModelError: ``model-not-runnable`` and whatever else a session raises.
    """

    def __init__(
        self,
        model: ir.Model,
        placements: Sequence[Placement],
        pairs: Any,
        batches: Sequence[Feeds],
        watched: Iterable[str] = (),
        rounded: Mapping[str, Array] | None = None,
    ) -> None:
        self.placements, self.runs = tuple(placements), 0
        self._batches = list(batches)
        switched, self._wires = _switched(model, self.placements, pairs, rounded or {})
        constants = {name: query.constant_array(model.graph.initializers[name]) for name in rounded or {}}
        self._before = {name: values for name, values in constants.items() if values is not None}
        names = {str(v.name) for scope in walk.scopes(model) for v in walk.values(scope)}
        outputs = [str(v.name) for v in model.graph.outputs]
        self._watched = [name for name in watched if name in names and name not in outputs]
        self._session = Session(
            switched, optimize=False, tensors=self._watched, what="the model with switches", sized=model
        )
        self._names = [*outputs, *self._watched]
        found = self._run(())
        self._reference = {n: v for n, v in found.items() if v.dtype.kind == "f"}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that hold floats, and the tensors that are watched."""
        return tuple(self._reference)

    def noise(self, on: Collection[int], parameters: Mapping[int, QParams] | None = None) -> dict[str, float]:
        """Noise of each output with the quantizers `on`, as a share of its signal.

        Infinite where a value is not finite that is so without quantizers; of a tensor that is only watched, 0
        otherwise, and of an output whose shape depends on the quantizers as well.

        Args:
            on: numbers of placements.
            parameters: other ones for some of them, on the same grid and of the same shape.
        """
        found = self._run(on, parameters or {})
        return {name: self._share(name, found[name]) for name in self._reference}

    def _share(self, name: str, value: Array) -> float:
        reference = self._reference[name]
        if value.shape != reference.shape:
            return 0.0
        finite = np.isfinite(reference)
        if not np.isfinite(value[finite]).all():
            return math.inf
        if name in self._watched:
            return 0.0
        noise, signal = squares(value, reference)
        if not noise:
            return 0.0
        return min(noise / signal, LOUD) if signal else LOUD

    def _run(self, on: Collection[int], parameters: Mapping[int, QParams] | None = None) -> dict[str, Array]:
        self.runs += 1
        feeds = {wire.switch: np.asarray(number in on) for number, wire in self._wires.items()}
        for number, qparams in (parameters or {}).items():
            wire = self._wires.get(number)
            if wire is not None and wire.scale is not None and wire.zero_point is not None:
                feeds[wire.scale] = qparams.scale
                feeds[wire.zero_point] = qparams.zero_point.astype(wire.dtype)
            if wire is not None and wire.values is not None:
                feeds[wire.values] = self._before[self.placements[number].tensor]
        return joined_runs.run(self._session, [{**batch, **feeds} for batch in self._batches], self._names)


def _switched(
    model: ir.Model, placements: Sequence[Placement], pairs: Any, rounded: Mapping[str, Array]
) -> tuple[ir.Model, dict[int, _Wire]]:
    """A copy of `model` with the quantizers of `placements` behind switches, and the wires of each by its number."""
    copy = model.clone()
    # The rule of a pair is what tells which placement it came from.
    marked = [dataclasses.replace(p, rule=str(number)) for number, p in enumerate(placements)]
    # Choices of earlier rounds may have codes of 16 bits, which the prepared model's opset need not have.
    _base.rewrite(copy, [RaiseOpset.for_codes(placements), PlaceQdq(marked, pairs)])
    names, wires = build.Names(copy), dict[int, tuple[_Wire, list[ir.Value | None]]]()
    for scope in list(walk.scopes(copy)):
        for node in list(scope):
            number = node.metadata_props.get(build.RULE, "")
            if (
                not qdq.is_quantize(node)
                or not number.isdigit()
                or node.metadata_props.get(build.CREATED_BY) != PlaceQdq.name
            ):
                continue
            placement = placements[int(number)]
            if int(number) not in wires:
                wires[int(number)] = _wire(copy, names, placement, rounded.get(placement.tensor))
            _put_switch(scope, node, names, wires[int(number)][1])
    return copy, {number: wire for number, (wire, _) in wires.items()}


def _wire(
    model: ir.Model, names: build.Names, placement: Placement, rounded: Array | None
) -> tuple[_Wire, list[ir.Value | None]]:
    """Constants of `placement` in the main graph that are inputs too: switch, scale, zero point, and `rounded` values."""
    storage, base = placement.qparams.qtype.storage, placement.tensor
    made: list[ir.Value | None] = [build.constant(model.graph, names.fresh(f"{base}_switch"), np.asarray(True))]
    if storage in FED:
        qparams = placement.qparams
        dtype = ir.DataType[storage.upper()]
        made.append(build.constant(model.graph, names.fresh(f"{base}_fed_scale"), qparams.scale))
        made.append(build.constant(model.graph, names.fresh(f"{base}_fed_zero_point"), qparams.zero_point, dtype))
    else:
        made += [None, None]
    made.append(None if rounded is None else build.constant(model.graph, names.fresh(f"{base}_rounded"), rounded))
    model.graph.inputs.extend(v for v in made if v is not None)
    switch, scale, zero_point, values = (None if v is None else str(v.name) for v in made)
    return _Wire(str(switch), scale, zero_point, storage, values), made


def _put_switch(scope: walk.Scope, quantize: ir.Node, names: build.Names, wires: list[ir.Value | None]) -> None:
    """Move a pair into a branch of an If, whose other branch is its input; the parameters become inputs (`wires`)."""
    source, pair = quantize.inputs[0], [quantize]
    while not qdq.is_dequantize(pair[-1]):
        pair.append(pair[-1].outputs[0].consumers()[0])
    switch, scale, zero_point, rounded = wires
    for node in (quantize, pair[-1]):
        for index, value in enumerate((scale, zero_point), start=1):
            if value is not None:
                node.replace_input_with(index, value)
    if rounded is not None:
        quantize.replace_input_with(0, rounded)
    old = pair[-1].outputs[0]
    uses = list(old.uses())
    on = ir.Graph([], [], nodes=[], name=names.fresh(f"{old.name}_on"))
    plain = build.node("Identity", [source], [names.fresh(f"{old.name}_plain")], dtype=old.dtype)
    off = ir.Graph([], plain.outputs, nodes=[plain], name=names.fresh(f"{old.name}_off"))
    switched = build.node(
        "If",
        [switch],
        [names.fresh(f"{old.name}_switched")],
        {"then_branch": on, "else_branch": off},
        dtype=old.dtype,
        shape=old.shape,
        name=names.fresh(f"{old.name}_If"),
    )
    scope.insert_before(quantize, switched)
    edit.rewire(uses, switched.outputs[0])
    if old.is_graph_output():
        edit.replace_output(scope, old, switched.outputs[0])
        edit.take_over_name(names, old, switched.outputs[0], "paired")
    scope.remove(pair)
    on.extend(pair)
    on.outputs.append(old)
