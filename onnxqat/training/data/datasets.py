"""Training and scoring data of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import InputInfo, of_graph, static_batch
from onnxqat.data.preprocess import Preprocess, parse
from onnxqat.data.recorded import Recorded
from onnxqat.errors import DataError
from onnxqat.training.data import batches, holdout
from onnxqat.training.data.batches import ArrayBatches, Batch, Batches, DataBatches
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.distributed.shards import shard, shard_scored
from onnxqat.training.optim import run_length
from onnxqat.types import Remark


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The data of a run.

    Attributes:
        source: batches to train on.
        scored: batches to score on where the user gives no score.
        held_out: whether training does not see these.
        repeatable: whether the data can be read more than once.
        judged: data to score on, as a metric reads them; None where there is nothing to score on.
        has_labels: whether there are labels.
        batch_size: samples per batch.
        prescribed: whether the model prescribes that.
        remarks: remarks on the data.
    """

    source: Batches
    scored: Sequence[Batch]
    held_out: bool
    repeatable: bool
    judged: Data | None
    has_labels: bool
    batch_size: int
    prescribed: bool
    remarks: tuple[Remark, ...] = ()

    @property
    def samples(self) -> int | None:
        """About how many samples one pass has, in all processes; None where there is one pass, or it is not known."""
        if not self.repeatable or self.source.steps is None:
            return None
        return self.source.steps * self.batch_size


def read(
    model: ir.Model,
    data: Any,
    labels: Any,
    *,
    preprocess: str | Preprocess | None,
    batch_size: int | None,
    limit: int | None = None,
    has_length: bool,
    seed: int,
    hold_out: bool,
    origin: Any = None,
) -> TrainingData:
    """Open `data` for `model`.

    Args:
        model: whose inputs it is for.
        data: what :func:`onnxqat.training.data.batches.make` takes.
        labels: of array data.
        preprocess: of images.
        batch_size: where the model does not prescribe it; None: by the number of samples and `has_length`
            (:func:`onnxqat.training.optim.run_length.batch_size`).
        limit: read at most so many samples; None: all.
        has_length: whether the user gives epochs or steps.
        seed: of the order.
        hold_out: whether batches to score on are wanted.
        origin: `model` as the caller gave it; without `data`, those that it records are looked up beside it.

    Raises:
        DataError: what is wrong with the data.
        UsageError: ``option-invalid``.
    """
    inputs = of_graph(model.graph)
    line = parse(preprocess) if isinstance(preprocess, str) else preprocess
    recorded, remarks = Recorded.of(model, origin), list[Remark]()
    data = recorded.data_or(data, remarks)
    if data is None:
        raise DataError("data-missing", "there is no training data", hint="give --data")
    wanted = run_length.batch_size(None, given=batch_size, has_length=has_length)
    opening: dict[str, Any] = {"seed": seed, "preprocess": line, "recorded": recorded, "limit": limit}
    source = batches.make(data, labels, inputs, batch_size=wanted, **opening)
    better = run_length.batch_size(_samples(source), given=batch_size, has_length=has_length)
    if better != wanted and _is_repeatable(source):
        wanted = better
        source = batches.make(data, labels, inputs, batch_size=wanted, **opening)
    remarks.extend(batches.remarks_of(source))
    has_labels = labels is not None or batches.yields_labels(source)
    divided = holdout.split(source, has_labels=has_labels) if hold_out else holdout.Split(source)
    prescribed = static_batch(inputs)
    return TrainingData(
        source=divided.train,
        scored=divided.scored,
        held_out=divided.held_out,
        repeatable=_is_repeatable(source),
        judged=_judged(divided, inputs, prescribed or wanted),
        has_labels=has_labels,
        batch_size=prescribed or wanted,
        prescribed=prescribed is not None,
        remarks=tuple(remarks),
    )


def _judged(divided: holdout.Split, inputs: Sequence[InputInfo], batch_size: int) -> Data | None:
    """Return the scored samples as data that a metric reads, with their labels; None where nothing is scored."""
    if divided.data is not None or not divided.scored:
        return divided.data
    held = [({name: value.numpy() for name, value in batch.inputs.items()}, batch.labels) for batch in divided.scored]
    pairs = [feeds if labels is None else (feeds, labels.numpy()) for feeds, labels in held]
    return open_data(pairs, inputs, batch_size=batch_size)


def _is_repeatable(source: Batches) -> bool:
    return not isinstance(source, DataBatches) or source.repeatable


def _samples(source: Batches) -> int | None:
    """Samples in one pass, where their number is known before reading."""
    if isinstance(source, DataBatches):
        return source.data.samples
    return source.samples if isinstance(source, ArrayBatches) else None


def sharded(material: TrainingData, world: ProcessContext, *, own: bool) -> TrainingData:
    """The part of this process; arguments as of :func:`onnxqat.training.distributed.shards.shard`."""
    source = shard(material.source, world, own=own, whole=material.prescribed)
    scored = shard_scored(material.scored, world, own=own, whole=material.prescribed)
    return dataclasses.replace(material, source=source, scored=scored)
