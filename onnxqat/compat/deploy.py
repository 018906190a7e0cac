"""A trained module as QDQ ONNX under MQBench's and Knight's names: ``convert_export`` and ``convert_deploy``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from torch import nn

from onnxqat.bridge.export.write_back import put_back
from onnxqat.bridge.module import OnnxModule
from onnxqat.compat import backend_type as backends
from onnxqat.compat import qparams
from onnxqat.compat.backend_type import BackendType
from onnxqat.compat.prepared import Prepared, prepared_modules
from onnxqat.data import data
from onnxqat.data.inputs import of_graph
from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.errors import UsageError
from onnxqat.graph import batchnorm, io, query, saving, walk
from onnxqat.passes import _base
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.runtime import vendor_operators
from onnxqat.runtime.session import Session


def convert_export(
    model: nn.Module,
    file_path: str | os.PathLike[str],
    *,
    input_shape_dict: Mapping[str, Sequence[int]] | None = None,
    onnx_batch: int | None = None,
    opset_version: int | None = None,
    fold_batch_norm: bool = True,
) -> Path:
    """Write the module as a QDQ ONNX file and run that file once in onnxruntime.

    It is the graph that the module was prepared from, with the trained weights, scales and zero points: names, order
    and metadata are kept.

    Args:
        model: what ``prepare_by_platform`` returned, calibrated, or a wrapper of it.
        file_path: the file; it appears whole or not at all.
        input_shape_dict: input name to shape, for a file with fixed shapes.
        onnx_batch: size of the batch axis; None leaves it as it is, which is dynamic where the model allows it.
        opset_version: raise the opset to this.
        fold_batch_norm: put a BatchNormalization that was kept for training into the scales of its layer.

    Returns:
        The path.

    Raises:
        DataError: ``quantizer-uncalibrated`` names the tensor without a scale.
        UsageError: ``option-invalid``: not a prepared module, a batch or shape that the model does not take, or an
            opset below the lowest that can hold its types.
        ModelError: ``model-not-runnable``.
    """
    graph = io.load(written(model))
    if fold_batch_norm:
        graph = folded(graph)
    if opset_version is not None:
        set_opset(graph, opset_version)
    for name, shape in (input_shape_dict or {}).items():
        _fix_shape(graph, name, shape)
    if onnx_batch is not None:
        fix_batch(graph, onnx_batch)
    run_once(graph)
    return io.save(graph, file_path)


def convert_deploy(
    model: nn.Module,
    backend_type: BackendType | str | None = None,
    input_shape_dict: Mapping[str, Sequence[int]] | None = None,
    dummy_input: Any = None,
    model_name: str = "mqbench_qmodel",
    deploy_to_qlinear: bool = False,
    **extra: Any,
) -> list[Path]:
    """MQBench's hand-over: ``<name>.onnx`` (QDQ), ``<name>_deploy_model.onnx`` (float) and ``<name>_clip_ranges.json``.

    The JSON file holds every quantizer of the QDQ file; the forms of vendors (encodings, range files) and compilation
    are :func:`onnxqat.handoff`'s, with the QDQ file.

    Args:
        model: what ``prepare_by_platform`` returned, calibrated.
        backend_type: for which backend; must be the one that it was prepared for, since that decided the places.
        input_shape_dict: input name to shape, for files with fixed shapes.
        dummy_input: not needed: the graph is there already.
        model_name: what files are called, a folder in front of it included.
        deploy_to_qlinear: refused: runtimes make integer operators of Q/DQ by themselves.
        extra: MQBench's other arguments of the exporter, which have nothing to do here.

    Returns:
        The paths of the three files.

    Raises:
        UsageError: ``option-invalid``: another backend, or QLinear operators.
        DataError, ModelError: as of :func:`convert_export`.
    """
    del dummy_input, extra
    if deploy_to_qlinear:
        hint = "onnxruntime's default session does it when it loads the QDQ file"
        raise UsageError("option-invalid", "onnxqat writes Q/DQ, not QLinear operators", hint=hint)
    _, prepared = prepared_part(model)
    made_for = {p.key: p.value for p in prepared.qdq_model.metadata_props}.get("onnxqat.backend")
    if backend_type is not None and made_for is not None:
        table = backends.table(backend_type).backend
        if table != made_for:
            raise UsageError(
                "option-invalid",
                f"the module was prepared for {made_for}, not {table}",
                hint="another backend wants quantizers elsewhere: prepare the model for it",
            )
    stem = Path(model_name)
    qdq = convert_export(model, stem.with_name(f"{stem.name}.onnx"), input_shape_dict=input_shape_dict)
    clean, document = qparams.split(qdq)
    plain, ranges = (stem.with_name(f"{stem.name}_{end}") for end in ("deploy_model.onnx", "clip_ranges.json"))
    return [qdq, plain, qparams.write(document, ranges, saving.staged(clean, plain))]


def prepared_part(model: nn.Module) -> tuple[OnnxModule, Prepared]:
    """The one prepared module in `model`.

    Raises:
        UsageError: ``option-invalid`` where there is none, or more than one.
    """
    found = list(prepared_modules(model))
    if len(found) != 1:
        raise UsageError(
            "option-invalid",
            f"{type(model).__name__} holds {len(found)} modules of prepare_by_platform, not one",
            hint="pass what prepare_by_platform returned",
        )
    return found[0]


def written(model: nn.Module) -> onnx.ModelProto:
    """The QDQ model that `model` stands for now.

    Raises:
        UsageError: ``option-invalid``: no prepared module.
        DataError: ``quantizer-uncalibrated``.
        QatError: ``training-diverged``.
    """
    module, prepared = prepared_part(model)
    metadata = {"onnxqat.method": " ".join(dict.fromkeys(prepared.methods))}
    proto = put_back(module, prepared.qdq_model, metadata=metadata)  # each epoch, whose score is the caller's
    assert isinstance(proto, onnx.ModelProto)
    return proto


def folded(graph: ir.Model) -> ir.Model:
    """Return `graph` with every BatchNormalization that was kept for training in its layer."""
    if not any(map(batchnorm.is_kept, walk.nodes(graph))):
        return graph
    made = fold_batchnorm(graph).model
    assert isinstance(made, ir.Model)
    return made


def fix_batch(model: ir.Model, size: int) -> None:
    """Make the batch axis of `model`, the first of its first input, `size`, in place.

    Raises:
        UsageError: ``option-invalid``: it is fixed to another size, or `size` is below 1.
    """
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers and v.shape and len(v.shape)]
    if size < 1 or not inputs:
        raise UsageError("option-invalid", f"a batch of {size}; it must be at least 1")
    for value in inputs:
        assert value.shape is not None
        _fix_shape(model, str(value.name), [size, *([None] * (len(value.shape) - 1))])


def _fix_shape(model: ir.Model, name: str, shape: Sequence[int | None]) -> None:
    value = next((v for v in model.graph.inputs if v.name == name), None)
    if value is None or value.shape is None or len(value.shape) != len(shape):
        known = ", ".join(f"{v.name} {v.shape}" for v in model.graph.inputs)
        raise UsageError("option-invalid", f"no input {name!r} of rank {len(shape)}", hint=f"inputs: {known}")
    for old, new in zip(list(value.shape), shape, strict=True):
        if new is None:
            continue
        if isinstance(old, int) and old != new:
            raise UsageError(
                "option-invalid",
                f"input {name!r} has a fixed axis of {old}, not {new}",
                hint="export the model with a dynamic batch",
            )
        if not isinstance(old, int) and old.value is not None:
            _replace_symbol(model, old.value, new)
    value.shape = ir.Shape([o if n is None else n for o, n in zip(value.shape, shape, strict=True)])


def _replace_symbol(model: ir.Model, symbol: str, size: int) -> None:
    for scope in walk.scopes(model):
        for value in walk.values(scope):
            if value.shape is not None and any(getattr(d, "value", None) == symbol for d in value.shape):
                value.shape = ir.Shape([size if getattr(d, "value", None) == symbol else d for d in value.shape])


def set_opset(model: ir.Model, version: int) -> None:
    """Raise the opset of `model` to `version`, in place.

    Raises:
        UsageError: ``option-invalid``: the model needs a higher one.
    """
    have = query.opset(model)
    if version < have:
        raise UsageError(
            "option-invalid",
            f"opset {version} cannot hold this model: it needs {have}",
            hint=f"ask for opset {have} (--opset-version {have}), or export the float model for {version}",
        )
    _base.rewrite(model, [RaiseOpset(version)])


def run_once(model: ir.Model) -> None:
    """Run `model` in onnxruntime on random numbers, so that no file is written that cannot be run.

    What depends on operators that onnxruntime does not have is left out.

    Raises:
        ModelError: ``model-not-runnable``.
    """
    session = Session(vendor_operators.runnable_part(model), optimize=False, what="the exported model")
    session.run(next(iter(data.random_data(of_graph(model.graph), 1))))
