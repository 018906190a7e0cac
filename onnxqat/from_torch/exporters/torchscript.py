"""torch's tracing exporter: runs the module once and writes down what happened."""

from __future__ import annotations

import re

import onnx_ir as ir
import torch

from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.from_torch.call import Call
from onnxqat.from_torch.exporters._refusals import failed, no_form
from onnxqat.from_torch.options import Options
from onnxqat.graph import io
from onnxqat.graph.staging import scratch

FIRST, LAST = 9, 20
TRACES = True
"""Python code that reads values is frozen as it was for the example inputs."""


def check(options: Options) -> None:
    """Refuse what this exporter cannot write.

    Raises:
        UsageError: ``option-invalid``: the opset.
    """
    if not FIRST <= options.opset <= LAST:
        raise UsageError(
            "option-invalid",
            f"torch's exporter 'torchscript' writes opset {FIRST} to {LAST}, not {options.opset}",
            hint="exporter 'dynamo' writes newer ones",
        )


def convert(call: Call, options: Options) -> ir.Model:
    """The graph of one run of the module, in evaluation mode.

    ``PRESERVE`` keeps the exporter from merging BatchNormalization into convolutions, and a root module that says that
    it trains keeps it from making parameters one that only happen to be equal, such as biases that are still 0.
    """
    module = call.flat()
    if module is not call.module:
        module.training = True  # of the view alone: what computes is the module itself
    if any(isinstance(m, torch.jit.ScriptModule) for m in list(module.modules())[1:]):
        module = torch.jit.trace(module, call.inputs, check_trace=False)  # type: ignore[no-untyped-call]
    with scratch() as folder:
        path = folder / "model.onnx"
        torch.onnx.export(
            module,
            call.inputs,
            str(path),
            dynamo=False,
            opset_version=options.opset,
            training=torch.onnx.TrainingMode.PRESERVE,
            input_names=list(options.input_names),
            output_names=list(options.output_names),
            dynamic_axes=dict(
                zip(
                    (*options.input_names, *options.output_names),
                    (*options.input_axes, *options.output_axes),
                    strict=True,
                )
            ),
        )
        model = io.load(path)
        ir.external_data.load_to_model(model)  # the folder goes
    return model


def explain(error: Exception, printed: str) -> UnsupportedError:
    """Return the exporter's `error` in one line; its `printed` graph tells the module that an operator comes from."""
    text = str(error)
    operator = re.search(r"\b([a-z_]\w*::\w+)", text)
    if isinstance(error, torch.onnx.errors.UnsupportedOperatorError) and operator:
        found = re.search(rf"{operator[1]}\(.*?scope: (\S+)", printed)
        path = found[1].rpartition("::")[2] if found else ""
        return no_form("torchscript", operator[1], path, other="dynamo")
    return failed("torchscript", text or type(error).__name__)
