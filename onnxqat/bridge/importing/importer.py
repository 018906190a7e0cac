"""ONNX model -> torch module, node by node.

How an operator is found: its row in ``onnxqat/ops`` names a family, and ``onnxqat/bridge/lowering/<family>.py`` has a
function with the operator's name in snake case. An operator without either, or in a form that its lowering does not
implement exactly, is refused; one message lists all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeAlias

import onnx.defs
import onnx_ir as ir
import torch
from torch import fx

from onnxqat.arithmetic import Arithmetic, create
from onnxqat.bridge import module as modules
from onnxqat.bridge.export import packed_weights
from onnxqat.bridge.export.seen_samples import SeenSamples
from onnxqat.bridge.folded_batchnorm import FoldedBatchNorms
from onnxqat.bridge.functional import onnxruntime_sigmoid, unsigned_types
from onnxqat.bridge.importing import element_types, frozen_constants, functions, fusion, inference, names
from onnxqat.bridge.importing.builder import Builder, Lowered, NodeView, RefusedError, Store
from onnxqat.bridge.importing.values import Const
from onnxqat.bridge.integer.find import compute_in_integers
from onnxqat.bridge.lowering import integer_function
from onnxqat.bridge.lowering.normalization import BatchNorm
from onnxqat.bridge.module import Capture, OnnxModule, capture
from onnxqat.bridge.quantizers import quantizer_modules
from onnxqat.bridge.quantizers.quantizer_modules import QuantizerFactory
from onnxqat.errors import UnsupportedError
from onnxqat.graph import batchnorm, folded_batchnorm, io, quantizer_checks, query, sizes, walk
from onnxqat.integer_functions import calls
from onnxqat.ops import operators
from onnxqat.ops.definition import OpDef
from onnxqat.runtime import broken_model

__all__ = ["Capture", "OnnxModule", "QuantizerFactory", "capture", "to_torch"]

Lowering: TypeAlias = "Callable[[NodeView], Lowered]"


@broken_model.blames("model")
def to_torch(
    model: io.ModelSource,
    *,
    quantizer_factory: QuantizerFactory | None = None,
    arithmetic: str | Arithmetic = "float",
) -> OnnxModule:
    """Import an ONNX model as a ``torch.fx.GraphModule``.

    ``forward`` takes the graph inputs in order and returns the graph outputs: a tensor when there is one, else a
    tuple. Float constants are Parameters under their ONNX names, running statistics and everything else buffers.
    It comes in evaluation mode: ``.train()`` makes Dropout drop, and BatchNormalization of a float model, or one that
    ``insert-qdq`` kept for training, take the statistics of the batch. In QDQ files of other tools it keeps those of
    the file, for which the pairs around it were calibrated (:func:`onnxqat.training.callbacks.batchnorm_statistics.set_mode`).
    Each recognised quantizer is one submodule ``<tensor>_quantizer``.

    A loop over ``module.parameters()`` trains what is to be trained: constants that are settings of an operator take
    no gradient (:func:`onnxqat.bridge.importing.frozen_constants.freeze_constants`), scales learn as in LSQ, stay positive, and
    one optimizer step moves them by a small fraction of their size only (:mod:`onnxqat.bridge.quantizers.step_limit`).

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        quantizer_factory: makes the module of a quantizer from its description and, for a bias whose scale follows
            from two others, from their modules, such as ``methods.factory("pact")``. The default makes LSQ's
            (``FakeQuantize`` with a limit on steps, ``DerivedFakeQuantize``).
        arithmetic: ``float``: operators compute on dequantized values. Any other: while the quantizers are on,
            operators between them compute on codes, as the kernels of the target do (:mod:`onnxqat.arithmetic`):
            with ``onnxruntime``, what its default session computes, bit for bit. Gradients stay straight-through.

    Raises:
        UnsupportedError: ``operator-unsupported``, with every operator and form that is not implemented.
        UsageError: ``name-unknown`` for an arithmetic that does not exist.
        ModelError: the file is not a model; ``scale-invalid`` for a scale that is negative, 0 or not finite;
            ``model-too-large``; ``model-not-runnable`` where onnxruntime refuses what cannot be imported.
    """
    graph = io.load(model)
    has_functions = _expand_calls(graph)
    graph = prepare(graph)
    quantizer_checks.check(graph)
    module = _Importer(graph, quantizer_factory or quantizer_modules.default_factory).run()
    if module.quantizers and not batchnorm.trains_live(graph):
        for normalization in module.modules():
            if isinstance(normalization, BatchNorm):
                normalization.frozen = True
    if arithmetic == "float":
        return compute_in_integers(module, None) if has_functions else module
    return compute_in_integers(module, create(arithmetic) if isinstance(arithmetic, str) else arithmetic)


def prepare(model: ir.Model) -> ir.Model:
    """Inline model-local functions and infer shapes; the values that exist keep their names."""
    model, mixed = functions.inline(model)
    _forget_sizes(model)
    model = model if mixed else inference.infer(model)
    sizes.check(model, "the model", inferred=True)
    element_types.complete(model)
    packed_weights.expose(model)
    return model


def _expand_calls(model: ir.Model) -> bool:
    """Show calls of integer functions as operators; returns whether there are any.

    Nothing infers the results of those operators, so they keep the shapes that follow from the functions' bodies.
    """
    if next(calls.places(model), None) is None:
        return False
    _forget_sizes(model)
    inference.infer(model)
    return calls.expand(model) > 0


def _forget_sizes(model: ir.Model) -> None:
    """Forget sizes of what nodes compute, graph outputs aside: those in a file may be stale, and are inferred."""
    outputs = {id(v) for v in model.graph.outputs}
    results = {id(v) for graph in model.graphs() for v in graph.outputs}
    for value in (v for node in walk.nodes(model) if not _stands_for_call(node) for v in node.outputs):
        if id(value) not in outputs:
            rank = value.shape.rank() if value.shape is not None and id(value) in results else None
            value.shape = None if rank is None else ir.Shape([None] * rank)


def _stands_for_call(node: ir.Node) -> bool:
    return calls.FUNCTION in node.metadata_props


def _finish(builder: Builder) -> None:
    """Rewrite the graph of a scope, whose output is set, in place: single nodes first, then groups of nodes."""
    onnxruntime_sigmoid.follow_onnxruntime(builder)
    fusion.fuse(builder)


class _Importer:
    """One import: collects what is unsupported and builds scope after scope."""

    def __init__(self, model: ir.Model, factory: QuantizerFactory) -> None:
        self.model = model
        self.store = Store()
        self.refused: dict[str, list[str]] = {}
        self.quantizers = quantizer_modules.Quantizers(model, factory)
        self.batchnorms = FoldedBatchNorms(folded_batchnorm.every(model))
        self.doubtful: set[int] = set()

    def run(self) -> OnnxModule:
        """Build the main graph and wrap it."""
        self._check_operators()
        graph = self.model.graph
        builder = Builder(self.store, dict(self.model.opset_imports), _finish)
        inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        for value in inputs:
            builder.define(value, builder.placeholder(str(value.name or "")))
        for value in graph.inputs:
            if value.name in graph.initializers and value.const_value is not None:
                builder.define(value, Const(str(value.name), value.const_value))
        builder.anchor = _first_tensor(builder, inputs)
        try:
            self.lower_scope(builder, graph)
            results = [builder.tensor(builder.lookup(v)) for v in graph.outputs]
        except Exception:
            if not self.refused:
                raise
        self._raise_refused()
        builder.graph.output(results[0] if len(results) == 1 else tuple(results))
        _finish(builder)
        self.quantizers.tie_scales()
        attributes = {
            "input_names": tuple(str(v.name) for v in inputs),
            "output_names": tuple(str(v.name) for v in graph.outputs),
            "input_types": tuple(_type_name(v) for v in inputs),
            "output_types": tuple(_type_name(v) for v in graph.outputs),
            "parameter_names": self.store.parameter_names,
            "tensor_nodes": builder.tensor_nodes,
            "quantizers": self.quantizers.paths,
        }
        module = modules.make(self.store.root, builder.graph, attributes).eval()
        frozen_constants.freeze_constants(module, self.model)
        module.register_forward_pre_hook(SeenSamples())
        return module

    def lower_scope(self, builder: Builder, graph: ir.Graph) -> None:
        """Lower the nodes of one graph in order."""
        for node in graph:
            self.batchnorms.before(builder, node)
            if self.quantizers.handles(node):
                self.quantizers.emit(builder, node)
            else:
                self.quantizers.snap(builder, node)
                self._lower(builder, node)
            self.batchnorms.behind(builder, node)

    def _lower(self, builder: Builder, node: ir.Node) -> None:
        view = unsigned_types.view(builder, node, self.lower_scope)
        try:
            unsigned_types.refuse_doubtful(view, self.doubtful)
            result = unsigned_types.finish(view, _lowering(node)(view))
        except RefusedError as reason:
            self._refuse(f"{node.op_type} ({reason})", node)
            result = tuple(view.call(torch.zeros, 1) for _ in node.outputs)
        results = result if isinstance(result, tuple) else (result,)
        for output, value in zip(node.outputs, results, strict=False):
            if value is not None:
                builder.define(output, value)

    def _refuse(self, what: str, node: ir.Node) -> None:
        self.refused.setdefault(what, []).append(query.label(node))

    def _check_operators(self) -> None:
        for scope in walk.scopes(self.model):
            for node in scope:
                if self.quantizers.handles(node):
                    continue
                problem = _problem(node, node.version or query.opset(self.model, scope, node.domain))
                if problem:
                    self._refuse(problem, node)
        self._raise_refused()

    def _raise_refused(self) -> None:
        if not self.refused:
            return
        parts = []
        for what, nodes in sorted(self.refused.items()):
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            parts.append(f"{what} at {nodes[0]}{more}")
        raise UnsupportedError(
            "operator-unsupported",
            f"the bridge does not implement: {'; '.join(parts)}",
            hint="onnxqat refuses what it cannot compute exactly",
        )


def _first_tensor(builder: Builder, inputs: list[ir.Value]) -> fx.Node | None:
    for value in inputs:
        found = builder.lookup(value)
        if isinstance(found, fx.Node) and not isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
            return found
    return None


def _type_name(value: ir.Value) -> str:
    return "" if value.dtype is None else value.dtype.name


def _problem(node: ir.Node, opset: int) -> str:
    if calls.is_call(node):
        return ""
    domain = "" if node.domain == "ai.onnx" else node.domain
    title = f"{domain}.{node.op_type}" if domain else node.op_type
    row = operators.find(domain, node.op_type)
    if row is None or _function(row) is None:
        return title
    version = opset
    if not domain:
        try:
            version = onnx.defs.get_schema(node.op_type, opset, "").since_version
        except onnx.defs.SchemaError:
            return "" if node.op_type in query.BEYOND_OPSET else f"{title} (not in opset {opset})"
    return f"{title} (version {version}, older than {row.since})" if version < row.since else ""


def _lowering(node: ir.Node) -> Lowering:
    if calls.is_call(node):
        return integer_function.float_twin
    row = operators.find(node.domain, node.op_type)
    found = None if row is None else _function(row)
    if found is None:
        raise RefusedError("no lowering")
    return found


def _function(row: OpDef) -> Lowering | None:
    home = importlib.import_module(f"onnxqat.bridge.lowering.{row.family}")
    return getattr(home, names.function_name(row.domain, row.name), None)
