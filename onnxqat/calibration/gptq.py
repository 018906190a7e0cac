"""GPTQ (Frantar et al., "GPTQ", ICLR 2023): codes of a layer's filters that have little error at its output.

1. Columns are rounded one after the other; what each loses is spread over those that are left, by a Cholesky factor of
   the inverse second moments of the inputs, damped (algorithm 1 of the paper).
2. Their order is that of falling input power (``act_order``, ``desc_act`` in other tools), the same for all filters.
3. Each weight is rounded with the scale that it has in the file, whatever the order (``static_groups``).
4. Updates reach the columns of a block of :data:`COLUMNS` at once, and all others when the block is done ("lazy batch
   updates").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

DAMPING = 1e-3
"""Share of the mean input power that is added to each input's own, so that the moments can be inverted."""

DAMPINGS = (DAMPING, 1e-2, 3e-2, 1e-1, 0.3, 1.0)
"""Shares that are tried where some of the places are held out. A layer of 960 inputs of a MobileNetV2, 4 bits, 75 images, has
25.7 dB on those and 18.2 on others with the first, and 19.5 on others with 0.1."""

DAMPINGS_OF_LARGE = (DAMPING, 1e-1)
"""The same beyond :data:`LARGE` inputs: the second gives most of what all give."""

LARGE = 1024
"""Inputs beyond which fewer shares are tried. Each takes an inverse, which at 2,304 inputs is a second or more."""

REGULARIZATION = 1e-2
"""The same where weights compensate what rounding took from the inputs. ResNet-20 at 4 bits is as good with a tenth of it:
the more stable solution costs nothing."""

REGULARIZATIONS = (REGULARIZATION, 0.1, 1.0)
"""Shares that are tried where some of the places are held out."""

TRIED = 64
"""Filters that tell which share is best: all read the same inputs."""

COLUMNS = 128
"""Columns of a block, as in the paper: the matrix product that ends it is fast, and all that changes in it stays in the
cache."""

TINY = float(np.finfo(np.float64).tiny ** 0.5)
"""Power that is added where inputs are all 0 and have no power to take a share of."""


class Solver:
    """Rounds filters that read the same inputs; made once for all of them.

    Attributes:
        second: second moments of the inputs, float64 (D, D).

    Args:
        second: the same.
        damping: share of the mean input power that is added to each input's own.
    """

    def __init__(self, second: npt.NDArray[np.floating], damping: float = DAMPING) -> None:
        self.second: Doubles = np.asarray(second, np.float64)
        power = np.diagonal(self.second)
        # Inputs of high power first, while there are others left to make up for them.
        self._order = np.argsort(-power, kind="stable")
        self._factor = self._factorized(max(damping * float(power.mean()), TINY))

    def _factorized(self, damping: float) -> Doubles | None:
        """The upper Cholesky factor of the inverse, in order; None where all inputs are equal and none can compensate another."""
        damped = self.second[np.ix_(self._order, self._order)]
        damped[np.diag_indices_from(damped)] += damping
        try:
            inverse = np.linalg.inv(damped)
            return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)
        except np.linalg.LinAlgError:
            return None

    def codes(self, rows: Doubles, scale: Doubles, low: Doubles, high: Doubles) -> Doubles:
        """Codes of `rows`, less their zero points.

        Args:
            rows: weights (M, D).
            scale: of each weight, (M, D).
            low: smallest code of each weight, zero point subtracted, (M, D).
            high: largest code, the same.

        Returns:
            float64 (M, D), whole numbers.
        """
        factor = self._factor
        if factor is None:
            return np.clip(np.rint(rows / scale), low, high)
        left, scale, low, high = (part[:, self._order] for part in (rows, scale, low, high))
        size = left.shape[1]
        for start in range(0, size, COLUMNS):
            end = min(start + COLUMNS, size)
            lost = np.empty((len(left), end - start))
            for column in range(start, end):
                code = np.clip(np.rint(left[:, column] / scale[:, column]), low[:, column], high[:, column])
                error = (left[:, column] - code * scale[:, column]) / factor[column, column]
                left[:, column + 1 : end] -= error[:, None] * factor[column, column + 1 : end]
                left[:, column], lost[:, column - start] = code, error
            left[:, end:] -= lost @ factor[start:end, end:]
        result = np.empty_like(left)
        result[:, self._order] = left
        return result

    def costs(self, errors: Doubles) -> Doubles:
        """Mean squared error of each filter at the output, (M,), for `errors` (M, D) of its weights."""
        return np.asarray(np.einsum("md,md->m", errors @ self.second, errors))

    def recovery(self, cross: npt.NDArray[np.floating], share: float = REGULARIZATION) -> Doubles:
        """Return :func:`recovery` by the moments of these inputs, float64 (D, D), with whose product weights change."""
        return recovery(self.second, cross, None, share)


def recovery(
    second: npt.NDArray[np.floating], cross: npt.NDArray[np.floating], rows: Doubles | None, share: float
) -> Doubles:
    """Least-squares change of the weights that compensates, at the layer's output, what the inputs lost.

    Args:
        second: second moments of the inputs, (D, D).
        cross: moments of what was taken from the inputs (rows) and the inputs (columns), (D, D).
        rows: weights (M, D) to change; None: each input's own, for any weights.
        share: of the mean input power, added to each input's own.

    Returns:
        float64 (D, D), with whose product with them weights (M, D) change; with `rows` that change.
    """
    damped = np.array(second, np.float64)
    damped[np.diag_indices_from(damped)] += max(share * float(np.trace(damped)) / len(damped), TINY)
    taken = np.asarray(cross, np.float64)
    return np.asarray(np.linalg.solve(damped, (taken if rows is None else rows @ taken).T).T)


def best_damping(
    some: npt.NDArray[np.floating],
    others: npt.NDArray[np.floating],
    rows: Doubles,
    scale: Doubles,
    low: Doubles,
    high: Doubles,
) -> float:
    """The share of :data:`DAMPINGS`, or those of large layers, with which codes by `some` places have least error at `others`.

    Args:
        some: second moments (D, D).
        others: the same of other places.
        rows: weights (M, D).
        scale: of each weight, (M, D).
        low: smallest code of each weight, zero point subtracted, (M, D).
        high: largest code, the same.
    """
    few = slice(None, None, -(-len(rows) // TRIED))
    rows, scale, low, high = rows[few], scale[few], low[few], high[few]
    shares = DAMPINGS if len(some) <= LARGE else DAMPINGS_OF_LARGE
    judge, costs = np.asarray(others, np.float64), []
    for share in shares:
        errors = rows - Solver(some, share).codes(rows, scale, low, high) * scale
        costs.append(float(((errors @ judge) * errors).sum()))
    return shares[int(np.argmin(costs))]


def best_regularization(
    some: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]],
    others: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]],
    rows: Doubles,
) -> float | None:
    """The share of :data:`REGULARIZATIONS` with which a recovery by `some` places compensates most at `others`.

    Args:
        some: second moments, and those of what was taken (rows) with the inputs (columns), (D, D) each.
        others: the same of other places.
        rows: weights (M, D).

    Returns:
        None where none makes up for anything.
    """
    rows = rows[:: -(-len(rows) // TRIED)]
    second, cross = others
    gains = []
    for share in REGULARIZATIONS:
        change = recovery(*some, rows, share)
        # Of what the layer loses, |w d - c x|^2, the part that depends on the change c of the weights w.
        gains.append(float((2 * (rows @ cross) * change - (change @ second) * change).sum()))
    best = int(np.argmax(gains))
    return REGULARIZATIONS[best] if gains[best] > 0 else None
