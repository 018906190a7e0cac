"""What a run trains on and what it is scored on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxqat.calibration.inputs import of_graph, static_batch
from onnxqat.calibration.preprocess import Preprocess, parse
from onnxqat.training import batches, holdout
from onnxqat.training.batches import Batch, Batches
from onnxqat.training.distributed.shards import shard, shard_scored
from onnxqat.training.world import World


@dataclasses.dataclass(frozen=True)
class Material:
    """The data of a run.

    Attributes:
        source: what to train on.
        scored: what to score on where the user gives no score.
        has_labels: whether there are labels.
        batch_size: samples a batch.
        prescribed: whether the model prescribes that.
    """

    source: Batches
    scored: Sequence[Batch]
    has_labels: bool
    batch_size: int
    prescribed: bool


def read(
    model: ir.Model,
    data: Any,
    labels: Any,
    *,
    preprocess: str | Preprocess | None,
    batch_size: int,
    seed: int,
    hold_out: bool,
) -> Material:
    """Open `data` for `model`.

    Args:
        model: whose inputs it is for.
        data: what :func:`onnxqat.training.batches.make` takes.
        labels: of array data.
        preprocess: of images.
        batch_size: where the model does not prescribe it.
        seed: of the order.
        hold_out: whether batches to score on are wanted.

    Raises:
        DataError: what is wrong with the data.
        UsageError: ``option-invalid``.
    """
    inputs = of_graph(model.graph)
    line = parse(preprocess) if isinstance(preprocess, str) else preprocess
    source = batches.make(data, labels, inputs, batch_size=batch_size, seed=seed, preprocess=line)
    has_labels = labels is not None or batches.yields_labels(source)
    source, scored = holdout.split(source, has_labels=has_labels) if hold_out else (source, ())
    prescribed = static_batch(inputs)
    return Material(source, scored, has_labels, prescribed or batch_size, prescribed is not None)


def sharded(material: Material, world: World, *, own: bool) -> Material:
    """The part of this process; arguments as of :func:`onnxqat.training.distributed.shards.shard`."""
    source = shard(material.source, world, own=own, whole=material.prescribed)
    scored = shard_scored(material.scored, world, own=own, whole=material.prescribed)
    return dataclasses.replace(material, source=source, scored=scored)
