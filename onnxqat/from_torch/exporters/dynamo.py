"""torch's newer exporter: ``torch.export`` with symbolic sizes, then its own conversion to ONNX."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import onnx_ir as ir
import torch

from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.from_torch.call import Call
from onnxqat.from_torch.exporters import _scopes
from onnxqat.from_torch.exporters._refusals import failed, no_form
from onnxqat.from_torch.options import Options
from onnxqat.graph import walk

FIRST = 18
TRACES = False


def check(options: Options) -> None:
    """Refuse what this exporter cannot write.

    Raises:
        UsageError: ``dependency-missing`` without onnxscript; ``option-invalid``: the opset.
    """
    if importlib.util.find_spec("onnxscript") is None:
        raise UsageError(
            "dependency-missing",
            "torch's exporter 'dynamo' needs onnxscript, which is not installed",
            hint="pip install 'onnxqat[export]', or exporter 'torchscript'",
        )
    if options.opset < FIRST:
        raise UsageError(
            "option-invalid",
            f"torch's exporter 'dynamo' writes opset {FIRST} and newer, not {options.opset}",
            hint="exporter 'torchscript' writes older ones",
        )


def convert(call: Call, options: Options) -> ir.Model:
    """The graph of the module in evaluation mode, with the names of its submodules as those of nodes."""
    dims: dict[str, Any] = {n: torch.export.Dim(n) for axes in options.input_axes for n in axes.values()}
    shapes = tuple({axis: dims[name] for axis, name in axes.items()} or None for axes in options.input_axes)
    exported = torch.export.export(call.flat(), call.inputs, dynamic_shapes=(shapes,), strict=False)
    model = _to_onnx(exported, options)
    if options.keep_batch_norm:
        _tidy(model)
    if model.opset_imports.get("", 0) != options.opset:
        found = model.opset_imports.get("", 0)
        raise UnsupportedError("export-failed", f"torch's exporter 'dynamo' wrote opset {found}, not {options.opset}")
    _scopes.name_nodes(model)
    _name_dimensions(model, options)
    return model


def _to_onnx(exported: torch.export.ExportedProgram, options: Options) -> ir.Model:
    try:
        program = torch.onnx.export(
            exported,
            dynamo=True,
            opset_version=options.opset,
            input_names=list(options.input_names),
            output_names=list(options.output_names),
            optimize=not options.keep_batch_norm,  # its rewrites merge BatchNormalization into convolutions
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", str(error))
        if operator is None:
            raise
        path = _module_of(operator[1], exported)
        raise no_form("dynamo", operator[1].replace(".", "::", 1), path, other="torchscript") from None
    assert program is not None
    model: ir.Model = program.model
    return model


def _tidy(model: ir.Model) -> None:
    """Optimize `model` in place as the exporter does, without its rewrites."""
    from onnxscript import optimizer

    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    optimizer.remove_unused_functions(model)


def _name_dimensions(model: ir.Model, options: Options) -> None:
    """Sizes that torch calls s40 get the names that were asked for, wherever they occur."""
    named: dict[str, str] = {}
    for value, axes in zip(model.graph.inputs, options.input_axes, strict=True):
        for axis, name in axes.items():
            symbol = None if value.shape is None else value.shape[axis]
            if isinstance(symbol, ir.SymbolicDim) and symbol.value is not None:
                named[str(symbol.value)] = name
    pattern = re.compile("|".join(rf"\b{re.escape(symbol)}\b" for symbol in named) or r"(?!)")
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape(
                [d if isinstance(d, int) else _renamed_dimension(d.value, pattern, named) for d in value.shape]
            )


def _renamed_dimension(dimension: str | None, pattern: re.Pattern[str], named: dict[str, str]) -> str | None:
    return None if dimension is None else pattern.sub(lambda found: named[found[0]], dimension)


def _values(model: ir.Model) -> list[ir.Value]:
    return [value for graph in model.graphs() for value in walk.values(graph)]


def explain(error: Exception, printed: str) -> UnsupportedError:
    """Return the exporter's `error` in one line, with the line of code that caused it."""
    text = str(error)
    caller = re.search(r'File "([^"]+)", line (\d+)', text) or re.search(r"Caused by: \(((?!_)\S+):(\d+) in", text)
    place = f" at {caller[1].rpartition('/')[2]}:{caller[2]}" if caller else ""
    return failed("dynamo", text or type(error).__name__, place)


def _module_of(operator: str, exported: torch.export.ExportedProgram) -> str:
    """Path of the submodule that calls `operator`, which a decomposition may have brought in."""
    for program in (exported, exported.run_decompositions()):
        for node in program.graph.nodes:
            if str(node.target).startswith(operator):
                stack = list(node.meta.get("nn_module_stack", {}).values())
                return str(stack[-1][0]) if stack else ""
    return ""
