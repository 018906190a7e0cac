"""torch.nn.Module in, float ONNX out: the function and the command ``export``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat import discover
from onnxqat._version import __version__
from onnxqat.errors import DataError, QatError, UnsupportedError, UsageError
from onnxqat.from_torch import options as settings
from onnxqat.from_torch import ties
from onnxqat.from_torch.call import Call, ExampleInputs, call_of
from onnxqat.from_torch.check import Checker
from onnxqat.from_torch.data_reads import DataRead, Watch
from onnxqat.from_torch.exporters import _scopes
from onnxqat.from_torch.options import BatchNorm, DynamicShapes, Options
from onnxqat.from_torch.quiet import Printed, quiet
from onnxqat.from_torch.untouched import evaluating
from onnxqat.graph import files_read, io
from onnxqat.passes import _base
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.types import Remark

Exporter = Literal["dynamo", "torchscript"]
EXPORTERS = "onnxqat.from_torch.exporters"
OPSET = 18

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Exported:
    """Result of :func:`run`.

    Attributes:
        model: the float model.
        exporter: which of torch's exporters wrote it.
        remarks: what is worth knowing.
    """

    model: ir.Model
    exporter: str
    remarks: tuple[Remark, ...]


@files_read.guard
def export(
    module: nn.Module,
    example_inputs: ExampleInputs,
    output: str | os.PathLike[str] | None = None,
    *,
    exporter: Exporter | None = None,
    batch_norm: BatchNorm = "fold",
    dynamic_batch: bool = True,
    dynamic_shapes: DynamicShapes | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = OPSET,
) -> onnx.ModelProto | Path:
    """Export a module in evaluation mode as a float ONNX model, and compare the two.

    Module, training flags, buffers and random generators are as before after the call. The model is run in onnxruntime
    on the example inputs and, where the batch is dynamic, on one sample more; each output may differ from the module's
    by 2^-12 of its largest magnitude (float16: 2^-6, bfloat16: 2^-4), integers not at all.

    Args:
        module: any module; wrappers of ``torch.compile``, DataParallel and DistributedDataParallel are taken off.
        example_inputs: a tensor, the arguments of ``forward`` as a sequence, or its keyword arguments as a mapping;
            lists and dicts of tensors inside are flattened, what is no tensor becomes a constant. Likewise for what
            ``forward`` returns, where numbers and None are left out.
        output: file to write.
        exporter: ``"dynamo"`` (needs onnxscript) or ``"torchscript"``; None takes the first of them that works.
        batch_norm: ``"fold"`` merges BatchNormalization into the layer in front of it, ``"keep"`` leaves it a node.
        dynamic_batch: axis 0 of each input that has as many samples as the first is called ``batch``; left fixed, with a
            remark, where the module itself takes no other batch.
        dynamic_shapes: more dynamic axes: by input name or in order, each a mapping from axis to name or a list of axes.
        input_names: of the graph; the arguments of ``forward`` by default.
        output_names: of the graph; the keys of a dict, ``output`` or ``output_0``, ``output_1``, ... by default.
        opset: version of ai.onnx to write.

    Returns:
        The model, or with `output` the path of the file. Remarks go to the logger ``onnxqat.from_torch.export``.

    Raises:
        UnsupportedError: ``export-failed``: names the operator, or the line that decides by the values of tensors.
        CheckError: ``parity-failed``: names the output that differs.
        DataError: ``data-shape``: the module does not run on the example inputs.
        UsageError: ``option-invalid``, ``name-unknown``, ``dependency-missing``.
    """
    found = run(
        module,
        example_inputs,
        exporter=exporter,
        batch_norm=batch_norm,
        dynamic_batch=dynamic_batch,
        dynamic_shapes=dynamic_shapes,
        input_names=input_names,
        output_names=output_names,
        opset=opset,
    )
    for remark in found.remarks:
        _log.warning("%s", remark.message + (f" ({', '.join(remark.nodes)})" if remark.nodes else ""))
    return io.to_proto(found.model) if output is None else io.save(found.model, output)


def run(
    module: nn.Module,
    example_inputs: ExampleInputs,
    *,
    exporter: str | None = None,
    batch_norm: str = "fold",
    dynamic_batch: bool = True,
    dynamic_shapes: DynamicShapes | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = OPSET,
) -> Exported:
    """Export as :func:`export` does, and return the remarks together with the model."""
    if batch_norm not in get_args(BatchNorm):
        raise UsageError("option-invalid", f"there is no batch_norm {batch_norm!r}", hint="fold or keep")
    call = call_of(module, example_inputs)
    with evaluating(call.module):
        runs, reads, remarks = _run_module(call, dynamic_batch)
        own = runs[0].output_names
        options = Options(
            opset=opset,
            keep_batch_norm=batch_norm == "keep",
            input_names=settings.names(input_names, call.names, "input names"),
            output_names=settings.names(output_names, _other_than(own, input_names or call.names), "output names"),
            input_axes=tuple(
                {**(batch if len(runs) > 1 else {}), **given}
                for batch, given in zip(
                    settings.batch_axes(call), settings.given_axes(call, dynamic_shapes), strict=True
                )
            ),
            output_axes=_varying(runs),
        )
        model, name = _first_that_works(call, options, exporter, runs, reads, remarks)
    model.metadata_props.update(
        {"onnxqat.version": __version__, "onnxqat.exporter": f"torch {torch.__version__} {name}"}
    )
    return Exported(model, name, tuple(remarks))


@dataclasses.dataclass(frozen=True)
class _Run:
    """One run of the module itself."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    output_names: tuple[str, ...]


