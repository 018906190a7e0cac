"""Sequences and optional values against onnxruntime, and as Python lists and None at the module's edges."""

import numpy as np
import onnx.parser
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import parity

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def parse(body: str, inputs: str = "float[3, 4] x", outputs: str = "float[a, b] y", opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


def integer(name: str, value: int) -> str:
    return f"{name} = Constant<value = int64 {{{value}}}>()"


CASES = {
    "insert at the end": "n = Neg(x)  s = SequenceConstruct(x)  t = SequenceInsert(s, n)",
    "insert in front": f"n = Neg(x) s = SequenceConstruct(x) {integer('p', 0)} t = SequenceInsert(s, n, p)",
    "insert before the last": f"n = Neg(x) s = SequenceConstruct(x, x) {integer('p', -1)} t = SequenceInsert(s, n, p)",
    "insert into nothing": "s = SequenceEmpty() t = SequenceInsert(s, x)",
    "erase the last": "n = Neg(x) s = SequenceConstruct(x, n, n) t = SequenceErase(s)",
    "erase by position": f"n = Neg(x) s = SequenceConstruct(x, n) {integer('p', -2)} t = SequenceErase(s, p)",
    "split by length": f"{integer('p', 2)} t = SplitToSequence<axis = 1>(x, p)",
    "split unevenly": f"{integer('p', 3)} t = SplitToSequence<axis = -1>(x, p)",
    "split into lengths": "p = Constant<value_ints = [1, 2]>() t = SplitToSequence(x, p)",
    "split one by one": "t = SplitToSequence<axis = 1>(x)",
    "split without the axis": "u = SplitToSequence<axis = 0, keepdims = 0>(x) "
    "z = Constant<value_ints = [0]>() t = SequenceMap(u, z) <body = b (float[d] e, int64[1] a) => (float[1, d] r) "
    "{ r = Unsqueeze(e, a) }>",
    "map over two sequences": "s = SequenceConstruct(x, x) u = SplitToSequence<axis = 0>(x) v = SplitToSequence<axis = 0>(x)"
    " t = SequenceMap(u, v) <body = b (float[1, 4] e, float[1, 4] f) => (float[1, 4] r) { r = Mul(e, f) }>",
}


@pytest.mark.parametrize("case", CASES)
def test_sequence_operator_equals_onnxruntime(case: str) -> None:
    axis = 1 if "axis = 1" in CASES[case] or "axis = -1" in CASES[case] else 0
    parity.check(parse(f"{CASES[case]} y = ConcatFromSequence<axis = {axis}>(t)"), {"x": X})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_new_axis(axis: int) -> None:
    body = f"n = Neg(x) s = SequenceConstruct(x, n) y = ConcatFromSequence<axis = {axis}, new_axis = 1>(s)"
    parity.check(parse(body, outputs="float[a, b, c] y"), {"x": X})


@pytest.mark.parametrize("position", [-2, -1, 0, 1])
def test_position_and_length_that_are_data(position: int) -> None:
    body = "n = Neg(x) s = SequenceConstruct(x, n) y = SequenceAt(s, p) l = SequenceLength(s)"
    model = parse(body, "float[3, 4] x, int64 p", "float[a, b] y, int64 l")
    parity.check(model, {"x": X, "p": np.array(position)})


@pytest.mark.parametrize(("operator", "position"), [("SequenceAt(s, p)", 2), ("SequenceErase(s, p)", -3)])
def test_a_position_outside_is_an_error(operator: str, position: int) -> None:
    kind = "float[a, b]" if "At" in operator else "seq(float)"
    module = to_torch(parse(f"s = SequenceConstruct(x, x) y = {operator}", "float[3, 4] x, int64 p", f"{kind} y"))
    with pytest.raises(IndexError, match=f"position {position} is outside -2 to 1"):
        module(torch.ones(3, 4), torch.tensor(position))


def test_a_list_is_not_changed_in_place() -> None:
    body = "s = SequenceConstruct(x) t = SequenceInsert(s, x) u = SequenceErase(t) l = SequenceLength(t)"
    module = to_torch(parse(body, outputs="seq(float) s, seq(float) u, int64 l"))
    first, second, length = module(torch.ones(3, 4))
    assert (len(first), len(second), int(length)) == (1, 1, 2)


def test_lists_at_the_edges_of_the_module() -> None:
    body = f"{integer('p', 0)} y = SequenceAt(s, p) t = SequenceErase(s)"
    module = to_torch(parse(body, "seq(float) s", "float[a, b] y, seq(float) t"))
    given = [torch.ones(2, 3), torch.zeros(1, 4)]
    y, rest = module(given)
    assert y is given[0]
    assert len(rest) == 1
    assert rest[0] is given[0]


OPTIONAL = """
    has = OptionalHasElement(o)
    y = If(has) <then_branch = t () => (float[a, b] v) { v = OptionalGetElement(o) },
                 else_branch = e () => (float[a, b] w) { w = Neg(x) }>
"""


def test_none_at_the_edge_of_the_module() -> None:
    module = to_torch(parse(OPTIONAL, "float[3, 4] x, optional(float[a, b]) o"))
    x = torch.from_numpy(X)
    assert torch.equal(module(x, None), -x)
    assert torch.equal(module(x, x * 2), x * 2)


def test_presence_known_at_import_leaves_one_branch() -> None:
    module = parity.check(
        parse(f"o = Optional(x) {OPTIONAL.replace('OptionalHasElement(o)', 'OptionalHasElement(x)')}")
    )
    assert "branch" not in module.code


def test_reading_an_empty_optional_is_an_error() -> None:
    module = to_torch(parse("y = OptionalGetElement(o)", "optional(float[a, b]) o"))
    with pytest.raises(ValueError, match="without element"):
        module(None)


def test_gradients_pass_through_sequences() -> None:
    body = f"{integer('p', 2)} s = SplitToSequence<axis = 1>(x, p) {integer('one', 1)} y = SequenceAt(s, one)"
    module = to_torch(parse(body))
    x = torch.from_numpy(X).requires_grad_()
    module(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, 4))


@pytest.mark.filterwarnings("ignore")
def test_sequences_export_and_compile() -> None:
    body = (
        f"{integer('p', 2)} s = SplitToSequence<axis = 1>(x, p) {integer('one', 1)} a = SequenceAt(s, one) y = Exp(a)"
    )
    module = to_torch(parse(body, "float[n, 4] x"))
    x = torch.from_numpy(X)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)
    torch.testing.assert_close(program.module()(x[:2]), module(x[:2]))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))
