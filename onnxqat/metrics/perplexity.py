"""Perplexity of a language model on the tokens that follow."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.metrics._base import BaseMetric, Batch, wrong_labels, wrong_outputs
from onnxqat.metrics._limits import FUNCTION

IGNORED = -100
"""Label of a position that does not count, as in torch's cross_entropy; any negative one is."""


class Metric(BaseMetric):
    """Minus exp of the mean negative log-likelihood of the labels, so that higher is better: -1 at best.

    The output is logits (N, T, V), the labels are the tokens that follow each position, (N, T); negative ones do not
    count. A logit that is NaN, or none that counts, makes it NaN.
    """

    needs = "labels"
    default_drop = 0.5
    limits = FUNCTION

    def __init__(self) -> None:
        self._sum, self._tokens = 0.0, 0

    def update(self, batch: Batch) -> None:
        """Add one batch."""
        assert batch.labels is not None
        labels = batch.labels
        if labels.ndim != 2 or labels.dtype.kind not in "iu":
            raise wrong_labels("perplexity", "(N, T), the token behind each position", labels)
        found = [
            a for a in batch.outputs.values() if a.dtype.kind == "f" and a.ndim == 3 and a.shape[:2] == labels.shape
        ]
        if len(found) != 1:
            raise wrong_outputs("perplexity", "one output of logits (N, T, V) for labels (N, T)", batch.outputs)
        kept = labels >= 0
        logits, wanted = found[0][kept].astype(np.float64), labels[kept].astype(np.int64)
        if wanted.size and wanted.max() >= logits.shape[1]:
            raise wrong_labels("perplexity", f"below {logits.shape[1]}, the number of tokens", labels)
        largest = logits.max(axis=1, initial=-np.inf, keepdims=True)
        # log(sum(exp)) from the largest on: exp of a logit of 800 is more than a float holds.
        total = largest[:, 0] + np.log(np.exp(logits - largest).sum(axis=1))
        self._sum += float((np.take_along_axis(logits, wanted[:, None], axis=1)[:, 0] - total).sum())
        self._tokens += int(wanted.size)

    def mean_log_likelihood(self) -> float:
        """Return the mean log-likelihood of a token, in nats; NaN without tokens."""
        return self._sum / self._tokens if self._tokens else math.nan

    def result(self) -> float:
        """The perplexity, negative."""
        return -math.exp(min(-self.mean_log_likelihood(), 700.0))  # exp(710) is more than a float holds
