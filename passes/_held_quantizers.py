"""Quantizers that a model has before any are placed: stripped, kept, or a reason to refuse it."""

from __future__ import annotations

import os

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import io, quantized_forms
from onnxqat.passes import _base
from onnxqat.passes.qoperator_to_qdq import to_qdq_form
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.types import Remark


def settle_quantizers(
    model: ir.Model, source: io.ModelSource, remarks: list[Remark], *, replace: bool, keep: bool
) -> None:
    """Strip or keep the quantizers of `model`, in place; operators on codes become pairs first.

    Args:
        model: that pairs are to be placed in.
        source: that it was read from, for messages.
        remarks: gets what was done.
        replace: strip what is there.
        keep: leave what is there, quantizers of a vendor's domain too, with a remark.

    Raises:
        ModelError: ``model-already-quantized`` where neither is asked for; ``model-form``.
    """
    form = quantized_forms.form_of(model)
    if form is None:
        return
    name = str(source) if isinstance(source, (str, os.PathLike)) else "the model"
    refused = quantized_forms.refusal(model, name)
    if refused is not None and keep and form.kind == "vendor":
        remarks.append(Remark(refused.message))
        return
    if refused is not None:
        raise refused
    if not replace and not keep:
        raise ModelError(
            "model-already-quantized",
            f"{name} already holds {' and '.join(form.operators[:2])} nodes",
            hint="pass it to `onnxqat finetune` as it is, give --keep to add what is missing, or --replace to start again",
        )
    if form.kind == "qoperator":
        remarks.extend(_base.rewrite(model, to_qdq_form()).remarks)
    if replace:
        remarks.extend(_base.rewrite(model, [StripQdq()]).remarks)
