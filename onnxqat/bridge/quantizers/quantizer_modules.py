"""The submodules that stand for the quantizers of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import fx, nn

from onnxqat import numerics
from onnxqat.bridge.export import packed_weights
from onnxqat.bridge.importing import names
from onnxqat.bridge.importing.builder import Builder
from onnxqat.bridge.importing.values import TORCH_DTYPES, Const
from onnxqat.bridge.quantizers import clip_in_front
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.step_limit import StepLimit
from onnxqat.graph import data_movement, folded_batchnorm, qdq, query
from onnxqat.graph.folded_batchnorm import ComputedFold
from onnxqat.graph.quantizer import Quantizer

QuantizerFactory: TypeAlias = "Callable[[Quantizer, tuple[nn.Module, nn.Module] | None], nn.Module]"


def default_factory(quantizer: Quantizer, sources: tuple[nn.Module, nn.Module] | None) -> nn.Module:
    """Make ``FakeQuantize``, or ``DerivedFakeQuantize`` for a bias whose scale is the product of two others.

    A trainer of any kind may step over the scales, so each step is limited. A bias with a scale of its own keeps it:
    its grid is so fine that there is nothing to learn.

    Args:
        quantizer: what the file says.
        sources: modules of the activation's and the weight's quantizer, for such a bias.
    """
    if sources is None:
        made = FakeQuantize(quantizer.qparams, tensor=quantizer.tensor, role=quantizer.role)
        made.limit = StepLimit()
        made.scale.requires_grad_(quantizer.role != "bias")
        return made
    activation, weight = cast("tuple[FakeQuantize, FakeQuantize]", sources)
    return DerivedFakeQuantize(quantizer.qparams, activation=activation, weight=weight, tensor=quantizer.tensor)


class Quantizers:
    """Makes the quantizer modules of one import and emits the calls.

    Attributes:
        paths: ONNX tensor name -> submodule path.
    """

    def __init__(self, model: ir.Model, factory: QuantizerFactory) -> None:
        found = qdq.quantizers(model, every=True)
        self.factory = factory
        self._snapped = {
            id(node): (activation, weight) for node, activation, weight in qdq.snapped_biases(model, found)
        }
        self._rounded: dict[int, ComputedFold] = {}
        self._rounding: set[int] = set()
        self._find_rounded(model, found)
        self.paths: dict[str, str] = {}
        self._nodes: dict[int, Quantizer] = {id(node): q for q in found for node in q.nodes}
        self._made: dict[int, nn.Module] = {}
        self._scales: list[tuple[ir.Value, nn.Module]] = []
        self._masters: dict[int, list[tuple[Quantizer, Const]]] = {}

    def _find_rounded(self, model: ir.Model, found: list[Quantizer]) -> None:
        """Biases that the graph computes and rounds to the grid of the accumulator."""
        readable = data_movement.carried(found)
        for fold in folded_batchnorm.every(model):
            activation, weight = (readable.get(id(value)) for value in fold.layer.inputs[:2])
            if fold.rounding and activation is not None and weight is not None:
                self._snapped[id(fold.layer)] = (activation, weight)
                self._rounded[id(fold.layer)] = fold
                self._rounding |= {id(node) for node in fold.rounding}

    def handles(self, node: ir.Node) -> bool:
        """Check whether `node` belongs to a recognised quantizer."""
        return id(node) in self._nodes or id(node) in self._rounding

    def emit(self, builder: Builder, node: ir.Node) -> None:
        """Emit the quantizer at its first node; its other nodes emit nothing."""
        quantizer = self._nodes.get(id(node))
        if quantizer is None or node is not quantizer.nodes[0]:
            return
        if quantizer.stored:
            master = builder.tensor(self._master(quantizer))
        else:
            master = builder.tensor(builder.lookup(quantizer.input))
        path = builder.add_module(f"{quantizer.tensor}_quantizer", self.module(quantizer))
        # The same tensor may pass a second quantizer, such as another grid for another consumer.
        self.paths.setdefault(quantizer.tensor, builder.prefix + path)
        result = builder.emit("call_module", path, (master,), name=names.identifier(path, "quantizer"))
        held = None if quantizer.stored else quantizer.input.dtype
        for output in quantizer.outputs:
            builder.define(output, _as_type(builder, result, held or ir.DataType.FLOAT, output.dtype))

    def module(self, quantizer: Quantizer) -> nn.Module:
        """The module of `quantizer`, made at first use."""
        if id(quantizer) not in self._made:
            sources = quantizer.derived_from
            pair = None if sources is None else (self.module(sources[0]), self.module(sources[1]))
            made = self.factory(quantizer, pair)
            if quantizer.prescribed:
                made.requires_grad_(False)
            codes = str(quantizer.input.name) if quantizer.stored else None
            described = {
                "scale_names": tuple(str(v.name) for v in quantizer.scales),
                "zero_point_names": tuple(str(v.name) for v in quantizer.zero_points),
                "codes_name": codes,
                "packings": packed_weights.packings([quantizer.input, *quantizer.zero_points]),
                "bound_names": _bound_names(quantizer),
                "largest_scale": clip_in_front.largest_scale(quantizer),
                "starts_at_zero": clip_in_front.starts_at_zero(quantizer),
            }
            for name, value in described.items():
                setattr(made, name, value)
            self._made[id(quantizer)] = made
            if pair is None:
                self._scales += [(value, made) for value in quantizer.scales]
        return self._made[id(quantizer)]

    def snap(self, builder: Builder, node: ir.Node) -> None:
        """Emit the quantizer of a float bias that the file keeps on the accumulator's grid, in front of its node."""
        if id(node) not in self._snapped:
            return
        activation, weight = self._snapped[id(node)]
        bias, fold = node.inputs[2], self._rounded.get(id(node))
        source = bias if fold is None else fold.folded_bias
        values = query.constant_tensor(bias if fold is None else fold.beta)
        if bias is None or source is None or values is None:
            return
        made = DerivedFakeQuantize(
            qdq.accumulator(activation.qparams, weight.qparams, values.size),
            activation=cast("FakeQuantize", self.module(activation)),
            weight=cast("FakeQuantize", self.module(weight)),
            tensor=str(source.name),
            stored_as="float" if fold is None else "computed",
        )
        path = builder.add_module(f"{source.name}_quantizer", made)
        self.paths.setdefault(str(source.name), builder.prefix + path)
        master = builder.tensor(builder.lookup(source))
        builder.define(bias, builder.emit("call_module", path, (master,), name=names.identifier(path, "quantizer")))

    def tie_scales(self) -> None:
        """Quantizers that read one scale initializer get one scale Parameter.

        What else a method learns for each scale is shared where the zero point is shared too; what it learns for each
        element of a tensor is not.
        """
        owners: dict[int, nn.Module] = {}
        for value, module in self._scales:
            owner = owners.setdefault(id(value), module)
            if owner is module:
                continue
            whole = getattr(owner, "zero_point_names", None) == getattr(module, "zero_point_names", None)
            own = dict(module.named_parameters(recurse=False))
            held = dict(owner.named_parameters(recurse=False))
            for name, parameter in held.items():
                of_scale = name in own and parameter.shape == held["scale"].shape
                if name == "scale" or (whole and of_scale):
                    module.register_parameter(name, parameter)
            if isinstance(owner, FakeQuantize) and isinstance(module, FakeQuantize):
                module.limit = owner.limit  # of one Parameter
                ends = [q.largest_scale for q in (owner, module) if q.largest_scale is not None]
                owner.largest_scale = module.largest_scale = min(ends, default=None)

    def _master(self, quantizer: Quantizer) -> Const:
        """The float weight behind stored integers; two DequantizeLinear that read alike share it."""
        known = self._masters.setdefault(id(quantizer.input), [])
        for other, constant in known:
            if other.qparams.same(quantizer.qparams):
                return constant
        codes = query.constant_array(quantizer.input)
        if codes is None:
            raise ValueError(f"{quantizer.tensor}: stored codes are not constant")
        qparams = quantizer.qparams
        values = numerics.dequantize(np.asarray(codes).astype(qparams.qtype.computed_type), qparams)
        known.append((quantizer, Const(quantizer.tensor, ir.Tensor(values))))
        return known[-1][1]


def _bound_names(quantizer: Quantizer) -> tuple[str | None, str | None]:
    """Names of what the Clip of `quantizer` reads its two ends from."""
    ends = [] if quantizer.clip is None else [*quantizer.clip.inputs[1:3], None, None]
    low, high = (None if value is None else str(value.name) for value in (*ends, None, None)[:2])
    return low, high


def _as_type(builder: Builder, result: fx.Node, held: ir.DataType, wanted: ir.DataType | None) -> fx.Node:
    """Cast the result of a quantizer to the type that its DequantizeLinear states, where it differs.

    Quantizers give back the type that they are given, and master weights of stored integers are float32; the file
    may have half precision scales, whose type the result then has.
    """
    if wanted is None or wanted is held or wanted not in TORCH_DTYPES:
        return result
    return builder.emit("call_function", torch.Tensor.to, (result, TORCH_DTYPES[wanted]), name=f"{result.name}_cast")
