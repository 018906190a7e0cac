"""Model-local functions: nested, overloaded, with attributes, branches, constants and opsets of their own."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import ModelError
from onnxqat.graph import query, walk
from tests.bridge import parity

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parse(graph: str, *functions: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18, "my": 1]> {graph} {" ".join(functions)}')


def function(body: str, opset: int = 18, options: str = "") -> str:
    return f'<domain: "my", opset_import: ["": {opset}, "my": 1]{options}> {body}'


CALL = "g (float[3, 4] x) => (float[3, 4] y) { y = my.f(x) }"
CASES = {
    "attributes and defaults": parse(
        "g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) { y = my.f<alpha = 0.5>(x) z = my.f(x) }",
        function("f <alpha: float = 0.1> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }"),
    ),
    "attribute that is not given": parse(
        CALL, function("f <alpha> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }")
    ),
    "attribute handed on": parse(
        CALL.replace("my.f", "my.f<beta = 0.3>"),
        function("f <beta> (a) => (b) { b = my.h<alpha: float = @beta>(a) }"),
        function("h <alpha> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }"),
    ),
    "input that is not given": parse(CALL, function("f (a, low) => (b) { b = Clip(a, low) }")),
    "names that exist outside": parse(
        "g (float[3, 4] x) => (float[3, 4] y) { b = Exp(x) t = my.f(b) u = my.f(x) y = Add(t, u) }",
        function("f (x) => (b) { t = Neg(x) b = Abs(t) }"),
    ),
    "overloads": parse(
        "g (float[3, 4] x) => (float[3, 4] y) { t = my.f:one(x) y = my.f:two(t) }",
        function("f (a) => (b) { b = Neg(a) }", options=', overload: "one"'),
        function("f (a) => (b) { b = Exp(a) }", options=', overload: "two"'),
    ),
    "the name of an operator": parse(
        CALL.replace("my.f", "Selu"), '<domain: "", opset_import: ["": 18]> Selu (a) => (b) { b = Neg(a) }'
    ),
    "another opset of the same operators": parse(CALL, function("f (a) => (b) { b = Exp(a) }", opset=17)),
    "a branch in a function in a branch": parse(
        """g (float[3, 4] x) => (float[3, 4] y) {
            zero = Constant<value_float = 0.0>()  s = ReduceSum<keepdims = 0>(x)  p = Less(s, zero)
            y = If(p)<then_branch = t () => (float[3, 4] v) { v = my.f(x) }, else_branch = e () => (float[3, 4] w)
                { n = Neg(x) w = my.f(n) }>
        }""",
        function(
            """f (a) => (b) { zero = Constant<value_float = 0.0>()  s = ReduceSum<keepdims = 0>(a)  p = Greater(s, zero)
            b = If(p)<then_branch = t () => (v) { v = Neg(a) }, else_branch = e () => (w) { w = Exp(a) }> }"""
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_function_equals_onnxruntime(case: str) -> None:
    parity.check(CASES[case], {"x": X})


def test_a_constant_of_a_function_is_one_parameter_for_all_calls() -> None:
    module = parity.check(
        parse(
            CALL,
            function("f (a) => (b) { t = my.h(a) u = my.h(t) b = Add(t, u) }"),
            function("h (a) => (b) { w = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() b = Mul(a, w) }"),
        ),
        {"x": X},
    )
    assert list(module.state_dict()) == ["w"]
    module(torch.from_numpy(X)).sum().backward()
    assert module.w.grad is not None


def test_an_input_that_is_an_output_keeps_its_name() -> None:
    model = parse(
        "g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) { y, z = my.f(x) }",
        function("f (a) => (a, b) { b = Neg(a) }"),
    )
    module = to_torch(model)
    assert (module.input_names, module.output_names) == (("x",), ("y", "z"))
    parity.assert_close(parity.run_module(module, {"x": X}), [X, -X])


@pytest.mark.parametrize(
    "body",
    [
        "f (a) => (b) { s = ReduceSum<axes = [1], keepdims = 1>(a) b = Squeeze<axes = [1]>(s) }",
        """f (a) => (b) { yes = Constant<value = bool {1}>() n = Neg(a) z = Constant<value_float = 0.0>()
        s = ReduceSum<keepdims = 0>(a) p = Greater(s, z)
        b = If(p)<then_branch = t () => (v) { v = ReduceSum<axes = [1], keepdims = 0>(a) },
        else_branch = e () => (w) { w = ReduceSum<axes = [-1], keepdims = 0>(n) }> }""",
    ],
)
def test_nodes_keep_the_opset_of_their_function(body: str) -> None:
    # onnx's checker refuses such a model, but an in-memory one is not checked.
    model = parse(CALL.replace("[3, 4] y", "[3] y"), function(body, opset=12))
    for x in (X, -X):
        wanted = ReferenceEvaluator(model).run(None, {"x": x})
        parity.assert_close(parity.run_module(to_torch(ir.from_proto(model)), {"x": x}), wanted)


def test_the_opset_of_a_branch_in_a_function_is_the_functions() -> None:
    body = "f (c, a) => (b) { b = If(c)<then_branch = t () => (v) { v = Neg(a) }, else_branch = e () => (w) { w = Exp(a) }> }"
    model = ir.from_proto(parse(CALL, function(body, opset=12)))
    assert [query.opset(model, scope) for scope in walk.scopes(model)] == [18, 12, 12, 12]


def test_a_function_that_calls_itself_is_refused() -> None:
    model = ir.from_proto(parse(CALL, function("f (a) => (b) { b = my.f(a) }")))
    with pytest.raises(ModelError, match="my::f"):
        to_torch(model)


def test_a_call_with_too_many_inputs_is_refused() -> None:
    model = ir.from_proto(parse(CALL.replace("my.f(x)", "my.f(x, x)"), function("f (a) => (b) { b = Neg(a) }")))
    with pytest.raises(ModelError, match=r"calls my.f with 2 inputs"):
        to_torch(model)