def _run_module(call: Call, dynamic_batch: bool) -> tuple[list[_Run], tuple[DataRead, ...], list[Remark]]:
    """The module on the example inputs and on another batch, where it reads values, and what is worth a remark."""
    with _refusing(call.module):
        first, reads = _run_under_watch(call)
    runs = [first]
    remarks = [Remark(f"an assert is not part of the graph: {r}", source="export") for r in reads if r.in_assert]
    axes = settings.batch_axes(call)
    if dynamic_batch and any(axes):
        larger = tuple(torch.cat([x, x[:1]]) if a and len(x) else x for x, a in zip(call.inputs, axes, strict=True))
        try:
            runs.append(_run(call, larger))
        except Exception as error:  # whatever the module raises
            text = f"{type(call.module).__name__} takes no other batch size than that of the example ({_line(error)})"
            remarks.append(Remark(f"the batch size is fixed: {text}", source="export"))
    return runs, reads, remarks


def _run_under_watch(call: Call) -> tuple[_Run, tuple[DataRead, ...]]:
    """The module on the example inputs; where it does not run under watch, what it reads stays unknown."""
    with contextlib.suppress(Exception), Watch(call.module, call.inputs) as watch:
        return _run(call, call.inputs), watch.reads
    return _run(call, call.inputs), ()


def _run(call: Call, inputs: Sequence[Tensor]) -> _Run:
    named = call.named_outputs([x.clone() for x in inputs])  # a module may write into its inputs
    return _Run(tuple(inputs), tuple(t.clone() for _, t in named), tuple(name for name, _ in named))


@contextlib.contextmanager
def _refusing(module: nn.Module) -> Iterator[None]:
    try:
        yield
    except QatError:
        raise
    except Exception as error:  # whatever the module raises
        raise DataError(
            "data-shape",
            f"{type(module).__name__} does not run on the example inputs: {type(error).__name__}: {_line(error)}",
            hint="give what the module is called with, on its device",
        ) from None


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def _other_than(names: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Default names of outputs, apart from those of inputs and from each other."""
    found: list[str] = []
    for name in names:
        base, count = name, 0
        while name in taken or name in found:
            count += 1
            name = f"{base}_{count}" if count > 1 else f"{base}_output"
        found.append(name)
    return tuple(found)


def _varying(runs: list[_Run]) -> tuple[dict[int, str], ...]:
    """The axes of outputs that follow the batch."""
    if len(runs) < 2:
        return tuple({} for _ in runs[0].outputs)
    sizes = [next(x.shape[0] for x in run.inputs if x.ndim) for run in runs]
    found = []
    for first, second in zip(runs[0].outputs, runs[1].outputs, strict=True):
        pairs = enumerate(zip(first.shape, second.shape, strict=False))
        found.append({axis: settings.BATCH for axis, both in pairs if list(both) == sizes})
    return tuple(found)


def _first_that_works(
    call: Call,
    options: Options,
    exporter: str | None,
    runs: list[_Run],
    reads: tuple[DataRead, ...],
    remarks: list[Remark],
) -> tuple[ir.Model, str]:
    """Export with the first exporter that does it, with a remark where that is not the first; else raise its error."""
    wanted = discover.names(EXPORTERS) if exporter is None else [exporter]
    tried: list[QatError] = []
    for name in wanted:
        try:
            model, found = _export_with(discover.load(EXPORTERS, name), call, options, runs, reads)
        except QatError as error:
            tried.append(error)
            continue
        if tried:
            text = f"exporter {name!r} was taken, since {tried[0].message}"
            remarks.append(Remark(text, source="export"))
        remarks.extend(found)
        return model, name
    raise _clearest(tried)


def _clearest(errors: Sequence[QatError]) -> QatError:
    """Choose the error to raise: of code that decides by values, else of an exporter that ran, else the first."""
    by_value = (e for e in errors if "decides by" in e.message)
    ran = (e for e in errors if not isinstance(e, UsageError))
    return next(by_value, next(ran, errors[0]))


def _export_with(
    exporter: ModuleType, call: Call, options: Options, runs: list[_Run], reads: tuple[DataRead, ...]
) -> tuple[ir.Model, list[Remark]]:
    """Export with one exporter, and compare the file with the module on all runs.

    Reads of data by value are refused where the exporter traces: the file would hold the example's numbers.
    """
    exporter.check(options)
    frozen = [read for read in reads if not read.in_assert]
    if exporter.TRACES and frozen:
        raise _by_value(frozen)
    printed = Printed()
    try:
        with quiet() as printed:
            # torch.export takes a size of 1 for a constant, so the larger batch is the example.
            # A module may write into its inputs, so it gets copies.
            inputs = tuple(tensor.clone() for tensor in runs[-1].inputs)
            model = exporter.convert(dataclasses.replace(call, inputs=inputs), options)
    except QatError:
        raise
    except Exception as error:  # torch raises what it likes
        raise _by_value(frozen) if frozen else exporter.explain(error, printed.text) from None
    _scopes.strip(model)
    model = io.load(model)
    if not options.keep_batch_norm:
        _base.rewrite(model, [FoldBatchnorm()])
    checker = Checker(model)
    for done in runs:
        checker.compare(done.inputs, done.outputs)
    return model, [*checker.remarks, *ties.parted(call.module, model)]


def _by_value(reads: Sequence[DataRead]) -> UnsupportedError:
    more = f" and {len(reads) - 1} more places" if len(reads) > 1 else ""
    return UnsupportedError(
        "export-failed",
        f"the module decides by the values of tensors, which a graph cannot: {reads[0]}{more}",
        hint="compute both sides and take torch.where, or keep an If: torch.cond with exporter 'dynamo', "
        "torch.jit.script with 'torchscript'",
    )
