"""Greedy generation by a decoder, step by step with its own cache."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.data.data import DataSource, open_data
from onnxqat.errors import UsageError
from onnxqat.generation.decoder import Decoder
from onnxqat.graph import atomic, io
from onnxqat.metrics import perplexity
from onnxqat.metrics._base import Batch
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """One call of the decoder.

    Attributes:
        feeds: what it was fed.
        logits: (B, T, V), of the T tokens fed.
        new: token with the largest logit behind the last one, (B, 1).
    """

    feeds: dict[str, Array]
    logits: Array
    new: Array


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Greedy tokens of two models behind the same prompts.

    Attributes:
        tokens: new tokens of each model, (N, L), the model's first; the other's is None where there is one model.
        same: number of equal tokens from the start on, for each sequence.
        perplexity: of the prompts, for each model: exp of the mean negative log-likelihood of a token behind those before.
        files: of samples that were written.
    """

    tokens: tuple[Array, Array | None]
    same: tuple[int, ...]
    perplexity: tuple[float, float | None]
    files: tuple[Path, ...] = ()


def generate(
    model: io.ModelSource,
    data: DataSource,
    other: io.ModelSource | None = None,
    *,
    tokens: int = 32,
    limit: int | None = None,
    batch_size: int = 8,
    optimize: bool = True,
    samples: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Continue token sequences greedily, and say where a second model continues them otherwise.

    Args:
        model: decoder with a cache of keys and values or without: path, onnx.ModelProto, onnx_ir.Model or
            onnx_graphsurgeon.Graph; it is not changed.
        data: sequences of one length, ``input_ids`` of shape (N, T).
        other: model to compare with, such as the quantized one.
        tokens: number of new tokens.
        limit: largest number of sequences.
        batch_size: sequences at a time, where the model does not prescribe it.
        optimize: onnxruntime's graph optimizations, as an application has them.
        samples: new folder for what `model` was fed, one ``.npz`` file a step, which other functions and commands take as
            data: the prompt as a whole, then token by token with the cache; the labels are the next tokens of the prompt.

    Raises:
        UsageError: ``option-invalid``: a model that is no decoder, a folder that is there already.
        DataError: as :func:`onnxqat.data.data.open_data`.
    """
    if tokens < 1:
        raise UsageError("option-invalid", f"{tokens} new tokens: at least 1")
    folder = None if samples is None else Path(samples)
    if folder is not None and (folder.is_symlink() or folder.exists()):
        raise UsageError("option-invalid", f"{folder} is there already", hint="give a new folder")
    runs = [_Run(each, optimize=optimize) for each in (model, other) if each is not None]
    prompts = [feeds[runs[0].decoder.ids.name] for feeds in _prompts(runs[0].decoder, data, limit, batch_size)]
    with contextlib.nullcontext() if folder is None else atomic.staged_folder(folder, _refuse) as staged:
        made = [run.continue_all(prompts, tokens, staged if run is runs[0] else None) for run in runs]
    new = [np.concatenate(rows) for rows, _ in made]
    same = tuple(_equal_start(one, two) for one, two in zip(new[0], new[-1], strict=True)) if other is not None else ()
    files = () if folder is None else tuple(sorted(folder.iterdir()))
    values = [value for _, value in made]
    return Comparison(
        (new[0], new[1] if other is not None else None),
        same,
        (values[0], values[1] if other is not None else None),
        files,
    )


class _Run:
    """A decoder in a session.

    Args:
        model: it is not changed.
        optimize: graph optimizations of onnxruntime.
    """

    def __init__(self, model: io.ModelSource, *, optimize: bool) -> None:
        what = io.name_of(model)
        self._session = Session(io.load(model), optimize=optimize, what=what)
        self.decoder = Decoder.of(self._session.inputs, self._session.output_names, what)

    def continue_all(self, prompts: list[Array], tokens: int, folder: Path | None) -> tuple[list[Array], float]:
        """Return the new tokens of each batch of prompts, and the perplexity of these; write the feeds to `folder`."""
        new: list[Array] = []
        metric = perplexity.Metric()
        count = 0
        for prompt in prompts:
            steps = []
            for index, step in enumerate(self.steps(prompt, tokens)):
                labels = np.full(step.logits.shape[:2], perplexity.IGNORED)
                if index == 0:
                    labels[:, :-1] = prompt[:, 1:]
                    metric.update(Batch(step.feeds, {self.decoder.logits: step.logits}, labels, None))
                if folder is not None:
                    arrays: dict[str, Any] = {**step.feeds, "labels": labels}
                    np.savez(folder / f"{count:05}.npz", **arrays)
                    count += 1
                steps.append(step.new)
            new.append(np.concatenate(steps, axis=1))
        return new, math.exp(-metric.mean_log_likelihood())

    def steps(self, prompt: Array, tokens: int) -> Iterator[Step]:
        """Run the decoder on `prompt` (B, T), then on each new token; without a cache on all so far."""
        decoder = self.decoder
        seen, feeds = prompt, decoder.first(prompt)
        for _ in range(tokens):
            outputs = self._session.run(feeds)
            logits = outputs[decoder.logits]
            new = logits[:, -1:].argmax(axis=-1).astype(prompt.dtype)
            yield Step(feeds, logits, new)
            before, seen = seen.shape[1], np.concatenate([seen, new], axis=1)
            feeds = decoder.following(new, before, outputs) if decoder.past else decoder.first(seen)


def _prompts(decoder: Decoder, data: DataSource, limit: int | None, batch_size: int) -> Iterator[dict[str, Array]]:
    yield from open_data(data, [decoder.ids], batch_size=decoder.batch or batch_size, limit=limit)


def _equal_start(one: Array, two: Array) -> int:
    """Return the number of equal tokens from the start on."""
    differ = np.flatnonzero(one != two)
    return int(differ[0]) if differ.size else len(one)


def _refuse(folder: Path) -> None:
    """Refuse a folder that appeared meanwhile."""
    raise UsageError("option-invalid", f"{folder} is there already", hint="give a new folder")
