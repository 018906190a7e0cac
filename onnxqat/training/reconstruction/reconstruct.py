"""Reconstruct a QDQ model block by block: cut it, learn one block after the other, write back."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, overload

import numpy as np
import torch
from torch import Tensor, fx, nn

from onnxqat import former_names, notebook_progress
from onnxqat.bridge.export.write_back import put_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import quantizers, state
from onnxqat.data.inputs import of_graph
from onnxqat.data.preprocess import Preprocess, parse
from onnxqat.data.recorded import Recorded
from onnxqat.displayed import Displayed
from onnxqat.errors import DataError, ModelError, UsageError
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.runtime import broken_model
from onnxqat.training import methods
from onnxqat.training.data import batches
from onnxqat.training.execution import devices
from onnxqat.training.execution.in_float32 import Source
from onnxqat.training.objective import original as originals
from onnxqat.training.objective.teachers import check_others
from onnxqat.training.reconstruction.blocks import Block, Order, Region, regions
from onnxqat.training.reconstruction.cache import Cache
from onnxqat.training.reconstruction.execution import GraphRunner
from onnxqat.training.reconstruction.float_values import FloatValues
from onnxqat.training.reconstruction.optimize import Samples, Settings, learn
from onnxqat.types import Remark

MadeT = TypeVar("MadeT")
P = ParamSpec("P")

Recipe = Literal["adaround", "brecq", "qdrop", "lsq"]


@dataclasses.dataclass(frozen=True)
class _Recipe:
    order: Order
    drop: float
    scales: bool
    weights: bool = False


RECIPES: dict[str, _Recipe] = {
    "adaround": _Recipe("layer", 0.0, scales=False),
    "brecq": _Recipe("block", 0.0, scales=True),
    "qdrop": _Recipe("block", 0.5, scales=True),
    "lsq": _Recipe("block", 0.0, scales=True, weights=True),
}


@dataclasses.dataclass(frozen=True)
class BlockReport:
    """Result of one block.

    Attributes:
        tensor: ONNX name of the tensor at its end.
        layers: ONNX names of the weights that were rounded.
        before: mean squared error at its end with nearest rounding.
        after: the same with the learned roundings and scales, which are kept where it is smaller.
    """

    tensor: str
    layers: tuple[str, ...]
    before: float
    after: float

    @property
    def kept(self) -> bool:
        """Check whether the learned roundings and scales are in the file."""
        return self.after < self.before


@dataclasses.dataclass
class ReconstructResult(Displayed, Generic[MadeT]):
    """Result of a reconstruction.

    Attributes:
        model: the model, of the kind that was given; the output path when a path was given.
        module: the module with the values that were written, in eval mode.
        blocks: a report for each block, in order.
        samples: number of samples used.
        seconds: wall time.
        remarks: what is worth knowing.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_reconstruct:from_reconstruct"

    model: MadeT
    module: OnnxModule
    blocks: tuple[BlockReport, ...]
    samples: int
    seconds: float
    remarks: tuple[Remark, ...] = ()


class _Reconstruct(Protocol[P]):
    """:func:`reconstruct` by the kind of its model; its other parameters are stated once, where it is defined."""

    @overload
    def __call__(self, model: io.ModelT, *args: P.args, **kwargs: P.kwargs) -> ReconstructResult[io.ModelT]: ...

    @overload
    def __call__(self, model: str | os.PathLike[str], *args: P.args, **kwargs: P.kwargs) -> ReconstructResult[Path]: ...


def _by_kind(function: Callable[Concatenate[io.ModelSource, P], ReconstructResult[Any]]) -> _Reconstruct[P]:
    return cast("_Reconstruct[P]", function)


