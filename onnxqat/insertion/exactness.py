"""Cost of ``--exact`` against the same file with free scales: decibels on a few samples, and time on a CPU target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, static_batch
from onnxqat.insertion import decibels
from onnxqat.insertion.decibels import Place
from onnxqat.insertion.placing import Calibrated
from onnxqat.placement import planner, table_overrides
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime import non_finite
from onnxqat.runtime.session import Session
from onnxqat.types import Remark

ROUNDS, SECONDS = 100, 2.0
"""Most runs of each file on one sample, and the time after which no other begins: the fastest run is what counts."""


def cost(
    original: ir.Model, calibrated: Calibrated, asked: tuple[str, Overrides], data: Data, place: Place
) -> tuple[Remark, ...]:
    """Compare the file of `calibrated` with that of the same ranges without the restrictions of ``--exact``.

    Weights of both are rounded to nearest, so that only scales and pairs differ. Time is that of onnxruntime's default
    session, and is measured for backends that run on such a processor.

    Args:
        original: the float model as it was given.
        calibrated: what the exact file is made from; its model is not changed.
        asked: backend table and user choices that led to it.
        data: calibration data.
        place: inserts quantizers.

    Returns:
        A remark; none without ``--exact``, where the data can be read only once, or where onnxruntime does not run a file.
    """
    backend, overrides = asked
    if not overrides.exact or not data.repeatable:
        return ()
    free = table_overrides.apply(dataclasses.replace(overrides, exact=False), schema.load(backend))
    # Weights of such tables stay clear of what saturates on x86; those for other chips need kernels that do not.
    timed = any(kind.saturates or kind.reduce_range for kind in free.types.values())
    other = dataclasses.replace(calibrated, table=free, first=planner.plan(calibrated.model, free, calibrated.chosen))
    found = decibels.compared(original, (calibrated, other), data, place, precise=not timed)
    if found is None:
        return ()
    (exact, plain), sessions, batches = found.worst, found.sessions, found.batches
    text = (
        f"--exact costs {max(plain - exact, 0.0):.1f} dB: the worst output has {exact:.1f} dB, and {plain:.1f} with free "
        f"scales, on {found.samples} calibration samples"
    )
    if timed:
        one = non_finite.few(batches[0], 1, dynamic=static_batch(data.inputs) is None)
        percent = round(100 * (_times(sessions, one) - 1))
        text += f"; onnxruntime takes {abs(percent)} % {'more' if percent >= 0 else 'less'} time for a sample on this machine"
    return (Remark(text, (), "insert"),)


def _times(sessions: Sequence[Session], feeds: Feeds) -> float:
    """Ratio of the run time of the first session to that of the second.

    Both take turns in this thread, and its processor time is measured: other work on the machine does not count.
    """
    taken: list[list[float]] = [[] for _ in sessions]
    begin = time.thread_time()
    for _ in range(ROUNDS):
        for session, times in zip(sessions, taken, strict=True):
            start = time.thread_time()
            session.run(feeds)
            times.append(time.thread_time() - start)
        if time.thread_time() - begin > SECONDS:
            break
    return min(taken[0]) / min(taken[1])
