"""Trial of a freshly quantized model: a few calibration samples through it and the float model.

It is small on purpose, a handful of samples in two sessions: it tells a file that works from one that does not.
``validate`` measures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration.noise import concentration, decibels, squares
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, of_graph, samples_of, static_batch
from onnxqat.errors import CheckError, ModelError
from onnxqat.graph import qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.runtime import joined_runs, non_finite
from onnxqat.runtime.session import Session, main_values
from onnxqat.runtime.watched_session import WatchedSession
from onnxqat.types import Remark
from onnxqat.verdict import AMBER_SQNR, MIN_SQNR, Status

Array = npt.NDArray[Any]
Finished: TypeAlias = Callable[[ir.Model], ir.Model]

SAMPLES = 8
"""Samples that are run."""

MOST_BYTES = 2**29
"""Largest size of the tensors that are held at once to measure quantizers; onnxruntime holds them a second time."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Signal to noise of a quantized model against its float model.

    Attributes:
        samples: calibration samples that were run.
        sqnr_db: of each float output by name, as ``10 log10(sum(float²) / sum((float - quantized)²))``; infinite where
            the two are equal.
        costly: below :data:`onnxqat.verdict.AMBER_SQNR`, the tensors whose quantizers cost most, the worst first, each
            with a signal to noise in dB.
        costly_at: where that is: at the noisy outputs with this quantizer alone, as gradients tell, or, without torch, at
            the tensor itself.
    """

    samples: int
    sqnr_db: dict[str, float]
    costly: tuple[tuple[str, float], ...] = ()
    costly_at: Literal["outputs", "tensors"] = "outputs"

    @property
    def worst(self) -> float:
        """The lowest signal to noise of all outputs."""
        return min(self.sqnr_db.values(), default=math.inf)

    @property
    def noisy(self) -> list[str]:
        """The outputs below :data:`onnxqat.verdict.AMBER_SQNR`."""
        return [name for name, sqnr_db in self.sqnr_db.items() if sqnr_db < AMBER_SQNR]

    @property
    def status(self) -> Status:
        """Red below 10 dB: a start for training and not for deployment; amber below 20 dB."""
        if not self.worst >= MIN_SQNR:
            return "red"
        return "amber" if self.worst < AMBER_SQNR else "green"


def attempt(
    original: ir.Model, quantized: ir.Model, data: Data, remarks: list[Remark], finished: Finished | None = None
) -> Trial | non_finite.Origin | None:
    """Run a few samples of `data` through both models in onnxruntime, optimizations off.

    Args:
        original: the float model as it was given.
        quantized: the same with quantizers.
        data: calibration data.
        remarks: why nothing was run, where onnxruntime does not run one of them.
        finished: gives the model as it is written, with integer functions, whose results are always finite (a quotient
            by zero is the end of its grid). It is run where `quantized` gives NaN or infinities.

    Returns:
        The trial; the origin where a value is NaN or infinite and that of the float model is not; None where nothing
        was run.
    """
    if not data.repeatable:
        return None
    batches = samples(data)
    try:
        watched = WatchedSession(quantized, "the quantized model")
        found = joined_runs.joined([watched.run(feeds) for feeds in batches])
        wanted = joined_runs.run(Session(original, optimize=False, what="the float model"), batches)
        origin = None if watched.finite else non_finite.origin(quantized, original, batches)
        if origin is not None and finished is not None:
            written = finished(quantized)
            watched = WatchedSession(written, "the quantized model")
            found = joined_runs.joined([watched.run(feeds) for feeds in batches])
            origin = None if watched.finite else non_finite.origin(written, original, batches)
        noise = {n: sqnr(found[n], w) for n, w in wanted.items() if w.dtype.kind == "f" and w.shape == found[n].shape}
        remarks.extend(
            _in_few_values({name: (found[name], wanted[name]) for name, db in noise.items() if db < AMBER_SQNR})
        )
    except ModelError as error:
        remarks.append(Remark(f"the quantized model was not run: {error.message}", source="insert"))
        return None
    if origin is not None:
        return origin
    return Trial(sum(map(samples_of, batches)), noise)


def _in_few_values(noisy: Mapping[str, tuple[Array, Array]]) -> Iterator[Remark]:
    """Say where the noise of an output comes from few of its values, the others being above the floor.

    Args:
        noisy: by output, quantized and float values.
    """
    for name, (found, wanted) in noisy.items():
        few = concentration(found, wanted, AMBER_SQNR)
        if few is not None:
            rest = "are equal" if few.rest_db == math.inf else f"have {few.rest_db:.1f} dB"
            text = (
                f"{few.noise:.0%} of the noise of output {name!r} is in {few.values:.1%} of its values, and the others "
                f"{rest}: so it is where an index or a threshold that is nearly a tie comes out otherwise"
            )
            yield Remark(text, (), "insert", "result")


def samples(data: Data, count: int = SAMPLES) -> list[Feeds]:
    """`count` samples from all over `data`, in one batch where the model takes them together."""
    return _first(data.few(count), count, dynamic=static_batch(data.inputs) is None)


def _first(batches: Iterable[Feeds], count: int, *, dynamic: bool) -> list[Feeds]:
    """At least `count` samples of `batches`, no more where the model does not prescribe the size of a batch."""
    found: list[Feeds] = []
    left = count
    for feeds in batches:
        found.append(non_finite.few(feeds, left, dynamic=dynamic))
        left -= samples_of(found[-1])
        if left <= 0:
            break
    return found


def refusal(origin: non_finite.Origin) -> CheckError:
    """The error for values that are not finite from `origin` on."""
    return CheckError(
        "quantized-not-finite",
        f"quantized, {origin} where those of the float model are finite",
        hint=f"leave the node in float: --exclude {origin.node!r}, or what feeds it",
    )


def sqnr(value: Array, reference: Array) -> float:
    """Signal to noise in dB over the values that are finite in both; infinite where they are equal."""
    noise, signal = squares(value, reference)
    return decibels(signal, noise)


def rounded(quantized: ir.Model, batches: Sequence[Feeds]) -> Iterator[tuple[str, Array, Array]]:
    """Yield (tensor name, input, fake-quantized input), in float32, for each quantizer of the main graph.

    Of `batches` it takes as many samples as :data:`MOST_BYTES` hold, two at least.
    """
    known = {**main_values(quantized.graph), **{str(v.name): v for v in quantized.graph.inputs}}
    activations: list[Quantizer] = []
    for quantizer in qdq.quantizers(quantized):
        constant = quantizer.input.const_value
        if quantizer.role == "weight" and constant is not None and not quantizer.stored:
            weight = np.asarray(constant.numpy(), np.float32)
            yield quantizer.tensor, weight, numerics.fake_quantize(weight, quantizer.qparams)
        elif quantizer.role == "activation" and str(quantizer.input.name) in known and not quantizer.stored:
            activations.append(quantizer)
    names = [str(q.input.name) for q in activations if q.input.name not in batches[0]]
    session = Session(quantized, optimize=False, tensors=names, what="the quantized model")
    # Not one sample: a Squeeze without axes takes a batch of one for an axis to drop.
    dynamic = static_batch(of_graph(quantized.graph)) is None
    two = _first(batches, 2, dynamic=dynamic)
    held = sum(value.nbytes for value in joined_runs.run(session, two, names).values())
    fitting = MOST_BYTES * sum(map(samples_of, two)) // max(held, 1)
    batches = _first(batches, max(fitting, 2), dynamic=dynamic)
    values = joined_runs.joined(batches) | joined_runs.run(session, batches, names)
    for quantizer in activations:
        x = np.asarray(values[str(quantizer.input.name)], np.float32)
        yield quantizer.tensor, x, numerics.fake_quantize(x, quantizer.qparams)
