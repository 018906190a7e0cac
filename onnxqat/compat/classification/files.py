"""The files of a run under the manual's names: checkpoint and QDQ ONNX, the last and the best."""

from __future__ import annotations

import contextlib
import io as streams
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from onnxqat.bridge.export.write_back import put_back
from onnxqat.compat.classification.settings import Settings
from onnxqat.compat.deploy import convert_export
from onnxqat.errors import InputError
from onnxqat.graph import files_read, io
from onnxqat.training.loop.loop import CHECKPOINTS

FORMAT = "onnxqat-train-1"


class Files:
    """Paths of the files that a run writes.

    Attributes:
        checkpoint: ``NAME_checkpoint.pth``: everything that a run goes on from, tensors and numbers alone.
        best_checkpoint: ``NAME_model_best.pth``: the same as it was at the best epoch.
        last: ``NAME_onnx_quantization.onnx``: the QDQ model; of a float run ``NAME_onnx.onnx``.
        best: ``NAME_bestonnx_quantization.onnx``, ``NAME_bestonnx.onnx``.
        log: ``NAME_log.jsonl``.
        state: folder ``NAME_state`` of the loop's own checkpoint.
    """

    def __init__(self, settings: Settings) -> None:
        home, name = settings.output, settings.name
        kind = "" if settings.not_qat else "_quantization"
        self.settings = settings
        self.checkpoint = home / f"{name}_checkpoint.pth"
        self.best_checkpoint = home / f"{name}_model_best.pth"
        self.last = home / f"{name}_onnx{kind}.onnx"
        self.best = home / f"{name}_bestonnx{kind}.onnx"
        self.log = home / f"{name}_log.jsonl"
        self.state = home / f"{name}_state"

    def plan(self) -> None:
        """Refuse to write over a file that the run reads. The checkpoint that it goes on from is its own."""
        for path in (self.checkpoint, self.best_checkpoint, self.last, self.best, self.log):
            files_read.plan(path)

    def write_onnx(self, module: nn.Module, float_model: onnx.ModelProto | None, *, best: bool) -> None:
        """The model as it is now; `float_model` is what a float run fills in."""
        if float_model is not None:
            written = put_back(module, float_model)
            io.save(written, self.last)
        else:
            convert_export(
                module,
                self.last,
                onnx_batch=self.settings.onnx_batch,
                opset_version=self.settings.opset_version,
            )
        if best:
            io.copy(self.last, self.best)

    def write_checkpoint(self, held: dict[str, Any], *, best: bool) -> None:
        """Write `held`, and the loop's own checkpoint with it, so that one file is all that a run goes on from."""
        state = (self.state / "last.safetensors").read_bytes()
        buffer = streams.BytesIO()
        torch.save({"format": FORMAT, **held, "state": _packed(state)}, buffer)
        io.write_atomic(self.checkpoint, buffer.getvalue())
        if best:
            io.write_atomic(self.best_checkpoint, buffer.getvalue())

    def clean(self) -> None:
        """Remove the loop's own checkpoint, which the checkpoint file holds, and its folder where nothing else is in it."""
        for name in CHECKPOINTS:
            (self.state / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.state.rmdir()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read the checkpoint that :meth:`Files.write_checkpoint` wrote; ``model`` and ``state`` are bytes.

    Raises:
        QatError: ``checkpoint-mismatch``: no such file, damaged, or none of this trainer.
    """
    if not path.is_file():
        raise InputError("checkpoint-mismatch", f"{path}: no such file")
    try:
        # Tensors and numbers only: a checkpoint of a stranger runs no code.
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on a damaged file
        raise InputError(
            "checkpoint-mismatch", f"{path}: not a checkpoint, or damaged: {type(error).__name__}"
        ) from None
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise InputError(
            "checkpoint-mismatch",
            f"{path}: not a checkpoint of onnxqat train",
            hint="weights of a module go in with --model-path, a QDQ ONNX file with --resume",
        )
    return {k: bytes(v.numpy()) if k in ("model", "state") else v for k, v in held.items()}


def packed_model(model: onnx.ModelProto) -> torch.Tensor:
    """A model as a tensor of bytes, for a checkpoint."""
    return _packed(model.SerializeToString())


def _packed(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())
