"""The public function :func:`model_report`: all facts on one quantized model in one report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxqat import notebook_progress
from onnxqat._version import __version__
from onnxqat.data.preprocess import Preprocess
from onnxqat.data.recorded import Recorded
from onnxqat.errors import UsageError
from onnxqat.graph import io, provenance
from onnxqat.graph.external import external_files
from onnxqat.graph.layers import LAYERS
from onnxqat.linting import explain, inspect
from onnxqat.linting.context import LintContext, tensor_of
from onnxqat.linting.lint import opened
from onnxqat.report.model_report import fronts, joined, measured, schema
from onnxqat.report.model_report.meters import parameters, shares
from onnxqat.report.model_report.network import Network, network
from onnxqat.report.model_report.result import ModelReport
from onnxqat.report.model_report.results_read import Result, read_results
from onnxqat.report.model_report.training_log import training
from onnxqat.runtime import broken_model
from onnxqat.validation.check_inputs import open_data

Progress = Callable[[int, "int | None"], None]


@notebook_progress.shown("report")
@broken_model.guard("model")
def model_report(
    model: io.ModelSource,
    data: Any = None,
    *,
    float_model: io.ModelSource | None = None,
    before: io.ModelSource | None = None,
    variants: Mapping[str, io.ModelSource] | None = None,
    results: Sequence[str | os.PathLike[str]] = (),
    preprocess: str | Preprocess | None = None,
    batch_size: int = 32,
    limit: int | None = 64,
    random_data: bool = False,
    latency: bool = False,
    progress: Progress | None = None,
) -> ModelReport:
    """Gather all that is known of a QDQ file: graph, quantizers, costs, training, targets.

    Without data the report has scales, sizes and histograms of weights; with data also histograms of activations, and
    with a float model the noise at each tensor.

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        data: what is run through it; see :func:`onnxqat.data.data.open_data`.
        float_model: the model that it was made from; None: the one that it records, where that is found.
        before: the same file before training, whose scales and histograms stand beside those of `model`.
        variants: other models by name, to be compared in size, cost and noise.
        results: JSON of ``profile``, ``validate``, ``handoff``, ``auto`` and ``mixed-precision``, ``log.jsonl`` of a
            training run, ``search.json`` of ``auto``, or a folder that holds one of the last two, or a bundle of ``handoff``.
        preprocess: preprocessing line of images.
        batch_size: largest number of samples in a batch; see :func:`onnxqat.validation.check_inputs.open_data`.
        limit: largest number of samples.
        random_data: with no `data`, run random numbers.
        latency: measure the time of one batch of each model in onnxruntime, in one thread.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-not-runnable``, and what :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-not-found``, ``data-format`` of a result, and what the data source raises.
        UsageError: ``option-invalid``: latency without data, or two variants of one name.
    """
    read = read_results(results)
    file = opened(io.load(model).clone())
    recorded = Recorded.of(file.model, model)
    original = float_model if float_model is not None else provenance.find_float(file.model, model)
    remarks: list[str] = []
    others = _others(original, before, variants or {})
    files = {name: opened(io.load(source).clone()) for name, source in others.items()}
    nets = network(file)
    explained = explain.explain(file.model)
    wanted = data is not None or random_data
    if latency and not wanted:
        raise UsageError("option-invalid", "no data to measure the time on", hint="give --data or --random-data")
    found = _Measured({}, {}, 0, "", [])
    watched = {"": measured.Watched(file, [n.tensor for n in nets.nodes])}
    if before is not None:
        watched["before"] = measured.Watched(files["before"])
    if wanted:
        opened_data = open_data(
            file.model, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded
        )
        found = _measure(opened_data, file, files, watched, latency=latency, progress=progress)
    sources = {"": model, **others}
    report = schema.ModelReport(
        made_by=__version__,
        title=io.name_of(model),
        graph=str(file.model.graph.name or ""),
        data=found.data,
        samples=found.samples,
        variants=[
            _variant(n, sources[n], each, found, nets if not n else None) for n, each in {"": file, **files}.items()
        ],
        nodes=nets.nodes,
        edges=nets.edges,
        quantizers=_quantizers(file, nets, explained.pairs, watched, files.get("before"), found.noise),
        remarks=[*remarks, *found.remarks],
    )
    # Of a float model all nodes are float, which needs no reason.
    reasons = {each.node: each.reason for each in explained.float_nodes} if explained.pairs else {}
    _finish(report, reasons, found, read)
    return ModelReport(report)


def _others(
    original: io.ModelSource | None, before: io.ModelSource | None, variants: Mapping[str, io.ModelSource]
) -> dict[str, io.ModelSource]:
    """Models beside the one that is reported on, by name.

    Raises:
        UsageError: ``option-invalid``.
    """
    fixed = {name: source for name, source in (("float", original), ("before", before)) if source is not None}
    twice = sorted({*fixed, ""} & set(variants))
    if twice:
        raise UsageError("option-invalid", f"{twice[0] or 'a name that is empty'!r} is no name of a variant")
    return {**fixed, **variants}


@dataclasses.dataclass
class _Measured:
    """Figures of one pass over the data.

    Attributes:
        noise: signal to noise by tensor.
        by_model: signal to noise of the output, and milliseconds, by name of the model.
        samples: their number.
        data: name of the source.
        remarks: of it.
    """

    noise: dict[str, float]
    by_model: dict[str, tuple[float | None, float | None]]
    samples: int
    data: str
    remarks: list[str]


def _measure(
    data: Any,
    file: LintContext,
    files: Mapping[str, LintContext],
    watched: dict[str, measured.Watched],
    *,
    latency: bool,
    progress: Progress | None,
) -> _Measured:
    """Run the models over `data`, all batches once."""
    original = files.get("float")
    pairs: dict[str, tuple[measured.Watched, measured.NoiseMeter]] = {}
    if original is not None:
        for name, each in files.items():
            if name != "float" and name not in watched:
                watched[name] = measured.Watched(each)
        for name, each_watched in watched.items():
            names = each_watched.names if not name else []
            pairs[name] = (each_watched, measured.NoiseMeter(original.model, names))
    samples = measured.run_over(data, list(watched.values()), list(pairs.values()), progress)
    times: dict[str, float] = {}
    if latency:
        feeds = next(iter(data))
        times = {name: measured.milliseconds(each.model, feeds) for name, each in {"": file, **files}.items()}
    outputs = {name: meter.output_db() for name, (_, meter) in pairs.items()}
    noise = pairs[""][1].result() if pairs else {}
    by_model = {name: (outputs.get(name), times.get(name)) for name in {"": file, **files}}
    return _Measured(noise, by_model, samples, data.name, [remark.message for remark in data.remarks])


def _variant(
    name: str, source: io.ModelSource, file: LintContext, found: _Measured, known: Network | None
) -> schema.Variant:
    """Build the line of one model in the comparison; its graph is built where it is not `known`."""
    described = inspect.inspect(file.model)
    nodes = (known or network(file)).nodes
    output_db, time = found.by_model.get(name, (None, None))
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else ""
    layers = [node for node in nodes if node.op in LAYERS]
    return schema.Variant(
        name=name or "this file",
        file=path,
        form=described.form,
        backend=str(file.model.metadata_props.get("onnxqat.backend") or ""),
        file_bytes=_file_bytes(path, source),
        weight_bytes=sum(node.weight_bytes or 0 for node in nodes),
        macs=sum(node.macs or 0 for node in nodes),
        multiply_bits=sum(node.multiply_bits or 0 for node in nodes),
        quantizers=len(file.quantizers),
        float_layers=sum(node.arithmetic == "float" for node in layers),
        output_db=schema.decibel(output_db),
        milliseconds=time,
    )


def _file_bytes(path: str, source: io.ModelSource) -> int | None:
    if not path or not Path(path).is_file():
        return None
    files = [Path(path), *external_files(io.load(source))]
    return sum(file.stat().st_size for file in files if file.is_file())


def _quantizers(
    file: LintContext,
    nets: Network,
    pairs: Sequence[explain.Pair],
    watched: Mapping[str, measured.Watched],
    before: LintContext | None,
    noise: Mapping[str, float],
) -> list[schema.Quantizer]:
    """Build the entries of all quantizers, in graph order."""
    shown = shares([q.qparams.scale.size for q in file.quantizers])
    earlier = {}
    if before is not None:
        meters = watched["before"].meters
        earlier = {(tensor_of(q), q.role): (q, m) for q, m in zip(before.quantizers, meters, strict=True)}
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nets.nodes):
        for quantizer in node.reads:
            readers.setdefault(quantizer, []).append(number)
    found = []
    for i, (q, pair, meter) in enumerate(zip(file.quantizers, pairs, watched[""].meters, strict=True)):
        old = earlier.get((tensor_of(q), q.role))
        entry = schema.Quantizer(
            tensor=pair.tensor,
            role=q.role,
            grid=pair.grid,
            bits=q.qparams.qtype.bits,
            granularity=pair.granularity,
            rule=pair.rule,
            maker=None if q.stored else nets.makers.get(q.tensor),
            readers=readers.get(i, []),
            now=parameters(q.qparams, shown[i], meter.result()),
            before=None if old is None else parameters(old[0].qparams, shown[i], old[1].result()),
            float_db=schema.decibel(noise.get(q.tensor)),
        )
        found.append(entry)
    return found


def _finish(report: schema.ModelReport, reasons: Mapping[str, str], found: _Measured, read: Sequence[Result]) -> None:
    """Put noise, reasons and the results of commands to the nodes."""
    for node in report.nodes:
        node.float_db = schema.decibel(found.noise.get(node.tensor))
        node.reason = reasons.get(node.name, "")
    joined.join(report, read)
    logs = [result for result in read if result.kind == "log"]
    if logs:
        report.training = training(logs[-1].content)
    report.fronts = fronts.fronts(read, _multiply_bits)


def _multiply_bits(path: Path) -> float:
    return float(sum(node.multiply_bits or 0 for node in network(opened(io.load(path).clone())).nodes))
