"""Losses of a score beyond which a verdict turns amber, and red."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DropLimits:
    """Limits of a loss.

    Attributes:
        amber: a larger loss deserves a look.
        red: a larger loss fails.
        unit: name of the unit of the two.
        size: one unit, as a part of the score.
        relative: `amber` and `red` are percent of the float model's score; a limit of the user's is in `unit` all the same.
    """

    amber: float
    red: float
    unit: str = "points"
    size: float = 0.01
    relative: bool = False

    def of(self, before: float, max_drop: float | None) -> tuple[float, float]:
        """The two limits, in `unit`.

        Args:
            before: score of the float model.
            max_drop: the user's choice for `red`.
        """
        if max_drop is not None:
            red = max_drop
        elif self.relative:
            red = self.red / 100 * abs(before) / self.size
        else:
            red = min(self.red, HALF * abs(before) / self.size)
        amber = self.amber / 100 * abs(before) / self.size if self.relative else self.amber
        return min(amber, red), red


HALF = 0.5
"""A loss of this share of the float model's score fails, however few points that is."""

LABELLED = DropLimits(1.0, 5.0)
"""Points, which are hundredths of a score from 0 to 1, lost on labels. A ResNet-20 loses 0.1 of top-1 at W8A8."""

AGREEMENT = DropLimits(5.0, 20.0, "samples in 100")
"""Samples with another answer than the float model's: a MobileNetV2 at W8A8, which is fit for use, has up to 10."""

COSINE = DropLimits(0.5, 5.0)
"""Points of cosine: noise of a hundredth and of a tenth of the signal, 20 and 10 dB."""

NOISE = DropLimits(10.0, 100 * 0.1**0.5, "% of the signal", 1.0)
"""Noise in percent of the signal: 20 and 10 dB, see :data:`onnxqat.verdict.MIN_SQNR`."""

FUNCTION = DropLimits(1.0, 5.0, "of the score", 1.0, relative=True)
"""A function of the user's may count in any unit."""
