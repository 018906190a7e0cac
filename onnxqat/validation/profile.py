"""Sensitivity analysis: cost of each quantizer alone, and of all of them together, layer by layer.

Quantizing one tensor at a time and measuring the output ranks layers by sensitivity (Wu et al., "Integer Quantization
for Deep Learning Inference: Principles and Empirical Evaluation", 2020, "Partial Quantization"). That tells where mixed
precision (:attr:`onnxqat.placement.table_overrides.Overrides.node_bits`) or float is worth its price.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import metrics
from onnxqat.data import non_finite_data
from onnxqat.data import preprocess as lines
from onnxqat.data.recorded import Recorded, remarks_on_float
from onnxqat.data.sources import as_array
from onnxqat.errors import ModelError
from onnxqat.graph import io, qdq, quantized_forms, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.metrics._closeness import Closeness
from onnxqat.runtime import broken_model
from onnxqat.runtime.session import Session, main_values
from onnxqat.types import Remark, Role
from onnxqat.validation.check_inputs import check_alike, name_of, open_data
from onnxqat.validation.torch_run import as_input

if TYPE_CHECKING:
    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
    from onnxqat.data.preprocess import Preprocess

Array = npt.NDArray[Any]
LIMIT = 64
"""Samples looked at by default: each quantizer takes a forward pass of its own."""


@dataclasses.dataclass(frozen=True)
class LayerProfile:
    """One quantizer.

    *Alone* compares the model's outputs with only this quantizer on against those with none on, for the output that
    suffers most. *All* compares the quantized tensor with all quantizers on against the float tensor.

    Attributes:
        tensor: the float tensor that it quantizes.
        role: activation, weight or bias.
        node: its first reader.
        grid: integer type and codes.
        alone_db: signal to noise of the output; infinite where nothing changes.
        alone_cosine: cosine between the two outputs.
        alone_mse: mean squared difference of the output.
        all_db: signal to noise of the tensor.
        all_cosine: cosine between quantized and float tensor.
        all_mse: mean squared difference of the tensor.
        all_steps: largest difference of the tensor in LSB of its own grid.
        reference: where the float tensor comes from: ``float model``, or ``quantizers off`` where that has none of
            this name.
        alone_score: score of the model with only this quantizer on; None where no score was asked for.
    """

    tensor: str
    role: Role
    node: str
    grid: str
    alone_db: float
    alone_cosine: float
    alone_mse: float
    all_db: float
    all_cosine: float
    all_mse: float
    all_steps: float
    reference: str
    alone_score: float | None = None


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """Result of :func:`profile`.

    Attributes:
        float_model: path, or what messages call it.
        qdq_model: the same.
        data: name of the data source.
        samples: number of samples.
        layers: one per quantizer, the one that costs most alone first.
        output_db: signal to noise of the worst output with all quantizers on.
        remarks: what is worth knowing.
        score: of the float model and of the model with all quantizers on; None where none was asked for.
        backend: the table that the quantized model was made with, where its file says so.
        source: data on the command line, for the next one; empty where they are Python objects.
        preprocess: preprocessing line of images.
    """

    float_model: str
    qdq_model: str
    data: str
    samples: int
    layers: tuple[LayerProfile, ...]
    output_db: float
    remarks: tuple[Remark, ...]
    score: metrics.Scored | None = None
    backend: str | None = None
    source: str = ""
    preprocess: str = ""


@broken_model.guard("float_model", "qdq_model")
def profile(
    float_model: io.ModelSource,
    qdq_model: io.ModelSource,
    data: Any = None,
    *,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = LIMIT,
    random_data: bool = False,
    score: metrics.ScoreSource | None = None,
    labels: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> ProfileReport:
    """Measure the sensitivity to every quantizer of a QDQ model, alone and with all others on.

    It runs in torch, one forward pass a quantizer and batch; the float model runs in onnxruntime. Neither is changed.

    Args:
        float_model: the original: path or model.
        qdq_model: the quantized model, of this or any other tool.
        data: what :func:`onnxqat.data.data.open_data` takes.
        preprocess: preprocessing line for image folders.
        batch_size: samples a batch.
        limit: largest number of samples.
        random_data: with no `data`, use random numbers.
        score: metric or function of a :class:`onnxqat.metrics.Predictor`, computed with each quantizer alone too, a pass
            over the data for each; a function of a file cannot be. See :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-not-quantized``, ``model-invalid``, and what :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing``, and what the data source raises.
        UnsupportedError: ``operator-unsupported``: the bridge does not have an operator.
        UsageError: ``name-unknown``, ``score-failed``, ``score-output``.
    """
    original, quantized = io.load(float_model), io.load(qdq_model)
    if not qdq.is_quantized(quantized):
        raise quantized_forms.refusal(quantized, name_of(qdq_model)) or ModelError(
            "model-not-quantized", f"{name_of(qdq_model)} holds no quantizers", hint="the quantized model comes second"
        )
    check_alike(original, quantized)
    recorded = Recorded.of(quantized, qdq_model)
    opened = open_data(original, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded)
    work = _Work(original, quantized)
    reference = metrics.Predictor.of_session(work.session, float_model)
    chosen = None if score is None else metrics.resolve(score, data=opened, reference=reference, labels=labels)
    for done, (feeds, _) in enumerate(opened.labelled(), start=1):
        work.batch(feeds, f"batch {done - 1} of {opened.name}")
        if progress is not None:
            progress(done, opened.batches)
    scored = None
    if chosen is not None:
        runs = {"float": reference, "quantized": work.predictor(work.all, "the quantized module")}
        scored = metrics.compare(chosen, runs)
        for meter in work.meters:
            meter.score = chosen(work.predictor([meter.module], f"the module with {meter.target} alone"))
    return ProfileReport(
        float_model=name_of(float_model),
        qdq_model=name_of(qdq_model),
        data=opened.name,
        samples=work.samples,
        layers=tuple(sorted((m.result() for m in work.meters), key=lambda layer: layer.alone_db)),
        output_db=min((d.sqnr_db for d in work.outputs.values()), default=float("nan")),
        remarks=(*remarks_on_float(quantized, float_model, original), *work.remarks, *opened.remarks),
        score=scored,
        backend=quantized.metadata_props.get("onnxqat.backend"),
        source=os.fspath(data) if isinstance(data, (str, os.PathLike)) else "",
        preprocess="" if opened.transform is None else lines.line(opened.transform.steps),
    )


class _Meter:
    """The sums of one quantizer."""

    def __init__(self, quantizer: Quantizer, module: FakeQuantize, reference: str | None) -> None:
        self.quantizer, self.module, self.reference = quantizer, module, reference
        self.target = str(quantizer.outputs[0].name)
        rank = query.rank(quantizer.outputs[0]) or query.rank(quantizer.input) or 0
        self.all = Closeness(_steps(quantizer, rank))
        self.alone: dict[str, Closeness] = {}
        self.score: float | None = None

    def result(self) -> LayerProfile:
        """Return the profile of the quantizer over all batches so far."""
        grid = self.quantizer.qparams.qtype
        worst = min(self.alone.values(), key=lambda c: c.sqnr_db, default=Closeness())
        readers = [user for user, _ in self.quantizer.outputs[0].uses()]
        return LayerProfile(
            tensor=str(self.quantizer.tensor),
            role=self.quantizer.role,
            node=query.label(readers[0]) if readers else "",
            grid=f"{grid.storage} {grid.quant_min}..{grid.quant_max}",
            alone_db=worst.sqnr_db,
            alone_cosine=worst.cosine,
            alone_mse=worst.mse,
            all_db=self.all.sqnr_db,
            all_cosine=self.all.cosine,
            all_mse=self.all.mse,
            all_steps=self.all.steps or 0.0,
            reference="quantizers off" if self.reference is None else "float model",
            alone_score=self.score,
        )


def _steps(quantizer: Quantizer, rank: int) -> Array:
    scale, axis = np.asarray(quantizer.qparams.scale, np.float64), quantizer.qparams.axis
    if scale.ndim != 1 or axis is None:
        return scale if scale.ndim == 0 else np.asarray(scale.max())
    return scale.reshape([-1 if i == axis % rank else 1 for i in range(rank)]) if rank else scale


class _Work:
    """The module, the session and the sums; sees one batch at a time."""

    def __init__(self, original: ir.Model, quantized: ir.Model) -> None:
        from onnxqat.bridge.importing.importer import capture, to_torch
        from onnxqat.bridge.quantizers import state

        self.remarks: list[Remark] = []
        self.module = to_torch(quantized).eval()
        self.all = [q for _, q in state.quantizers(self.module)]
        calls = {n.name: str(n.target) for n in self.module.graph.nodes if n.op == "call_module"}
        known = main_values(original.graph)
        self.meters: list[_Meter] = []
        for quantizer in qdq.quantizers(quantized, every=True):
            path = calls.get(self.module.tensor_nodes.get(str(quantizer.outputs[0].name), ""))
            if path is None:
                text = "not measured: the bridge computes it with its neighbours"
                self.remarks.append(Remark(text, (str(quantizer.tensor),), "profile"))
                continue
            reference = str(quantizer.input.name) if quantizer.role == "activation" else None
            found: Any = self.module.get_submodule(path)
            self.meters.append(_Meter(quantizer, found, reference if reference in known else None))
        shared = list(dict.fromkeys(m.reference for m in self.meters if m.reference is not None))
        self.session = Session(original, optimize=False, tensors=shared, what="the float model")
        self.shared = shared
        self.capture = capture(self.module, list(dict.fromkeys(m.target for m in self.meters)))
        self.outputs: dict[str, Closeness] = {}
        self.samples = 0

    def predictor(self, on: Sequence[FakeQuantize], name: str) -> metrics.Predictor:
        """The module with the quantizers `on` in effect and no others, as a score sees it."""

        def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
            return self._run(feeds, on=on, inner=False)[0]

        return metrics.Predictor(run, self.session.inputs, self.session.output_names, name=name)

    def batch(self, feeds: Mapping[str, Array], called: str) -> None:
        """Measure on one batch."""
        plain, off = self._run(feeds, on=())
        non_finite_data.check(feeds, plain, called)
        outputs, tensors = self._run(feeds, on=self.all)
        references = dict(feeds) | self.session.run(feeds, self.shared)
        self._add(self.outputs, outputs, plain)
        for meter in self.meters:
            reference = off[meter.target] if meter.reference is None else references[meter.reference]
            if reference.shape == tensors[meter.target].shape:
                meter.all.update(tensors[meter.target], reference)
            self._add(meter.alone, self._run(feeds, on=[meter.module], inner=False)[0], plain)
        first = next(iter(feeds.values()))
        self.samples += first.shape[0] if first.ndim else 1

    def _add(self, sums: dict[str, Closeness], found: Mapping[str, Array], reference: Mapping[str, Array]) -> None:
        for name, value in found.items():
            if value.dtype.kind == "f" and value.shape == reference[name].shape:
                sums.setdefault(name, Closeness()).update(value, reference[name])

    def _run(
        self, feeds: Mapping[str, Array], *, on: Sequence[FakeQuantize], inner: bool = True
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Outputs and, with `inner`, quantized tensors, with the quantizers `on` in effect and no others."""
        import torch

        for quantizer in self.all:
            quantizer.state = "float"
        for quantizer in on:
            quantizer.state = "quantize"
        pairs = zip(self.module.input_names, self.module.input_types, strict=True)
        arguments = [as_input(torch.tensor(feeds[name]), kind) for name, kind in pairs]
        with torch.inference_mode():
            result, found = self.capture(*arguments) if inner else (self.module(*arguments), {})
        outputs = result if isinstance(result, tuple) else (result,)
        named = dict(zip(self.module.output_names, outputs, strict=True))
        return (
            {name: as_array(value) for name, value in named.items()},
            {name: as_array(value) for name, value in found.items()},
        )
