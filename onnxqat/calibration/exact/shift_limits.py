"""Keep scales within the limits of a backend's shifter, where its table states them.

An integer kernel multiplies its accumulator by ``scale of the inputs / scale of the output``: with powers of two a
right shift, of which hardware has a limited number of positions. Where a sum of positions (``-log2(scale)``) is out of
range, scales become coarser, by whole powers of two, and never finer: nothing that was covered saturates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from onnxqat.types import Derived, Fixed, Placement, QParams, QuantPlan, Remark, ShiftLimit

SWEEPS = 64
SLACK = 1e-6  # of a bit: positions of scales that are no powers of two are not whole numbers

Positions = npt.NDArray[np.float64]


def keep_in_limits(plan: QuantPlan, placements: list[Placement]) -> tuple[list[Placement], list[Remark]]:
    """Coarsen the scales of `placements` for every limit of `plan`; return them with remarks on changes and failures.

    Tensors of one group keep sharing, and prescribed parameters stay as they are.
    """
    if not plan.shift_limits:
        return placements, []
    shifter = _Shifter(plan, placements)
    for _ in range(SWEEPS):
        if not [limit for limit in plan.shift_limits if shifter.enforce(limit)]:
            break
    return shifter.placements, list(shifter.remarks(plan.shift_limits))


@dataclasses.dataclass
class _Term:
    """One tensor of a sum: its sign, what names it, and its positions."""

    sign: int
    index: int
    position: Positions


class Ends:
    """Index, in a list of placements, of the quantizers at inputs and output of a limit's node; None without one."""

    def __init__(self, plan: QuantPlan, placements: list[Placement]) -> None:
        self.tensors = [p.tensor for p in placements]
        self.by_use = {(*use,): i for i, p in enumerate(placements) for use in p.consumers or ()}
        self.by_tensor = {p.tensor: i for i, p in enumerate(placements) if p.consumers is None}
        self.derived = {e.consumers[0] for e in plan.edges if isinstance(e.decision, Derived) and e.consumers}

    def input(self, limit: ShiftLimit, index: int) -> int | None:
        """Index of the quantizer of input `index`; None if that is not quantized or a derived bias."""
        if (limit.node, index) in self.derived:
            return None
        return self.by_use.get((limit.node, index), self.by_tensor.get(limit.inputs[index]))

    def output(self, limit: ShiftLimit) -> int | None:
        """Index of the quantizer behind the node and the nodes fused with it; None if there is none."""
        if limit.output in self.by_tensor:
            return self.by_tensor[limit.output]
        return next((i for i, tensor in enumerate(self.tensors) if tensor == limit.output), None)


