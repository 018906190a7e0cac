"""Batches of one sample, as devices run them.

A compiler fixes the batch to that of the first feeds, so that those of one hand-off must all be of one size: data may come in
batches of their own, and a score feeds one sample after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from onnxqat.data.data import Data
from onnxqat.data.inputs import InputInfo, static_batch
from onnxqat.deployment.base_compiler import Array
from onnxqat.errors import DataError
from onnxqat.metrics import Predictor
from onnxqat.metrics._closeness import Difference
from onnxqat.runtime.session import Session

_SAME_DB = 30.0
"""Signal to noise of answers that are the same but for codes at ties; other ones of a recurrent network have less."""


def sample_inputs(session: Session, data: Data | None) -> list[InputInfo]:
    """The inputs of `session` with one sample a batch, where that changes no answer.

    A first axis may be free and yet no batch: steps of a recurrent network, points of a cloud, nodes of a graph.

    Args:
        session: the file handed in.
        data: samples on which that is tried; None, or those that can be read once: it is not tried.
    """
    alone = _one_at_a_time(session.inputs)
    if alone == list(session.inputs) or data is None or not data.repeatable:
        return alone
    several = (feeds for feeds in data if max((a.shape[0] for a in feeds.values() if a.ndim), default=1) > 1)
    feeds = next(several, None)
    if feeds is None:
        return alone
    try:
        cut = Predictor(session.run, alone, session.output_names)(feeds)
    except DataError:  # an output has no axis of samples
        return list(session.inputs)
    whole = session.run(feeds)
    same = all(cut[name].shape == array.shape and _is_near(cut[name], array) for name, array in whole.items())
    return alone if same else list(session.inputs)


def _is_near(value: Array, reference: Array) -> bool:
    found = Difference()
    found.update(value, reference)
    # Kernels for another number of samples may round to the neighbouring code here and there, which costs less.
    return found.elements == 0 or found.sqnr_db > _SAME_DB or not found.max_abs


def _one_at_a_time(inputs: Sequence[InputInfo]) -> list[InputInfo]:
    """The inputs with one sample a batch, where every first axis is free."""
    if static_batch(inputs) is not None or not all(
        info.shape and not isinstance(info.shape[0], int) for info in inputs
    ):
        return list(inputs)
    return [dataclasses.replace(info, shape=(1, *(info.shape or ())[1:])) for info in inputs]


def one_by_one(
    batches: Sequence[Mapping[str, Array]], inputs: Sequence[InputInfo], data: Data | None
) -> list[Mapping[str, Array]]:
    """Cut `batches` into samples, where `inputs` have one sample a batch; otherwise as they are.

    Args:
        batches: feeds.
        inputs: what :func:`sample_inputs` gives for `data`.
        data: where `batches` come from. Those that can be read only once were not tried, and stay as they came.
    """
    if static_batch(inputs) != 1 or data is None or not data.repeatable:
        return list(batches)
    return [
        {name: array[index : index + 1] for name, array in feeds.items()}
        for feeds in batches
        for index in range(len(next(iter(feeds.values()))))
    ]
