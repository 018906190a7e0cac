"""Scales within the limits of a backend's shifter."""

import numpy as np
import pytest

from onnxqat.calibration.exact.shift_limits import keep_in_limits
from onnxqat.types import Edge, Fixed, Placement, QParams, QType, QuantPlan, ShiftLimit, TensorSpec

I8, U8 = QType("int8", -128, 127), QType("uint8", 0, 255)
SUM = ((1, "in0"), (1, "in1"), (-1, "out"))


def scaled(position: float | list[float], qtype: QType = I8, zero_point: int = 0) -> QParams:
    scale = np.float32(2.0 ** -np.asarray(position, np.float64))
    axis = 0 if scale.ndim else None
    return QParams(scale, np.full(scale.shape, zero_point, np.int64), qtype, axis)


def layer(x: QParams, w: QParams, y: QParams, group: str | None = None) -> list[Placement]:
    return [
        Placement("x", x, "", (("n", 0),), group),
        Placement("w", w, "", (("n", 1),)),
        Placement("y", y, "", None, group),
    ]


def kept(placements: list[Placement], *limits: ShiftLimit, fixed: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Positions by tensor."""
    edges = tuple(Edge(t, Fixed(next(p.qparams for p in placements if p.tensor == t)), "") for t in fixed)
    result, _ = keep_in_limits(QuantPlan("t", edges, shift_limits=limits), placements)
    return {p.tensor: -np.log2(p.qparams.scale) for p in result}


def conv(low: int, high: int, terms: tuple[tuple[int, str], ...] = SUM) -> ShiftLimit:
    return ShiftLimit("n", terms, ("x", "w", ""), "y", low, high)


def test_inside_the_limits_nothing_changes() -> None:
    placements = layer(scaled(7), scaled(9), scaled(4))
    result, remarks = keep_in_limits(QuantPlan("t", (), shift_limits=(conv(0, 16),)), placements)
    assert result == placements
    assert remarks == []


def test_without_limits_nothing_is_looked_at() -> None:
    placements = layer(scaled(70), scaled(9), scaled(4))
    assert keep_in_limits(QuantPlan("t", ()), placements) == (placements, [])


def test_too_far_to_the_right_coarsens_the_weight() -> None:
    assert kept(layer(scaled(7), scaled(15), scaled(4)), conv(0, 16)) == {"x": 7, "w": 13, "y": 4}


def test_only_the_channels_that_are_too_fine() -> None:
    found = kept(layer(scaled(7), scaled([15, 10, 14]), scaled(4)), conv(0, 16))
    assert found["w"].tolist() == [13, 10, 13]


def test_too_far_to_the_left_coarsens_the_output() -> None:
    assert kept(layer(scaled(1), scaled(2), scaled(8)), conv(0, 16)) == {"x": 1, "w": 2, "y": 3}


def test_scales_that_are_no_powers_of_two_move_by_whole_bits() -> None:
    found = kept(layer(scaled(7.3), scaled(15), scaled(4)), conv(0, 16))
    assert found["w"] == pytest.approx(12)


def test_a_group_moves_together() -> None:
    placements = [*layer(scaled(5), scaled(2), scaled(8)), Placement("z", scaled(8), "", None, "y")]
    placements[2] = Placement("y", scaled(8), "", None, "y")
    found = kept(placements, conv(0, 16))
    assert found["y"] == found["z"] == 7


def test_prescribed_parameters_stay_and_a_remark_says_so() -> None:
    placements = layer(scaled(1), scaled(2), scaled(8))
    plan = QuantPlan("t", (Edge("y", Fixed(scaled(8)), ""),), shift_limits=(conv(0, 16),))
    result, (remark,) = keep_in_limits(plan, placements)
    assert result == placements
    assert remark.message == "n: the shift in0 + in1 - out is not in 0..16, as the backend needs it"


def test_inputs_of_a_sum() -> None:
    add = ShiftLimit("n", ((1, "max_in"), (-1, "min_in")), ("x", "w"), "y", 0, 7)
    write = ShiftLimit("n", ((1, "min_in"), (-1, "out")), ("x", "w"), "y", -7, 25)
    placements = [
        Placement("x", scaled(12), "", None),
        Placement("w", scaled(2), "", None),
        Placement("y", scaled(11), "", None),
    ]
    assert kept(placements, add, write) == {"x": 9, "w": 2, "y": 9}


def test_sum_of_all_inputs() -> None:
    product = ShiftLimit("n", ((1, "sum_in"), (-1, "out")), ("x", "w"), "y", 0, 32)
    placements = [
        Placement("x", scaled(20), "", None),
        Placement("w", scaled(16), "", None),
        Placement("y", scaled(1), "", None),
    ]
    assert kept(placements, product) == {"x": 17, "w": 16, "y": 1}


def test_what_is_not_quantized_has_no_shift() -> None:
    placements = layer(scaled(7), scaled(30), scaled(4))[:2]
    assert kept(placements, conv(0, 16)) == {"x": 7, "w": 30}


def test_an_asymmetric_range_stays_covered() -> None:
    fine = scaled(8, U8, 100)
    placements = layer(scaled(1), scaled(2), fine)
    result, _ = keep_in_limits(QuantPlan("t", (), shift_limits=(conv(0, 16),)), placements)
    coarse = result[2].qparams
    assert float(coarse.scale) == 2.0**-3
    ends = [(np.asarray([0, 255]) - int(q.zero_point)) * float(q.scale) for q in (fine, coarse)]
    assert ends[1][0] <= ends[0][0] + float(coarse.scale) / 2
    assert ends[1][1] >= ends[0][1]


def test_coarsening_is_noted_with_the_tensors() -> None:
    _, remarks = keep_in_limits(
        QuantPlan("t", (), shift_limits=(conv(0, 16),)), layer(scaled(7), scaled(15), scaled(4))
    )
    assert [r.message for r in remarks] == ["scales of 'w' were made coarser for the backend's shifter"]


def test_spec_of_the_default_is_untouched() -> None:
    assert TensorSpec(I8).block_size is None