@_by_kind
@former_names.renamed(samples="limit")
@notebook_progress.shown("reconstruct")
@broken_model.guard("model")
def reconstruct(
    model: io.ModelSource,
    data: Any,
    *,
    preprocess: str | Preprocess | None = None,
    teacher: Any = None,
    recipe: Recipe = "qdrop",
    limit: int = 512,
    batch_size: int = 32,
    worst_blocks: int | None = None,
    iterations: int = 1000,
    learning_rate: float = 0.01,
    scale_learning_rate: float = 0.001,
    seed: int = 0,
    device: str | torch.device | None = None,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> ReconstructResult[Any]:
    """Round the weights of a calibrated QDQ model so that each block gives what it gives in float; no labels.

    Blocks are learned in the order of the graph, each from what the quantized ones in front of it give it and what the
    float network gives at its end. The better of before and after is kept for each. Weights stay within a quantization
    step of what they were, but for ``"lsq"``.

    Args:
        model: QDQ model with float weights: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not
            changed.
        data: what :func:`onnxqat.training.data.batches.make` takes; labels are not looked at.
        preprocess: preprocessing line for a folder of images.
        teacher: float model whose tensors the blocks imitate, as far as they are in the file by name; None: the one that
            the file was made from where it is found, else the file with its quantizers off.
        recipe: ``"adaround"``: layer by layer, activations as calibrated (Nagel et al., ICML 2020); ``"brecq"``: block
            by block, scales of activations learn too (Li et al., ICLR 2021); ``"qdrop"``: so that half of the
            activations stay float at random (Wei et al., ICLR 2022); ``"lsq"``: block by block, weights, biases and all
            scales learn, with straight-through gradients (Esser et al., ICLR 2020; block-wise as in Chen et al.,
            "EfficientQAT", 2024).
        limit: largest number of samples to use.
        batch_size: samples per step, where the model does not prescribe it.
        worst_blocks: number of blocks to learn, those that add most error to what they give, relative to its power; None:
            all.
        iterations: steps for each block.
        learning_rate: of the roundings, for Adam; with ``"lsq"`` of the weights, in quantization steps.
        scale_learning_rate: of the scales that learn, and of biases, relative to their size.
        seed: of the choice of samples and of torch's random generator, which is as before afterwards.
        device: None: CUDA where there is one.
        output: where to write the model; needed when `model` is a path.
        progress: called with blocks done and their number.

    Raises:
        ModelError: ``model-not-quantized`` when no weight has a quantizer; the file's errors.
        UsageError: ``option-invalid``: an option, or weights that are stored as integers.
        DataError: what is wrong with the data.
    """
    counts = {"limit": limit, "iterations": iterations, "worst_blocks": worst_blocks}
    _check(model, recipe, counts, seed, output)
    start = time.perf_counter()
    file = Source(model)
    graph = file.graph
    chosen = RECIPES[recipe]
    weights = None if chosen.weights else "adaround"
    factory = methods.factory("qdrop" if chosen.drop else "lsq", weights=weights, limit_steps=False)
    module = to_torch(graph, quantizer_factory=factory)
    _check_quantizers(module)
    place = devices.place(device)
    module.to(place).eval()
    inputs = of_graph(graph.graph)
    line = parse(preprocess) if isinstance(preprocess, str) else preprocess
    recorded, remarks = Recorded.of(graph, model), list[Remark]()
    data = recorded.data_or(data, remarks)
    if data is None:
        raise DataError("data-missing", "there is no data", hint="give --data")
    source = batches.make(data, None, inputs, batch_size=batch_size, seed=seed, preprocess=line, recorded=recorded)
    remarks.extend(batches.remarks_of(source))
    check_others([teacher], model)
    original = originals.given(teacher, graph) if teacher is not None else originals.find(graph, model)
    remarks.extend(original.remarks)
    held = _batches(source, module, limit)
    settings = Settings(
        iterations=iterations,
        learning_rate=learning_rate,
        scale_learning_rate=scale_learning_rate if chosen.scales else 0.0,
        drop=chosen.drop,
        seed=seed,
        weights=chosen.weights,
    )
    with devices.seeded(seed, place), scratch() as folder:
        run = _Run(module, held, settings, place, folder, original.module)
        reports = run.all(chosen.order, worst_blocks, progress)
        remarks.extend(run.remarks)
    tuned = put_back(module.cpu(), file.target, output, metadata={"onnxqat.method": recipe})
    tuned = file.like_given(tuned, output)
    count = sum(_size(batch) for batch in held)
    seconds = time.perf_counter() - start
    return ReconstructResult(tuned, module, tuple(reports), count, seconds, (*file.remarks, *remarks))


def _check(model: io.ModelSource, recipe: str, counts: dict[str, int | None], seed: int, output: Any) -> None:
    if isinstance(model, (str, os.PathLike)) and output is None:
        raise UsageError("option-invalid", f"no output path for the reconstructed {os.fspath(model)!r}")
    if recipe not in get_args(Recipe):
        raise UsageError("option-invalid", f"there is no recipe {recipe!r}", hint=", ".join(get_args(Recipe)))
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError("option-invalid", f"{name} is {value}; it must be at least 1")
    devices.check_seed(seed)


def _check_quantizers(module: OnnxModule) -> None:
    weights = [q for _, q in quantizers(module) if q.role == "weight"]
    if not weights:
        raise ModelError(
            "model-not-quantized", "no weight of the model has a quantizer", hint="first: onnxqat insert-qdq"
        )
    if all(q.codes_name is not None for q in weights):
        raise UsageError(
            "option-invalid",
            "the model holds integer weights: there is no choice left how to round them",
            hint="reconstruct the file that insert-qdq writes, before handoff",
        )


def _batches(source: batches.Batches, module: OnnxModule, limit: int) -> list[tuple[Tensor, ...]]:
    """Inputs in batches of one shape, `limit` samples at most; what does not fill a batch is left out."""
    held: list[tuple[Tensor, ...]] = []
    count = 0
    for batch in source.epoch(0):
        values = tuple(batch.inputs[name] for name in module.input_names)
        if held and [v.shape for v in values] != [v.shape for v in held[0]]:
            continue
        if held and count + _size(values) > limit:
            break
        held.append(values)
        count += _size(values)
    if not held:
        raise DataError("data-missing", "the data gave no batch")
    return held


def _size(batch: Sequence[Tensor]) -> int:
    return int(batch[0].shape[0]) if batch and batch[0].ndim else 1


@contextmanager
def _exchanged(values: dict[nn.Parameter, Tensor]) -> Iterator[None]:
    """Give parameters other values for a while: the float network is that of the weights before they learned."""
    learned = {parameter: parameter.data for parameter in values}
    for parameter, value in values.items():
        parameter.data = value
    try:
        yield
    finally:
        for parameter, value in learned.items():
            parameter.data = value


class _Run:
    """One reconstruction: what every batch is at the cut that has been reached, quantized and in float."""

    def __init__(
        self,
        module: OnnxModule,
        held: Sequence[tuple[Tensor, ...]],
        settings: Settings,
        device: torch.device,
        folder: Path,
        teacher: OnnxModule | None,
    ) -> None:
        self.module, self.settings, self.device, self.folder = module, settings, device, folder
        self.count = len(held)
        self.runner = GraphRunner(module, [value.to(device) for value in held[0]])
        self.quantized = {node: self._cache() for node in self.runner.inputs}
        self.floating = self.inputs = self.quantized
        for index, batch in enumerate(held):
            for node, value in zip(self.runner.inputs, batch, strict=True):
                self.quantized[node].store(index, value)
        self.given = {p: p.detach().clone() for p in module.parameters()} if settings.weights else {}
        self.theirs = None if teacher is None else FloatValues(teacher.to(device), self.runner, held)
        self.remarks: list[Remark] = []

    def all(
        self, order: Order, worst: int | None, progress: Callable[[int, int | None], None] | None
    ) -> list[BlockReport]:
        """Learn every block and move on; leave the module as it was where its outputs are no better for it.

        What a block gains can be lost behind it: a layer that made up for the error of those in front does so no more.
        """
        kept = copy.deepcopy(self.module.state_dict())
        whole = Region(tuple(self.runner.inputs), tuple(filter(self.runner.is_float, self.runner.outputs)), ())
        wanted = self._in_float(whole, whole.exits)
        before = self._error(whole, wanted)
        reports = self._learn_all(order, worst, progress)
        after = self._error(whole, wanted)
        if after > before:
            self.module.load_state_dict(kept)
            text = (
                f"the file is as it was: the error at its outputs, {100 * before:.3g} % of the signal, was "
                f"{100 * after:.3g} % with what the blocks had learned"
            )
            self.remarks.append(Remark(text, source="reconstruct"))
            reports = [dataclasses.replace(report, after=report.before) for report in reports]
        return reports

    def _error(self, whole: Region, wanted: dict[fx.Node, Cache]) -> float:
        """Squared error at the outputs of the quantized module, relative to the power of each, on all samples."""
        start = {node: self.inputs[node] for node in whole.entries}
        return self._error_of(self._values(whole, whole.exits, start), wanted)

    def _error_of(self, found: dict[fx.Node, Cache], wanted: dict[fx.Node, Cache]) -> float:
        """Squared error of some values, relative to the power of each wanted one, summed over the nodes."""
        total = 0.0
        for node, cache in found.items():
            noise, power = 0.0, float(np.finfo(np.float64).tiny)
            for index in range(self.count):
                target = wanted[node].batch(index, self.device).double()
                noise += float((cache.batch(index, self.device).double() - target).square().sum())
                power += float(target.square().sum())
            total += noise / power
        return total

    def _learn_all(
        self, order: Order, worst: int | None, progress: Callable[[int, int | None], None] | None
    ) -> list[BlockReport]:
        cut = regions(self.runner, order)
        if worst is not None:
            cut = self._worst(cut, worst)
        total = sum(len(region.blocks) for region in cut)
        reports: list[BlockReport] = []
        done: set[int] = set()
        for region in cut:
            for block in region.blocks:
                fresh = [q for q in block.layers if id(q) not in done and any(p.requires_grad for p in q.parameters())]
                if fresh:
                    done.update(map(id, fresh))
                    reports.append(self._learn(region, dataclasses.replace(block, layers=tuple(fresh))))
                if progress is not None:
                    progress(len(reports), total)
            if region is not cut[-1]:
                self._advance(region)
        return reports

    def _worst(self, cut: Sequence[Region], count: int) -> list[Region]:
        """The regions of `cut` with those `count` blocks of all alone that add most error, from float inputs."""
        added: dict[int, float] = {}
        for region in cut:
            for block in region.blocks:
                part = dataclasses.replace(region, entries=block.entries)
                start = self.floating if block.entries == region.entries else self._in_float(region, block.entries)
                wanted = self._in_float(region, (block.exit,))
                added[id(block)] = self._error_of(self._values(part, (block.exit,), start), wanted)
            if region is not cut[-1]:
                self.floating = self._in_float(region, region.exits)
        self.floating = self.inputs
        chosen = set(sorted(added, key=added.__getitem__, reverse=True)[:count])
        return [dataclasses.replace(r, blocks=tuple(b for b in r.blocks if id(b) in chosen)) for r in cut]

    def _cache(self) -> Cache:
        return Cache(self.count, self.folder)

    def _learn(self, region: Region, block: Block) -> BlockReport:
        same = block.entries == region.entries
        quantized = self.quantized if same else self._values(region, block.entries, self.quantized)
        floating = self.floating if same else self._in_float(region, block.entries)
        target = self._in_float(region, (block.exit,))[block.exit]
        samples = Samples([quantized[n] for n in block.entries], [floating[n] for n in block.entries], target)
        before, after = learn(self.runner, block, samples, self.settings, self.device)
        return BlockReport(block.name, tuple(q.tensor for q in block.layers), before, after)

    def _advance(self, region: Region) -> None:
        quantized = self._values(region, region.exits, self.quantized)
        self.floating = self._in_float(region, region.exits)
        self.quantized = quantized

    def _in_float(self, region: Region, nodes: Sequence[fx.Node]) -> dict[fx.Node, Cache]:
        """Return the float network's values of `nodes`: the teacher's, else those of the module without quantizers."""
        found = self._values(region, nodes, self.floating, as_float=True)
        if self.theirs is not None:
            self.theirs.replace(found, self.device)
        return found

    @torch.no_grad()
    def _values(
        self, region: Region, nodes: Sequence[fx.Node], known: dict[fx.Node, Cache], *, as_float: bool = False
    ) -> dict[fx.Node, Cache]:
        """The values of `nodes` for each batch, from those at the entries of `region`."""
        needed = self.runner.between(region.entries, nodes)
        caches = {node: self._cache() for node in nodes}
        before = _exchanged(self.given) if as_float else nullcontext()
        with before, state(self.module, "float" if as_float else "quantize"):
            for index in range(self.count):
                inputs = {node: known[node].batch(index, self.device) for node in region.entries}
                for node, value in zip(nodes, self.runner.run(needed, inputs, nodes), strict=True):
                    caches[node].store(index, value)
        return caches
