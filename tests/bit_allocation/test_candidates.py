"""Widths that tables can mix, and layers that have a choice."""

import pytest

from onnxqat.backends import schema
from onnxqat.bit_allocation import candidates
from onnxqat.errors import UsageError
from onnxqat.placement import table_widths


def test_widths_of_tables() -> None:
    assert candidates.weight_widths(schema.load("qnn-htp-w4"), None) == (4, 8)
    assert candidates.weight_widths(schema.load("onnxruntime-cpu"), None) == (3, 4, 5, 6, 8)
    assert candidates.weight_widths(schema.load("onnxruntime-cpu"), (8, 2)) == (2, 8)
    assert candidates.is_stored_in_bytes(schema.load("onnxruntime-cpu"))
    assert not candidates.is_stored_in_bytes(schema.load("qnn-htp-w4a16"))


@pytest.mark.parametrize("backend", ["tensorrt-fp8", "tensorrt-int4"])
def test_tables_of_one_width_are_refused(backend: str) -> None:
    with pytest.raises(UsageError) as failed:
        candidates.weight_widths(schema.load(backend), None)
    assert failed.value.code == "backend-one-width"


def test_widths_that_were_asked_for() -> None:
    for asked, code in (((8,), "backend-one-width"), ((8, 16), "option-invalid"), ((4, 9), "option-invalid")):
        with pytest.raises(UsageError) as failed:
            candidates.weight_widths(schema.load("qnn-htp"), asked)
        assert failed.value.code == code


def test_wide_activations_are_those_of_the_compiler() -> None:
    assert table_widths.may_be_wide(schema.load("qnn-htp"), ["Conv"])  # by qnn-htp-a16
    assert table_widths.may_be_wide(schema.load("ppl-w8a16"), ["Conv"])
    assert not table_widths.may_be_wide(schema.load("qnn-htp"), ["Conv", "NoSuchOperator"])
    assert not table_widths.may_be_wide(schema.load("tensorrt"), ["Conv"])  # its parser refuses them
    assert not table_widths.may_be_wide(schema.load("tidl"), ["Conv"])  # opset 19
    assert table_widths.weight_width(schema.load("tensorrt-fp8")) is None
    assert table_widths.weight_width(schema.load("qnn-htp-w4")) == 8  # its second weight type
