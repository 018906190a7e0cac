"""The verifier finds what a broken edit leaves behind."""

import cProfile
import pstats
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.errors import ModelError
from onnxqat.graph import build, io, verify
from onnxqat.passes._base import run_passes
from onnxqat.passes.raise_opset import RaiseOpset
from tests.passes.checks import in_function, in_if, parse
from tests.passes.quantized import quantized

TEXT = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    [a] t = Mul(x, w) [b] u = Neg(t) [c] y = Relu(u) }"""


def same_value_name(model: ir.Model) -> None:
    model.graph[1].outputs[0].name = "t"


def same_node_name(model: ir.Model) -> None:
    model.graph[1].name = "a"


def wrong_order(model: ir.Model) -> None:
    node = model.graph[2]
    model.graph.remove(node)
    model.graph.insert_before(model.graph[0], node)


def undefined_input(model: ir.Model) -> None:
    model.graph[0].replace_input_with(0, ir.Value(name="ghost"))


def undefined_output(model: ir.Model) -> None:
    model.graph.outputs[0] = ir.Value(name="ghost")


def initializer_without_data(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = None


BREAKS = {
    same_value_name: "two values are called 't'",
    same_node_name: "two nodes are called 'a'",
    wrong_order: "is not defined before it is read",
    undefined_input: "'ghost', is not defined",
    undefined_output: "graph output 'ghost' is not defined",
    initializer_without_data: "has no data",
}


@pytest.mark.parametrize("damage", BREAKS, ids=lambda f: f.__name__)
def test_broken_graph(damage: Callable[[ir.Model], None]) -> None:
    model = io.load(parse(TEXT))
    verify.verify(model)
    damage(model)
    with pytest.raises(ModelError, match=BREAKS[damage]) as caught:
        verify.verify(model)
    assert caught.value.code == "pass-postcondition"


def test_neighbourhood_is_shown() -> None:
    model = io.load(parse(TEXT))
    undefined_input(model)
    with pytest.raises(ModelError, match=r"> t = Mul\(ghost, w\)\n  u = Neg\(t\)"):
        verify.verify(model)


def constant_of(model: ir.Model, name: str, array: np.ndarray, dtype: ir.DataType | None = None) -> None:
    value = model.graph.initializers[name]
    value.const_value = build.tensor(array, dtype, name)
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)


QDQ_BREAKS = {
    "zero scale": (lambda m: constant_of(m, "x_scale", np.float32(0)), "its scale is"),
    "infinite scale": (lambda m: constant_of(m, "x_scale", np.float32(np.inf)), "its scale is"),
    "type": (lambda m: constant_of(m, "x_zero_point", np.uint8(0)), "the zero point 'x_zero_point' is UINT8"),
    "length": (lambda m: constant_of(m, "w_zero_point", np.zeros(2, np.int8)), r"has shape \[3\]"),
    "axis": (lambda m: m.graph[2].attributes.update(axis=ir.AttrInt64("axis", 7)), "axis 7 lies outside"),
    "channels": (lambda m: m.graph[2].attributes.update(axis=ir.AttrInt64("axis", 1)), "3 scales along axis 1"),
    "bias": (lambda m: constant_of(m, "b_zero_point", np.ones(3, np.int32)), "int32 zero point"),
    "no scale": (lambda m: m.graph[0].replace_input_with(1, None), "has no scale"),
}


@pytest.mark.parametrize(("damage", "message"), QDQ_BREAKS.values(), ids=QDQ_BREAKS)
def test_broken_quantizer(damage: Callable[[ir.Model], None], message: str) -> None:
    model = io.load(quantized())
    verify.verify(model)
    damage(model)
    with pytest.raises(ModelError, match=message):
        verify.verify(model)


@pytest.mark.parametrize("wrap", [in_if, in_function])
def test_inner_scopes_are_checked(wrap) -> None:
    model = io.load(wrap(parse(TEXT)))
    verify.verify(model)
    node = next(
        n for n in [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f)] if n.op_type == "Neg"
    )
    node.replace_input_with(0, ir.Value(name="ghost"))
    with pytest.raises(ModelError, match="ghost"):
        verify.verify(model)


def test_sibling_bodies_may_use_the_same_names() -> None:
    text = """g (float[2] x, bool b) => (float[2] y) {
        y = If (b) <then_branch = one () => (float[2] p) { q = Neg(x) p = Relu(q) },
                    else_branch = two () => (float[2] p) { q = Abs(x) p = Neg(q) }> }"""
    verify.verify(io.load(parse(text)))


def calls_of_verify(nodes: int) -> int:
    body = " ".join(f"t{i + 1} = Relu(t{i})" for i in range(nodes))
    model = io.load(parse(f"g (float[2] t0) => (float[2] t{nodes}) {{ {body} }}"))
    with cProfile.Profile() as profile:
        verify.verify(model)
    return int(pstats.Stats(profile).total_calls)


def test_work_grows_with_the_number_of_nodes_and_no_faster() -> None:
    assert calls_of_verify(1000) < 5 * calls_of_verify(250)


def test_real_models_are_valid(shared) -> None:
    for path in sorted((shared / "data" / "models").glob("*.onnx")):
        verify.verify(io.load(path))


def test_a_pass_is_not_blamed_for_names_that_it_found() -> None:
    proto = parse(TEXT)
    for node in proto.graph.node:
        node.name = "same"
    assert run_passes(proto, [RaiseOpset(21)]).changed
    model = io.load(proto)
    assert verify.repeated_names(model) == {"same"}
    with pytest.raises(ModelError, match="two nodes are called 'same'"):
        verify.verify(model)
