"""Sums of a sensitivity analysis: for each quantizer its tensor, for each thing that is switched the model's outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.bridge.switched_module import target_of
from onnxqat.calibration.noise import decibels_of, share_of
from onnxqat.graph import build, data_movement, qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.metrics._closeness import Closeness
from onnxqat.validation.profile_result import Cost, CurvePoint, LayerProfile, Measure, TensorProfile
from onnxqat.validation.tensor_statistics import StatisticsMeter

if TYPE_CHECKING:
    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

Array = npt.NDArray[Any]


class Outputs:
    """Closeness of each floating output to that with all quantizers off."""

    def __init__(self) -> None:
        self._sums: dict[str, Closeness] = {}

    def add(self, found: Mapping[str, Array], reference: Mapping[str, Array]) -> None:
        """Take in one batch."""
        for name, value in found.items():
            if value.dtype.kind == "f" and value.shape == reference[name].shape:
                self._sums.setdefault(name, Closeness()).update(value, reference[name])

    @property
    def worst(self) -> Closeness:
        """The sums of the output with the lowest signal to noise; empty ones where no output was compared."""
        return min(self._sums.values(), key=lambda sums: sums.sqnr_db, default=Closeness())


class Unit:
    """Quantizers that are switched together: a tensor's one, or those of a layer.

    Args:
        name: of the tensor or node.
        modules: the quantizers.
    """

    def __init__(self, name: str, modules: Iterable[FakeQuantize]) -> None:
        self.name = name
        self.modules = list({id(module): module for module in modules}.values())
        self.alone: Outputs | None = None
        self.off: Outputs | None = None
        self.alone_score: float | None = None
        self.off_score: float | None = None

    def cost(self) -> Cost:
        """Return what was measured so far."""
        found: dict[str, float | None] = {"alone_score": self.alone_score, "off_score": self.off_score}
        for way, outputs in (("alone", self.alone), ("off", self.off)):
            if outputs is not None:
                worst = outputs.worst
                found |= {f"{way}_db": worst.sqnr_db, f"{way}_cosine": worst.cosine, f"{way}_mse": worst.mse}
        return Cost(**found)


class TensorMeter:
    """The sums of one quantizer's tensor.

    Args:
        quantizer: as it is in the file.
        module: its module.
        reference: the float model's tensor to compare with; None: the tensor with quantizers off.
    """

    def __init__(self, quantizer: Quantizer, module: FakeQuantize, reference: str | None) -> None:
        self.quantizer, self.module, self.reference = quantizer, module, reference
        self.target = target_of(quantizer)
        self.unit = Unit(str(quantizer.tensor), [module])
        rank = query.rank(quantizer.outputs[0]) or query.rank(quantizer.input) or 0
        self.all = Closeness(_steps(quantizer, rank))
        self._statistics = StatisticsMeter(quantizer.qparams, is_weight=quantizer.role == "weight")
        self._seen = False

    def add(self, quantized: Array, off: Array, reference: Array) -> None:
        """Take in one batch of the tensor: quantized, with all quantizers off, and that to compare with."""
        if reference.shape == quantized.shape:
            self.all.update(quantized, reference)
        if self.quantizer.role == "activation" or not self._seen:  # a constant is the same in each batch
            self._statistics.update(off)
            self._seen = True

    def result(self) -> TensorProfile:
        """Return the profile over all batches so far."""
        grid = self.quantizer.qparams.qtype
        readers = [user for user, _ in self.quantizer.outputs[0].uses()]
        return TensorProfile(
            tensor=self.unit.name,
            role=self.quantizer.role,
            node=query.label(readers[0]) if readers else "",
            grid=f"{grid.storage} {grid.quant_min}..{grid.quant_max}",
            all_db=self.all.sqnr_db,
            all_cosine=self.all.cosine,
            all_mse=self.all.mse,
            all_steps=self.all.steps or 0.0,
            reference="quantizers off" if self.reference is None else "float model",
            statistics=self._statistics.result(),
            **vars(self.unit.cost()),
        )


class LayerMeter:
    """The quantizers that belong to one node."""

    def __init__(self, node: ir.Node, meters: Sequence[TensorMeter]) -> None:
        self.node, self.meters = node, meters
        self.unit = Unit(query.label(node), [meter.module for meter in meters])

    def result(self) -> LayerProfile:
        """Return the profile over all batches so far."""
        found = self.unit.cost()
        alone = (
            found.alone_db if self.unit.alone is not None else _summed([m.unit.cost().alone_db for m in self.meters])
        )
        return LayerProfile(
            node=self.unit.name,
            op_type=self.node.op_type,
            tensors=tuple(dict.fromkeys(meter.unit.name for meter in self.meters)),
            all_db=min(meter.all.sqnr_db for meter in self.meters),
            all_steps=max(meter.all.steps or 0.0 for meter in self.meters),
            **(vars(found) | {"alone_db": alone}),
        )


def layers_of(meters: Sequence[TensorMeter]) -> list[LayerMeter]:
    """The layers that the quantizers of `meters` belong to, as :func:`nodes_of` says, in the order of the quantizers."""
    found: dict[int, tuple[ir.Node, list[TensorMeter]]] = {}
    for meter in meters:
        for node in nodes_of(meter.quantizer):
            found.setdefault(id(node), (node, []))[1].append(meter)
    return [LayerMeter(node, read) for node, read in found.values()]


def nodes_of(quantizer: Quantizer) -> list[ir.Node]:
    """Return the nodes that compute in integers through `quantizer`, so that it goes where they are left in float.

    They are those that read its values. Where no node does, or only ones that placement left in float, such as a
    Softmax that ends the network, it is there for the node that makes the tensor. A node that moves values alone
    stands for those behind it, or in front: it works on any grid.
    """
    found = _readers(quantizer)
    on_codes = [node for node in found if build.LEFT_FLOAT not in node.metadata_props]
    maker = None if on_codes else _maker(quantizer)
    return on_codes or ([maker] if maker is not None else found)


def _maker(quantizer: Quantizer) -> ir.Node | None:
    """The node in integers whose result `quantizer` rounds; None for a constant, an input, and a node left in float."""
    node = None if quantizer.stored else quantizer.input.producer()
    while node is not None and (_moves(node) or qdq.is_qdq(node)):
        node = query.producer(node.inputs[0])
    return None if node is None or build.LEFT_FLOAT in node.metadata_props else node


def _moves(node: ir.Node) -> bool:
    return data_movement.is_removed(node) or (node.op_type in data_movement.MOVES and not node.domain)


def _readers(quantizer: Quantizer) -> list[ir.Node]:
    """The nodes that work on the values of `quantizer`, behind those that move them alone."""
    waiting, found = list(quantizer.outputs), dict[int, ir.Node]()
    for value in waiting:
        for node, _ in value.uses():
            if _moves(node):
                waiting.extend(node.outputs)
            elif not qdq.is_quantize(node):
                found[id(node)] = node
    return list(found.values())


def _summed(decibels: Sequence[float | None]) -> float | None:
    """Signal to noise of the sum of independent noises; None where one was not measured."""
    known = [value for value in decibels if value is not None and not math.isnan(value)]
    if not known or len(known) < len(decibels):
        return None
    if -math.inf in known:
        return -math.inf
    return decibels_of(sum(map(share_of, known)))


def sensitivity(cost: Cost, measure: Measure, steps: float) -> float:
    """A number that is larger for what costs more, by `measure`: alone where that was measured, else with all others on.

    Args:
        cost: of a tensor or a layer.
        measure: signal to noise, cosine, mean squared error, score, or ``lsb``.
        steps: the largest difference of its tensor in LSB, for the last.
    """
    if measure == "lsb":
        return steps
    key = {"sqnr": "db"}.get(measure, measure)
    rising = key == "mse"  # of the others, less is worse
    for way in ("alone", "off"):
        value = getattr(cost, f"{way}_{key}")
        if value is not None and not math.isnan(value):
            return float(value if rising == (way == "alone") else -value)
    return -math.inf


def point(count: int, name: str, outputs: Outputs, score: float | None) -> CurvePoint:
    """The point of the curve with `count` things in float, of which `name` is the last."""
    worst = outputs.worst
    return CurvePoint(count, name, worst.sqnr_db, worst.cosine, worst.mse, score)


def _steps(quantizer: Quantizer, rank: int) -> Array:
    scale, axis = np.asarray(quantizer.qparams.scale, np.float64), quantizer.qparams.axis
    if scale.ndim != 1 or axis is None:
        return scale if scale.ndim == 0 else np.asarray(scale.max())
    return scale.reshape([-1 if i == axis % rank else 1 for i in range(rank)]) if rank else scale
