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
    ("Shape", {}, [X]),
    ("Shape", {"start": 1}, [X]),
    ("Gather", {}, [X, i64(2, -1)]),
    ("Gather", {"axis": 1}, [X, np.array(3)]),
    ("Gather", {"axis": 1}, [X, np.array([[0, -2], [1, 1]])]),
    ("Unsqueeze", {}, [np.array(5), i64(0)]),
    ("Unsqueeze", {}, [X, i64(0, -1)]),
    ("Unsqueeze", {}, [X.astype(np.float32), i64(1, 2)]),
    ("Add", {}, [X, i64(1)]),
    ("Sub", {}, [np.array(8), i64(3)]),
    ("Mul", {}, [np.array(2), np.array(-3)]),
    ("Mul", {}, [i64(2**62), i64(4)]),
    ("Mul", {}, [np.array([0.1, 3e30], np.float32), np.array(3, np.float32)]),
    ("Cast", {"to": 7}, [np.array([1.7, -1.7], np.float32)]),
    ("Cast", {"to": 1}, [X]),
]


@pytest.mark.parametrize(("op_type", "attributes", "inputs"), CASES)
def test_as_the_reference(op_type: str, attributes: dict[str, object], inputs: list[np.ndarray | None]) -> None:
    node = ir.node(op_type, [ir.Value(name=f"v{i}") for i in range(len(inputs))], attributes)  # type: ignore[arg-type]
    found = _evaluate.evaluate(node, inputs, 17)
    (expected,) = _evaluate._by_reference(node, inputs, 17)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_the_amounts_of_an_exported_pad_need_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx.reference", None)  # an import of it fails
    used = {"ConstantOfShape", "Concat", "Transpose", "Reshape", "Slice", "Shape", "Gather", "Unsqueeze", "Sub", "Mul"}
    whole = [c for c in CASES if c[0] in used and not {"allowzero", "start"} & set(c[1]) and c[2][0].dtype.kind == "i"]  # type: ignore[union-attr]
    assert {c[0] for c in whole} == used
    for op_type, attributes, inputs in whole:
        node = ir.node(op_type, [ir.Value(name=f"v{i}") for i in range(len(inputs))], attributes)  # type: ignore[arg-type]
        _evaluate.evaluate(node, inputs, 17)


def test_a_form_that_is_not_covered_is_left_to_the_reference() -> None:
    node = ir.node("Cast", [ir.Value(name="v")], {"to": 3})
    np.testing.assert_array_equal(_evaluate.evaluate(node, [i64(5, -3)], 17), np.array([5, -3], np.int8))


def test_axes_that_are_an_attribute() -> None:
    node = ir.node("Unsqueeze", [ir.Value(name="v")], {"axes": [0, 3]})
    assert _evaluate.evaluate(node, [X], 11).shape == (1, 4, 6, 1)
