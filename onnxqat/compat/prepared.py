"""A module whose quantizers are placed before there are data, and what it becomes when they have been calibrated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import nn

from onnxqat.analysis import signs
from onnxqat.backends.schema import Backend
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.quantizer_modules import QuantizerFactory
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.calibration import resolve, row_dynamic_range
from onnxqat.calibration.observers import create
from onnxqat.calibration.runner import Observed
from onnxqat.compat import adopt, gather
from onnxqat.compat.observing import Observing
from onnxqat.graph import io, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.insertion import insert, records
from onnxqat.placement import planner
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.training import methods
from onnxqat.types import QuantPlan, Remark, Shared, TensorSpec

SIGNED, UNSIGNED = (-0.5, 1.0), (0.0, 1.0)
"""Ranges that tensors are taken to have until there are data, so that the graph can be made."""


@dataclasses.dataclass
class Calibration:
    """Plan and observers, from which scales are computed.

    Attributes:
        float_model: the prepared float model; its initializers follow the module only when quantizers are settled.
        table: backend table with everything that was asked for.
        chosen: nodes left out.
        plan: plan of the graph, without data.
        observing: the observers.
    """

    float_model: onnx.ModelProto
    table: Backend
    chosen: NodeSelection
    plan: QuantPlan
    observing: Observing


@dataclasses.dataclass
class Prepared:
    """Facts about a module that :func:`onnxqat.prepare_by_platform` returned; its ``prepared``.

    Attributes:
        qdq_model: the file that the module stands for, which write-back fills in.
        methods: training methods of weights and of everything else.
        remarks: what is worth knowing.
        calibration: None for a file that came with quantizers of its own.
    """

    qdq_model: onnx.ModelProto
    methods: tuple[str, str]
    remarks: list[Remark]
    calibration: Calibration | None = None


def prepared_modules(model: nn.Module) -> Iterator[tuple[OnnxModule, Prepared]]:
    """The modules of ``prepare_by_platform`` in `model`: itself, behind wrappers of any kind, or parts of it."""
    for module in model.modules():
        found = module.__dict__.get("prepared")
        if isinstance(module, OnnxModule) and isinstance(found, Prepared):
            yield module, found


def draft(
    model: ir.Model, table: Backend, chosen: NodeSelection, chosen_methods: tuple[str, str], remarks: list[Remark]
) -> OnnxModule:
    """The module for a prepared float `model`, with quantizers of activations that have no scale yet."""
    plan = planner.plan(model, table, chosen)
    specs = resolve.tensors_to_observe(plan)
    watched = row_dynamic_range.row_sizes(model, specs)
    groups = {edge.tensor: edge.decision.root for edge in plan.edges if isinstance(edge.decision, Shared)}
    float_model = io.to_proto(model)
    resolved = resolve.resolve(plan, _stand_ins(model, plan), model)
    insert.place(model, remarks, table=table, plan=plan, resolved=resolved)
    records.describe(model, table, calibration="none")
    remarks.extend(plan.remarks)
    proto = io.to_proto(model)
    module = to_torch(proto, quantizer_factory=factory(*chosen_methods))
    decided = {edge.tensor: edge.decision for edge in plan.edges}
    weights = {name: d for name, d in decided.items() if isinstance(d, TensorSpec) and d.role == "weight"}
    observing = Observing(specs, groups, watched, weights)
    observing.renamed = _original_names(model, set(specs))
    calibration = Calibration(float_model, table, chosen, plan, observing)
    module.prepared = Prepared(proto, chosen_methods, remarks, calibration)  # type: ignore[assignment]
    _restore_masters(module, io.load(float_model), model)
    for _, quantizer in quantizers(module):
        if observing.planned(quantizer) is not None:
            quantizer.forget_qparams()
    return module


def settle(module: OnnxModule, prepared: Prepared) -> None:
    """Give the quantizers of `module` what was observed, exactly as ``insert_qdq`` does, and forget the observations.

    Where the data lead to another graph (a Concat of mixed ranges, an activation that the quantizer behind it does not
    repeat), the module becomes that graph; its weights stay the Parameters that they are. Nothing happens where
    nothing was observed, and tensors that held no value stay without a scale.
    """
    calibration = prepared.calibration
    if calibration is None:
        return
    observing, table = calibration.observing, calibration.table
    gather.from_all_processes(observing)
    seen = observing.seen
    if not seen:
        return
    model = io.load(calibration.float_model)
    _take_masters(model, module, _origins(io.load(prepared.qdq_model), model))
    float_model = io.to_proto(model)
    remarks: list[Remark] = []
    observers = Observed(observing.observers, (), 0)
    plan, resolved = insert.settle(
        model, table, calibration.chosen, calibration.plan, observers, observing.sizes, remarks
    )
    insert.place(model, remarks, table=table, plan=plan, resolved=resolved)
    records.describe(model, table, calibration="data")
    proto = io.to_proto(model)
    fresh = to_torch(proto, quantizer_factory=factory(*prepared.methods))
    unseen = set(resolve.tensors_to_observe(plan)) - seen
    renamed = _original_names(model, set(observing.specs))
    if unseen:  # the observations stay for when the rest has run
        adopt.take_scales(module, fresh, but=unseen | {new for new, old in renamed.items() if old in unseen})
        return
    if adopt.same_structure(module, fresh):
        adopt.take_scales(module, fresh)
    else:
        adopt.take_structure(module, fresh)
    prepared.qdq_model, calibration.float_model = proto, float_model
    prepared.remarks = [r for r in prepared.remarks if r not in remarks] + remarks
    observing.clear()
    observing.renamed = renamed


def factory(weight: str, other: str) -> QuantizerFactory:
    """Quantizers of weights by one method and all others by another."""
    of_weights, of_others = methods.factory(weight), methods.factory(other)

    def make(quantizer: Quantizer, sources: tuple[nn.Module, nn.Module] | None) -> nn.Module:
        return (of_weights if quantizer.role == "weight" else of_others)(quantizer, sources)

    return make


def _original_names(quantized: ir.Model, tensors: set[str]) -> dict[str, str]:
    """Tensors that lost their name to the dequantized tensor, to that name."""
    return {
        q.tensor: str(value.name)
        for q in qdq.quantizers(quantized)
        for value in q.outputs
        if q.tensor not in tensors and str(value.name) in tensors
    }


def _stand_ins(model: ir.Model, plan: QuantPlan) -> Observed:
    """Observers that have seen the ends of the ranges that tensors are taken to have."""
    values = {str(v.name): v for scope in walk.scopes(model) for v in walk.values(scope)}
    made = {}
    for name, spec in resolve.tensors_to_observe(plan).items():
        made[name] = create(dataclasses.replace(spec, observer="minmax"))
        ends = UNSIGNED if name in values and signs.is_non_negative(values[name]) else SIGNED
        made[name].update(np.asarray(ends, np.float32))
    return Observed(made, (), 0)


# ---------------------------------------------------------------- weights
def _origins(quantized: ir.Model, float_model: ir.Model) -> dict[str, str]:
    """Name of a constant of the quantized model, as the module calls it, to its name in the float model."""
    nodes = {str(node.name): node for node in walk.nodes(float_model) if node.name}
    by_output = qdq.by_output(qdq.quantizers(quantized, every=True))
    found: dict[str, str] = {}
    for node in walk.nodes(quantized):
        twin = nodes.get(str(node.name))
        if twin is None or twin.op_type != node.op_type:
            continue
        for value, origin in zip(node.inputs, twin.inputs, strict=False):
            if value is None or origin is None or query.constant_tensor(origin) is None:
                continue
            quantizer = by_output.get(id(value))
            found[quantizer.tensor if quantizer is not None else str(value.name)] = str(origin.name)
    return found


@torch.no_grad()
def _restore_masters(module: OnnxModule, float_model: ir.Model, quantized: ir.Model) -> None:
    """Undo what placing did to constants: float biases come back as they were."""
    constants, origins = walk.stored_values(float_model), _origins(quantized, float_model)
    for key, parameter in module.named_parameters():
        name = str(module.parameter_names.get(key, ""))
        origin = constants.get(origins.get(name, name))
        if origin is not None and origin.const_value is not None:
            values = np.asarray(origin.const_value.numpy())
            if values.shape == tuple(parameter.shape) and values.dtype.kind == "f":
                parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def _take_masters(float_model: ir.Model, module: OnnxModule, origins: dict[str, str]) -> None:
    """Put the weights that `module` has now into `float_model`, in place."""
    constants = walk.stored_values(float_model)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for key, name in module.parameter_names.items():
        value = constants.get(origins.get(name, name))
        if value is None or value.const_value is None or key not in held:
            continue
        old = np.asarray(value.const_value.numpy())
        new = held[key].detach().float().cpu().numpy()
        if old.dtype.kind == "f" and old.shape == new.shape and not np.array_equal(old, new):
            value.const_value = ir.Tensor(new.astype(old.dtype), name=value.name)
