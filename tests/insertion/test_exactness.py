"""``--exact`` says what it costs: decibels beside free scales, and time where onnxruntime's says something."""

import re

import pytest

import onnxqat
from onnxqat.insertion.insert import InsertResult
from onnxqat.placement.table_overrides import Overrides
from tests.bridge.integer import networks
from tests.calibration.test_largest_codes import TEXT, images

ROUNDING = 4.5
"""Decibels by which the default session may differ from the file as written at 40 dB: 8 samples give 40 values, and a pooled
code that falls to the other side of a tie is a large part of their noise."""


def insert(backend: str, *, exact: bool, fast: bool) -> InsertResult:
    return onnxqat.insert_qdq(
        networks.with_weights(TEXT),
        backend,
        data={"x": images()},
        overrides=Overrides(exact=exact),
        fast=fast,
        guard=False,
    )


def cost(result: InsertResult) -> list[str]:
    return [r.message for r in result.remarks if r.message.startswith("--exact costs")]


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt", "qnn-htp"])
def test_the_cost_is_that_of_the_two_files(backend: str) -> None:
    (text,) = cost(insert(backend, exact=True, fast=False))
    lost, exact, free = (float(x) for x in re.findall(r"(\d+\.\d) (?:dB|with)", text))
    assert lost == pytest.approx(free - exact, abs=0.11)  # each is rounded to a tenth
    assert lost > 0
    for stated, made in ((exact, True), (free, False)):
        tried = insert(backend, exact=made, fast=True).trial
        assert tried is not None
        assert stated == pytest.approx(tried.worst, abs=ROUNDING)
    assert "on 8 calibration samples" in text
    assert ("time for a sample on this machine" in text) == (backend == "onnxruntime-cpu")


def test_nothing_is_compared_where_nobody_asks() -> None:
    assert cost(insert("onnxruntime-cpu", exact=False, fast=False)) == []
    assert cost(insert("onnxruntime-cpu", exact=True, fast=True)) == []
    once = onnxqat.insert_qdq(
        networks.with_weights(TEXT), data=lambda: iter([images()]), overrides=Overrides(exact=True), guard=False
    )
    assert len(cost(once)) == 1
    drawn = onnxqat.insert_qdq(networks.with_weights(TEXT), random_data=True, overrides=Overrides(exact=True))
    assert cost(drawn) == []


def test_the_same_bytes_come_out_of_two_runs() -> None:
    """Time is measured, but it goes into the report alone."""
    files = [insert("onnxruntime-cpu", exact=True, fast=False).model.SerializeToString() for _ in range(2)]
    assert files[0] == files[1]
