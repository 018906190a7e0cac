"""``prepare_by_platform``: a module with quantizers where a backend wants them, before there are calibration data."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from torch import nn

from onnxqat.bridge.importing.frozen_constants import freeze_constants
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import set_state
from onnxqat.compat import backend_type, custom_config, prepared
from onnxqat.compat.backend_type import BackendType
from onnxqat.compat.example_inputs import stated_inputs
from onnxqat.errors import UsageError
from onnxqat.graph import io, qdq
from onnxqat.insertion import prepare
from onnxqat.passes import _base
from onnxqat.passes.unique_names import UniqueNames
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Remark

_log = logging.getLogger(__name__)


def prepare_by_platform(
    model: nn.Module | io.ModelSource,
    backend: BackendType | str,
    example_inputs: Any = None,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    custom_tracer: Any = None,
    *,
    overrides: Overrides | None = None,
    batch_norm: prepare.BatchNorm = "fold",
    export_options: Mapping[str, Any] | None = None,
) -> OnnxModule:
    """Place quantizers as `backend` wants them and return the trainable module, whose quantizers have no scale yet.

    What MQBench and Knight do with torch.fx happens on the ONNX graph: export (of a module), prepare, plan, insert,
    import. Then calibrate: :func:`onnxqat.enable_calibration`, some batches, :func:`onnxqat.enable_quantization`.
    Until a quantizer has a scale, running it quantized and exporting it are refused, with the tensor's name.

    Args:
        model: a module, which is exported and not changed, or an ONNX file or model. One that has quantizers keeps
            them, with their scales.
        backend: a :class:`BackendType`, its name, or the name or path of a table (``onnxqat backends list``).
        example_inputs: what :func:`onnxqat.export` takes; needed for a module that states none itself
            (:mod:`onnxqat.compat.example_inputs`).
        prepare_custom_config_dict: MQBench's; :mod:`onnxqat.compat.custom_config` says what each entry is here. May
            stand in the place of `example_inputs`, where MQBench has it.
        custom_tracer: ignored with a remark, since nothing is traced.
        overrides: choices as of ``insert-qdq``.
        batch_norm: ``"keep"`` leaves BatchNormalization behind its layer, to be trained; as of ``insert-qdq``.
        export_options: more arguments of :func:`onnxqat.export`.

    Returns:
        The module, in training mode where `model` is. ``module.prepared.remarks`` says what is worth knowing; the same
        goes to the logger ``onnxqat.compat.prepare``.

    Raises:
        BackendError: ``backend-unknown`` (``NNIE`` with its reason), ``backend-opset``.
        UsageError: ``name-unknown``, ``pattern-no-match``, ``option-invalid``.
        ModelError, UnsupportedError: the model cannot be exported, read or imported.
    """
    if prepare_custom_config_dict is None and _is_config(example_inputs):
        example_inputs, prepare_custom_config_dict = None, example_inputs
    member = backend_type.find(backend)
    table = backend_type.table(backend)
    remarks: list[Remark] = []
    if member in backend_type.NOTES:
        remarks.append(Remark(backend_type.NOTES[member], source=custom_config.SOURCE))
    if custom_tracer is not None:
        reason = custom_config.NOT_NEEDED["custom_tracer"]
        remarks.append(Remark(f"custom_tracer is not needed: {reason}", source=custom_config.SOURCE))
    graph = _float_graph(model, example_inputs, {"batch_norm": batch_norm, **(export_options or {})}, remarks)
    chosen = overrides or backend_type.CHOICES.get(member, Overrides()) if member else overrides or Overrides()
    settings = custom_config.apply(prepare_custom_config_dict, table, chosen, graph)
    methods = (settings.weight_method, settings.activation_method)
    remarks.extend(settings.remarks)
    if qdq.is_quantized(graph):
        module = _module_with_own_quantizers(graph, methods, remarks)
    else:
        selection = prepare.prepare(graph, settings.table, settings.overrides, remarks, batch_norm=batch_norm)
        module = prepared.draft(graph, settings.table, selection, methods, remarks)
    freeze_constants(module, graph)
    module.train(isinstance(model, nn.Module) and model.training)
    set_state(module, "quantize")
    for remark in remarks:
        _log.warning("%s", remark.message + (f" ({', '.join(remark.nodes)})" if remark.nodes else ""))
    return module


def _is_config(given: Any) -> bool:
    return isinstance(given, Mapping) and bool(given) and all(key in custom_config.KEYS for key in given)


def _float_graph(
    model: nn.Module | io.ModelSource, example_inputs: Any, options: Mapping[str, Any], remarks: list[Remark]
) -> ir.Model:
    """Return the float graph of a torch module, exported on example inputs, or of a file; names are unique."""
    if isinstance(model, nn.Module):
        if example_inputs is None:
            example_inputs = stated_inputs(model)
        if example_inputs is None:
            raise UsageError(
                "option-invalid",
                f"there are no example inputs to export {type(model).__name__} with",
                hint="prepare_by_platform(model, backend, example_inputs=torch.randn(1, 3, 224, 224))",
            )
        from onnxqat.from_torch import export

        exported = export.run(model, example_inputs, **options)
        remarks.extend(exported.remarks)
        graph = exported.model
    elif isinstance(model, BackendType):
        raise UsageError("option-invalid", "the model comes first, then the backend")
    else:
        graph = io.load(model)
    remarks.extend(_base.rewrite(graph, [UniqueNames()]).remarks)
    return graph


def _module_with_own_quantizers(graph: ir.Model, methods: tuple[str, str], remarks: list[Remark]) -> OnnxModule:
    """The module of a file that has quantizers."""
    remarks.append(Remark("the quantizers of the file are kept, with their scales", source=custom_config.SOURCE))
    module = to_torch(graph, quantizer_factory=prepared.factory(*methods))
    module.prepared = prepared.Prepared(io.to_proto(graph), methods, remarks)  # type: ignore[assignment]
    return module
