"""Softmax on codes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bridge.integer.one_operator import between_pairs, check


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("length", [2, 17, 130])
@pytest.mark.parametrize(("step", "share"), [(0.05, 1 / 255), (0.01, 1 / 256), (0.2, 1 / 3000)])
def test_as_in_the_default_session(axis: int, length: int, step: float, share: float) -> None:
    model = between_pairs(
        f"Softmax <axis = {axis}> (v)", f"N, {length}, {length}", scales=(step, share), zeros=(120, 0)
    )
    x = np.random.default_rng(length).uniform(-120 * step, 135 * step, (8, length, length)).astype(np.float32)
    check(model, x, "Softmax")


def test_of_signed_codes() -> None:
    model = between_pairs("Softmax (v)", "N, 40", scales=(0.03, 1 / 256), zeros=(0, -128), kind="int8")
    check(model, np.random.default_rng(1).standard_normal((200, 40)).astype(np.float32), "Softmax")


def test_rows_before_opset_13_end_at_the_last_axis() -> None:
    model = between_pairs("Softmax <axis = 2> (v)", "N, 3, 20", scales=(0.03, 1 / 255), zeros=(128, 0), opset=12)
    check(model, np.random.default_rng(1).standard_normal((60, 3, 20)).astype(np.float32), "Softmax")
