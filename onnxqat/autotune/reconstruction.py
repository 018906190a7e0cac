"""Block-wise reconstruction within what is left of a budget: a short run, and a longer one where there is time."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxqat.autotune.budget import Budget
from onnxqat.graph import io

if TYPE_CHECKING:
    from onnxqat.data.data import Data

FEWEST = 100
"""Steps for each block of the first run, which times the second: with fewer, roundings hardly move."""

PROBE = 10
"""Steps of the first block, the largest in most networks: where :data:`FEWEST` of it alone take too long, nothing is begun."""

MOST = 1000
"""Steps for each block, the default of :func:`onnxqat.reconstruct`."""


class _TimeIsOverError(Exception):
    """Ends a run behind a block."""


def rebuild(
    start: Path,
    output: Path,
    data: Data,
    teacher: io.ModelSource,
    budget: Budget,
    *,
    reserve: float,
    options: dict[str, Any],
    seconds: float = math.inf,
) -> int:
    """Reconstruct `start` into `output`, unless that leaves less than `reserve` seconds of `budget`.

    Args:
        start: a calibrated QDQ model with float weights.
        output: file to write.
        data: training samples; labels are not looked at.
        teacher: the float model.
        budget: of the whole search.
        reserve: seconds that are needed afterwards.
        options: others of :func:`onnxqat.reconstruct`.
        seconds: largest time that it takes.

    Returns:
        Steps for each block; 0 where `output` was not written.

    Raises:
        QatError: what :func:`onnxqat.reconstruct` raises.
    """
    from onnxqat.training.reconstruction.reconstruct import reconstruct

    began = started = time.monotonic()

    def left() -> float:
        return min(budget.left - reserve, seconds - (time.monotonic() - started))

    def run(iterations: int, *, only_first: bool = False) -> None:
        def watch(_done: int, _blocks: int | None) -> None:
            if only_first or left() < 0:
                raise _TimeIsOverError

        reconstruct(start, data, teacher=teacher, output=output, progress=watch, iterations=iterations, **options)

    if left() < 0:
        return 0
    # Blocks end seconds or minutes apart, so that one too many would overdraw the budget by far.
    with contextlib.suppress(_TimeIsOverError):
        run(PROBE, only_first=True)
    if (time.monotonic() - began) * FEWEST / PROBE > left():
        return 0
    began = time.monotonic()
    try:
        run(FEWEST)
    except _TimeIsOverError:
        return 0
    # What comes before the first step counts too, so that this is a little too few.
    longer = min(MOST, int(FEWEST * left() / (time.monotonic() - began)))
    if longer < 2 * FEWEST:
        return FEWEST
    try:
        run(longer)
    except _TimeIsOverError:
        return FEWEST  # whose file is still there
    return longer
