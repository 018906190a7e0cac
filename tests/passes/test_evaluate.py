"""What is computed directly is what the reference implementation computes."""

import sys

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.passes import _evaluate

LEAST = -(2**63) + 1
X = np.arange(24, dtype=np.int64).reshape(4, 6)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES: list[tuple[str, dict[str, object], list[np.ndarray | None]]] = [
    ("ConstantOfShape", {}, [i64(2, 3)]),
    ("ConstantOfShape", {"value": ir.Tensor(i64(7))}, [i64(4)]),
    ("Concat", {"axis": 0}, [i64(1, 2), i64(3)]),
    ("Concat", {"axis": -1}, [X, X]),
    ("Transpose", {}, [X]),
    ("Transpose", {"perm": [2, 0, 1]}, [X.reshape(2, 2, 6)]),
    ("Reshape", {}, [X, i64(-1, 2)]),
    ("Reshape", {}, [X, i64(0, 3, -1)]),
    ("Reshape", {"allowzero": 1}, [X[:0], i64(0, 6)]),
    ("Slice", {}, [X, i64(1), i64(3)]),
    ("Slice", {}, [X, i64(-1), i64(LEAST), i64(0), i64(-1)]),
    ("Slice", {}, [X, i64(1, 4), i64(100, -6), i64(0, -1), i64(2, -2)]),
    ("Slice", {}, [X, i64(9), i64(1), None, i64(-1)]),
    ("Cast", {"to": 7}, [X]),
    ("Cast", {"to": 6}, [i64(2**31 - 1, -5)]),
    ("Cast", {"to": 7}, [np.array([1.7, -1.7], np.float32)]),
    ("Cast", {"to": 1}, [X]),
]


@pytest.mark.parametrize(("op_type", "attributes", "inputs"), CASES)
def test_as_the_reference(op_type: str, attributes: dict[str, object], inputs: list[np.ndarray | None]) -> None:
    node = ir.node(op_type, [ir.Value(name=f"v{i}") for i in range(len(inputs))], attributes)  # type: ignore[arg-type]
    found = _evaluate.evaluate(node, inputs, 17)
    expected = _evaluate._by_reference(node, inputs, 17)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_the_amounts_of_an_exported_pad_need_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx.reference", None)  # an import of it fails
    for op_type, attributes, inputs in CASES[:6]:
        node = ir.node(op_type, [ir.Value(name=f"v{i}") for i in range(len(inputs))], attributes)  # type: ignore[arg-type]
        _evaluate.evaluate(node, inputs, 17)


def test_a_form_that_is_not_covered_is_left_to_the_reference() -> None:
    node = ir.node("Cast", [ir.Value(name="v")], {"to": 3})
    np.testing.assert_array_equal(_evaluate.evaluate(node, [i64(5, -3)], 17), np.array([5, -3], np.int8))