class _Shifter:
    def __init__(self, plan: QuantPlan, placements: list[Placement]) -> None:
        self.placements = list(placements)
        self.ends = Ends(plan, placements)
        self.fixed = {e.tensor for e in plan.edges if isinstance(e.decision, Fixed)}
        self.coarser: dict[str, None] = {}

    def enforce(self, limit: ShiftLimit) -> bool:
        """Coarsen one tensor so that `limit` holds; return True if that was necessary and possible."""
        terms = self._terms(limit)
        excess = _excess(limit, terms)
        if excess is None:
            return False
        amount, sign = excess
        able = [t for t in terms if t.sign == sign and not self._is_fixed(t.index)]
        if not able:
            return False
        # Weights give way first: their scale concerns one layer. Of the rest, the finest.
        term = max(able, key=lambda t: (self._is_weight(t.index, limit), float(t.position.max())))
        self._coarsen(term, amount, limit)
        return True

    def remarks(self, limits: tuple[ShiftLimit, ...]) -> Iterator[Remark]:
        """Yield remarks on the scales that were changed and on the limits that still do not hold."""
        if self.coarser:
            names = ", ".join(map(repr, list(self.coarser)[:5])) + (", ..." if len(self.coarser) > 5 else "")
            yield Remark(f"scales of {names} were made coarser for the backend's shifter", (), "resolve")
        for limit in limits:
            if _excess(limit, self._terms(limit)) is not None:
                text = " ".join(f"{'+-'[sign < 0]} {what}" for sign, what in limit.terms).removeprefix("+ ")
                message = f"{limit.node}: the shift {text} is not in {limit.low}..{limit.high}, as the backend needs it"
                yield Remark(message, (limit.node,), "resolve")

    def _terms(self, limit: ShiftLimit) -> list[_Term]:
        """The tensors of the sum; empty where one of them is not quantized."""
        found: list[_Term] = []
        inputs = [self.ends.input(limit, i) for i in range(len(limit.inputs))]
        known = [i for i in inputs if i is not None]
        for sign, what in limit.terms:
            if what in ("max_in", "min_in", "sum_in"):
                if not known:
                    return []
                ordered = sorted(known, key=lambda i: float(self._position(i).max()))
                chosen = {"max_in": ordered[-1:], "min_in": ordered[:1], "sum_in": known}[what]
            else:
                place = None
                if what == "out":
                    place = self.ends.output(limit)
                elif _has_input(inputs, what):
                    place = inputs[int(what[2:])]
                if place is None:
                    return []
                chosen = [place]
            found.extend(_Term(sign, i, self._position(i)) for i in chosen)
        return found

    def _position(self, index: int) -> Positions:
        return np.asarray(-np.log2(self.placements[index].qparams.scale.astype(np.float64)))

    def _is_fixed(self, index: int) -> bool:
        return self.placements[index].tensor in self.fixed and self.placements[index].group is None

    def _is_weight(self, index: int, limit: ShiftLimit) -> bool:
        consumers = self.placements[index].consumers
        return consumers is not None and (limit.node, 1) in consumers and index not in self.ends.by_tensor.values()

    def _coarsen(self, term: _Term, amount: Positions, limit: ShiftLimit) -> None:
        chosen = self.placements[term.index]
        bits = np.broadcast_to(amount, np.broadcast_shapes(amount.shape, term.position.shape))
        bits = bits if bits.shape == term.position.shape else np.asarray(bits.max())
        group = chosen.group
        for i, placement in enumerate(self.placements):
            if i == term.index or (group is not None and placement.group == group):
                self.placements[i] = dataclasses.replace(placement, qparams=_coarser(placement.qparams, bits))
                self.coarser[placement.tensor] = None


def _has_input(inputs: list[int | None], what: str) -> bool:
    return int(what[2:]) < len(inputs)


def _excess(limit: ShiftLimit, terms: list[_Term]) -> tuple[Positions, int] | None:
    """Bits by which the sum is out of range, and the sign of the terms that must become coarser; None if in range."""
    if not terms:
        return None
    total = np.asarray(sum((t.sign * t.position for t in terms), np.zeros(())))
    above, below = total - limit.high, limit.low - total
    if (above > SLACK).any():
        return np.ceil(np.maximum(above, 0) - SLACK), 1
    if (below > SLACK).any():
        return np.ceil(np.maximum(below, 0) - SLACK), -1
    return None


def _coarser(qparams: QParams, bits: Positions) -> QParams:
    """Scales times ``2**bits``; the zero point moves so that the low end stays covered, and is even where it was."""
    scale = np.asarray(qparams.scale.astype(np.float64) * 2.0**bits, np.float32)
    low = qparams.qtype.quant_min
    every = 2 if qparams.scale_bits is not None and not np.any(qparams.zero_point % 2) else 1
    moved = low + every * np.rint((qparams.zero_point - low) / (every * 2.0**bits)).astype(np.int64)
    symmetric = (qparams.zero_point == 0) | (bits == 0)
    zero_point = np.where(symmetric if low < 0 else bits == 0, qparams.zero_point, moved)
    return dataclasses.replace(qparams, scale=scale, zero_point=np.asarray(zero_point, np.int64))
