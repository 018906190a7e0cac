"""A remark on training that has taken a model far away from what it was, where no score decides what is written."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from torch import Tensor

from onnxqat.bridge.export import mixup_confidence
from onnxqat.errors import QatError
from onnxqat.graph import io, sizes
from onnxqat.metrics import Predictor
from onnxqat.passes import _base as passes
from onnxqat.passes.strip_qdq import StripQdq

Array = npt.NDArray[Any]

FEWEST_SAMPLES = 16
"""With fewer, a class that differs by chance is a large share."""

OTHER_CLASSES = 0.1
"""Share of samples that get another class than from the float model, above that of the start, from which on training
is remarked on: on samples of their own, networks that learn well leave it for a few in a hundred. A ResNet-20 that SGD
took from 91.4 to 92.1 % leaves it for one in 800, one that AdamW at 1e-3 took to 69.3 % for 14 in a hundred."""

ERRORS = 1.0
"""Standard errors of such a share that come on top, so that two of a few samples are no reason."""

OTHER_VALUES = 0.5
"""The same for outputs that are no classes: squared error in parts of the variance. A constant has 1."""

LARGEST = 2**30
"""Bytes of weights up to which the comparison is made: it holds the model three times."""


class TrainedFarAwayWarning(UserWarning):
    """Warning of a trained model that differs much from the model at the start, without a score that favours it."""


def warn_where_far(start: ir.Model, trained: io.ModelSource, batches: Sequence[tuple[Tensor, ...]]) -> None:
    """Compare a model before and after training with the float model that the former stands for, and warn.

    The float model is `start` without its quantizers, so a start that quantization has ruined is no measure. All three
    are computed by onnxruntime as they are written, on samples and on mixtures of two. What cannot be compared is not.

    Args:
        start: what training began with.
        trained: what it made.
        batches: inputs that it was trained on, in the order of the graph.
    """
    samples = sum(len(batch[0]) for batch in batches)
    if samples < FEWEST_SAMPLES or sizes.weights_of(start) > LARGEST:
        return
    with contextlib.suppress(QatError):
        plain = start.clone()
        passes.rewrite(plain, [StripQdq()])
        models = [Predictor.of(model) for model in (plain, start, trained)]
        compared = [("samples", batches, _distance_text)]
        if mixed := mixup_confidence.mixtures(batches):
            compared.append(("mixtures of two samples", mixed, _confidence_text))
        for what, given, text in compared:
            wanted, before, after = (_outputs(model, given) for model in models)
            for name in wanted:
                reason = text(wanted[name], before[name], after[name])
                if reason is not None:
                    _warn(f"of {samples} {what} that it was trained on, output {name!r} {reason}")
                    return


def _warn(reason: str) -> None:
    text = f"training took the model far from what it began with: {reason}"
    remedy = "Where that is no gain, take a smaller learning rate, or let write_back keep the better one: score=, data="
    warnings.warn(f"{text}. {remedy}", TrainedFarAwayWarning, stacklevel=5)


def _outputs(run: Predictor, batches: Sequence[tuple[Tensor, ...]]) -> dict[str, list[Array]]:
    """Outputs by name, an array a batch."""
    found: dict[str, list[Array]] = {name: [] for name in run.outputs}
    for batch in batches:
        feeds = {info.name: values.cpu().numpy() for info, values in zip(run.inputs, batch, strict=True)}
        for name, value in run(feeds).items():
            found[name].append(value)
    return found


def _distance_text(wanted: Sequence[Array], before: Sequence[Array], after: Sequence[Array]) -> str | None:
    """Say how far an output is from the float model's; None where that is near, or no measure applies.

    Args:
        wanted: of the float model, an array a batch.
        before: of the start.
        after: of what was trained.
    """
    if not _are_comparable(wanted, before, after):
        return None
    is_class = _are_classes(wanted)
    error = np.sqrt(OTHER_CLASSES * (1 - OTHER_CLASSES) / sum(map(len, wanted)))
    measure, limit = (_other_classes, OTHER_CLASSES + ERRORS * error) if is_class else (_error, OTHER_VALUES)
    was, now = measure(before, wanted), measure(after, wanted)
    if not np.isfinite(was) or now - was < limit:
        return None
    if is_class:
        return f"gives {now:.0%} another class than the float model, {was:.0%} before training"
    return f"has a squared error of {now:.2g} of the float model's variance, {was:.2g} before training"


def _confidence_text(wanted: Sequence[Array], before: Sequence[Array], after: Sequence[Array]) -> str | None:
    """Say what was lost of the float model's confidence; None where labels may explain it, or the output has no classes.

    Args:
        wanted: of the float model, an array a batch.
        before: of the start.
        after: of what was trained.
    """
    if not _are_comparable(wanted, before, after) or not _are_classes(wanted):
        return None
    found = mixup_confidence.measure(*(np.concatenate(arrays) for arrays in (wanted, before, after)))
    if not found.is_harm:
        return None
    less = f"{100 * found.lost:.1f} points less likely than those before training"
    return f"gives classes that the float model finds {less}, where labels may explain {100 * found.explained:.1f}"


def _are_comparable(*outputs: Sequence[Array]) -> bool:
    """Check whether the same batch has floating-point values of one shape from each model."""
    batches = zip(*outputs, strict=True)
    return all({a.dtype.kind for a in of} == {"f"} and len({a.shape for a in of}) == 1 for of in batches)


def _are_classes(wanted: Sequence[Array]) -> bool:
    """Check whether an output has a row of values, one a class, for each sample."""
    return all(a.ndim == 2 and a.shape[1] > 1 for a in wanted)


def _other_classes(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Share of samples whose largest value is another one, or that have values that are not finite."""
    other = [(a.argmax(1) != b.argmax(1)) | ~np.isfinite(a).all(1) for a, b in zip(found, wanted, strict=True)]
    return float(np.concatenate(other).mean())


def _error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """Squared error in parts of the variance of all values; infinite where one of `found` is not finite."""
    a, b = (np.concatenate([one.ravel() for one in arrays]).astype(np.float64) for arrays in (found, wanted))
    if not np.isfinite(a).all():
        return float("inf")
    spread = float(np.square(b - b.mean()).sum())
    return float(np.square(a - b).sum()) / spread if spread > 0 else float("nan")  # of a constant, nothing is known
