"""The report of ``replay``."""

from __future__ import annotations

import math
from typing import Any

from onnxqat.report.model import Column, Figure, Report, Table


def from_replay(result: Any) -> Report:
    """Build the report of ``replay``.

    Args:
        result: of ``onnxqat.training.loop.black_box.replay``.
    """
    loss, norm = result.recorded
    figures = [
        Figure("step", "step", result.step, "count"),
        Figure("epoch", "epochs before it", result.epoch, "count"),
        Figure("loss", "loss in the run", _json_number(loss)),
        Figure("gradient_norm", "norm of the gradients in the run", _json_number(norm)),
    ]
    if result.repeated is not None:
        again, norm_again = result.repeated
        figures += [
            Figure("loss_again", "loss now", _json_number(again)),
            Figure("gradient_norm_again", "norm of the gradients now", _json_number(norm_again)),
        ]
    figures += [
        Figure("kind", "what is not finite", result.finding.kind),
        Figure("name", "its name", result.finding.name),
        Figure("same", "as in the run", result.same, "verdict"),
    ]
    return Report(
        kind="replay",
        title=f"Step {result.step} again: {result.finding}",
        figures=tuple(figures),
        tables=(_scales(result.scales),) if result.scales else (),
        passed=bool(result.same and result.finding.kind != "nothing"),
    )


def _json_number(value: float) -> str | float:
    """`value`, as text where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)


def _scales(scales: dict[str, Any]) -> Table:
    """Largest scale of each tensor before the first and the last step that are remembered; what changed most is first."""
    rows = []
    for name, history in scales.items():
        first, last = (float(history[index].abs().max()) for index in (0, -1))
        rows.append((name, _json_number(first), _json_number(last), last / first if first else math.inf))
    rows.sort(key=lambda row: -abs(math.log(row[3])) if 0 < row[3] < math.inf else -math.inf)
    columns = (
        Column("tensor", "tensor"),
        Column("first", "scale before", "number"),
        Column("last", "at the step", "number"),
    )
    steps = len(next(iter(scales.values())))
    return Table("scales", f"Scales of the last {steps} steps", columns, tuple(row[:3] for row in rows))
