"""Rank correlation of what the model says with the labels."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.metrics._base import Array, BaseMetric, Batch, wrong_labels, wrong_outputs


class Metric(BaseMetric):
    """Spearman's correlation, -1 to 1; equal values share their mean rank. NaN where one side is constant.

    ======================  ==========================================================================================
    output                  what is ranked
    ======================  ==========================================================================================
    (N,) or (N, 1)          the value of each sample, against its label
    (N, D), D > 1           an embedding: samples 0 and 1, 2 and 3, ... are pairs that carry the same label, and
                            the cosine of the two is ranked against it
    (N, T, D)               embeddings of tokens: the mean over T, weighted by the input whose name has ``mask`` in it,
                            then the same
    ======================  ==========================================================================================
    """

    needs = "labels"

    def __init__(self) -> None:
        self._values: list[Array] = []
        self._labels: list[Array] = []
        self._pairs = False

    def update(self, batch: Batch) -> None:
        """Add one batch."""
        assert batch.labels is not None
        count = len(batch.labels) if batch.labels.ndim else 0
        if batch.labels.size != count or batch.labels.dtype.kind not in "fiub":
            raise wrong_labels("spearman", "of shape (N,), numbers", batch.labels)
        numbers = [a for a in batch.outputs.values() if a.dtype.kind in "fiub" and a.shape[:1] == (count,)]
        if len(numbers) > 1:  # of several outputs that of embeddings, not that of tokens
            numbers = [a for a in numbers if a.ndim <= 2]
        if len(numbers) != 1 or numbers[0].ndim > 3:
            wanted = "one output of a number (N,), an embedding (N, D) or token embeddings (N, T, D) a sample"
            raise wrong_outputs("spearman", wanted, batch.outputs)
        value = numbers[0].astype(np.float64)
        if value.ndim == 3:
            value = _pooled(value, batch)
        self._pairs = value.size != count
        self._values.append(value.reshape(count, -1))
        self._labels.append(batch.labels.reshape(count).astype(np.float64))

    def result(self) -> float:
        """The correlation; NaN without a sample."""
        if not self._values:
            return math.nan
        values, labels = np.concatenate(self._values), np.concatenate(self._labels)
        if self._pairs:
            if len(labels) % 2 or (labels[::2] != labels[1::2]).any():
                raise wrong_labels(
                    "spearman",
                    "that are equal for samples 0 and 1, 2 and 3, ...: an output of embeddings needs pairs",
                    labels,
                )
            labels, values = labels[::2], _cosines(values[::2], values[1::2])[:, None]
        return _correlation(_ranks(values[:, 0]), _ranks(labels))


def _pooled(value: Array, batch: Batch) -> Array:
    """The mean over tokens, of those that the mask keeps; (N, T, D) to (N, D)."""
    masks = [a for name, a in batch.feeds.items() if "mask" in name.lower() and a.shape == value.shape[:2]]
    weights = masks[0].astype(np.float64) if masks else np.ones(value.shape[:2])
    found: Array = (value * weights[..., None]).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)[:, None]
    return found


def _cosines(one: Array, two: Array) -> Array:
    length = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    found: Array = (one * two).sum(axis=1) / np.where(length == 0, 1.0, length)
    return found


def _ranks(values: Array) -> Array:
    """Ranks from 1; equal values get the mean of theirs. NaN everywhere where a value is NaN."""
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return found


def _correlation(one: Array, two: Array) -> float:
    one, two = one - one.mean(), two - two.mean()
    length = np.sqrt((one @ one) * (two @ two))
    return float(one @ two / length) if length > 0 else float("nan")
