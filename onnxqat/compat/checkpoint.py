"""``save_checkpoint``: the float weights without quantizers, and what the quantizers are, in two files; and back."""

from __future__ import annotations

import io as streams
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat import numerics
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import parameter_ids, quantizers
from onnxqat.compat import adopt, deploy, prepared, qparams
from onnxqat.errors import InputError, UsageError
from onnxqat.graph import atomic, io, saving, walk
from onnxqat.passes import _base
from onnxqat.passes.strip_qdq import StripQdq

WRAPPER = "module."


def save_checkpoint(
    model: nn.Module, file_path: str | os.PathLike[str], file_path_json: str | os.PathLike[str]
) -> tuple[Path, Path]:
    """Write weights without fake-quantize nodes, and the quantization parameters as JSON.

    Together they are the QDQ model: :func:`onnxqat.compat.qparams.join` and :func:`load_checkpoint` make it of them.

    Args:
        model: what ``prepare_by_platform`` returned, calibrated, or a wrapper of it.
        file_path: ``.onnx`` for the float model as it is, anything else for ``torch.save`` of its float tensors by
            ONNX name; such a name never starts with a wrapper's ``module.``.
        file_path_json: where the parameters go.

    Returns:
        Both paths.

    Raises:
        DataError: ``quantizer-uncalibrated``.
        UsageError: ``option-invalid``: not a prepared module.
    """
    clean, document = qparams.split(deploy.written(model))
    path = Path(file_path)
    if path.suffix == ".onnx":
        staged = saving.staged(clean, path)
    else:
        tensors = {name: torch.from_numpy(np.array(v)) for name, v in _float_constants(clean).items()}
        buffer = streams.BytesIO()
        torch.save({"state_dict": tensors}, buffer)
        staged = atomic.staged_file(path, buffer.getvalue())
    return path, qparams.write(document, Path(file_path_json), staged)


def load_checkpoint(
    model: nn.Module, file_path: str | os.PathLike[str], file_path_json: str | os.PathLike[str]
) -> None:
    """Put what :func:`save_checkpoint` wrote into `model`, in place, prepared from the same network; it is calibrated then.

    Args:
        model: what ``prepare_by_platform`` returned, or a module around it.
        file_path: float parameters, or the float ONNX model.
        file_path_json: quantization parameters.

    Raises:
        QatError: ``checkpoint-mismatch``: a tensor is missing, or has another shape; nothing was changed.
        DataError: ``data-not-found``, ``data-format``.
        UsageError: ``option-invalid``: not a prepared module, no file that holds tensors alone, or a method such as
            DoReFa's, which would change the weights a second time.
    """
    module, known = deploy.prepared_part(model)
    document = qparams.read(Path(file_path_json))
    clean = _clean(known, Path(file_path))
    float_model = io.to_proto(clean)
    proto = io.to_proto(qparams.join(float_model, document))
    fresh = to_torch(proto, quantizer_factory=prepared.factory(*known.methods))
    _check(module, fresh, Path(file_path))
    _check_methods(fresh)
    fresh.to(next(module.parameters()).device)
    tensors = {key: t.detach().clone() for key, t in (*fresh.named_parameters(), *fresh.named_buffers())}
    if adopt.same_structure(module, fresh):
        adopt.take_scales(module, fresh)
    else:
        adopt.take_structure(module, fresh)
    _copy(module, tensors)
    known.qdq_model = proto
    if known.calibration is not None:
        known.calibration.float_model = float_model
        known.calibration.observing.clear()


def _clean(known: prepared.Prepared, path: Path) -> ir.Model:
    """The float model with the weights of the file."""
    if path.suffix == ".onnx":
        return io.load(path)
    if known.calibration is not None:
        model = io.load(known.calibration.float_model)
    else:
        model = io.load(known.qdq_model)
        _base.rewrite(model, [StripQdq()])
    tensors = _tensors(path)
    for name, value in walk.stored_values(model).items():
        assert value.const_value is not None
        old = np.asarray(value.const_value.numpy())
        if old.dtype.kind != "f":
            continue
        if name not in tensors:
            raise _mismatch(path, f"it has no {name!r}")
        new = tensors[name].detach().cpu().numpy()
        if new.shape != old.shape:
            raise _mismatch(path, f"{name!r} is {new.shape} there and {old.shape} in the model")
        value.const_value = ir.Tensor(new.astype(old.dtype), name=name)
    return model


def _tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise _mismatch(path, "no such file")
    try:
        # Tensors only: a checkpoint of a stranger runs no code.
        held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on a damaged file
        line = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UsageError("option-invalid", f"{path}: not a file of tensors alone: {line}") from None
    held = held.get("state_dict", held) if isinstance(held, dict) else {}
    return {str(k).removeprefix(WRAPPER): v for k, v in held.items() if isinstance(v, Tensor)}


def _float_constants(model: ir.Model) -> dict[str, np.ndarray]:
    arrays = {
        name: np.asarray(v.const_value.numpy())
        for name, v in walk.stored_values(model).items()
        if v.const_value is not None
    }
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def _check(module: OnnxModule, fresh: OnnxModule, path: Path) -> None:
    held = dict(fresh.named_parameters())
    inside = parameter_ids(module)
    for key, parameter in module.named_parameters():
        if id(parameter) not in inside and (key not in held or held[key].shape != parameter.shape):
            name = module.parameter_names.get(key, key)
            raise _mismatch(path, f"{name!r} of the model is not there, or of another shape")


@torch.no_grad()
def _check_methods(fresh: OnnxModule) -> None:
    """Refuse where a quantizer makes something else of the stored weights than the file's Q/DQ does."""
    keys = {name: key for key, name in fresh.parameter_names.items()}
    fresh.eval()
    for _, quantizer in quantizers(fresh):
        if not quantizer.transforms_weight or quantizer.role != "weight" or quantizer.tensor not in keys:
            continue
        master = fresh.get_parameter(keys[quantizer.tensor])
        plain = numerics.fake_quantize(master.cpu().numpy(), quantizer.qparams())
        if not np.array_equal(quantizer(master).cpu().numpy(), plain):
            raise UsageError(
                "option-invalid",
                f"the method of {quantizer.tensor!r} changes weights, and those of a checkpoint are changed already",
                hint="keep model.state_dict() to go on with this method, or load into one with LearnableFakeQuantize",
            )


@torch.no_grad()
def _copy(module: OnnxModule, given: Mapping[str, Tensor]) -> None:
    """Weights, and statistics of a kept BatchNormalization; those of quantizers have been taken over already."""
    inside = {id(t) for _, q in quantizers(module) for t in (*q.parameters(), *q.buffers())}
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if id(tensor) not in inside and key in given:
            tensor.copy_(given[key])


def _mismatch(path: Path, message: str) -> InputError:
    return InputError("checkpoint-mismatch", f"{path}: {message}")
