"""Element types where onnx's inference says nothing: a function of another opset, types that a schema lacks."""

import logging

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import parser

from onnxqat.bridge.importing import element_types, functions
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from onnxqat.graph import walk

X = torch.tensor([65_000, 2, 3], dtype=torch.uint16)


def mixed(body: str, result: str) -> str:
    """A model with a function whose ReduceSum is of another version than the model's, so that inference is left out."""
    return f"""<ir_version: 9, opset_import: ["": 18, "local": 1]>
    g (uint16[3] x, bool yes, float[3] f) => ({result} y) {{ {body} z = local.total(f) }}
    <domain: "local", opset_import: ["": 11]> total (a) => (b) {{ b = ReduceSum<axes = [0]>(a) }}"""


BODIES = {
    "t = Identity(x) y = Add(t, x)": (X.numpy() + X.numpy(), "uint16[3]"),
    "t = Identity(x) y = Greater(t, x)": (np.zeros(3, bool), "bool[3]"),
    "t = If(yes) <then_branch = a () => (p) { p = Identity(x) }, else_branch = b () => (q) { q = Add(x, x) }> "
    "y = ReduceMax<keepdims = 0>(t)": (np.asarray(65_000, np.uint16), "uint16"),
    "t = Cast<to = 4>(f) y = Max(t, x)": (X.numpy(), "uint16[3]"),
    "c = Constant<value = int64 {2}>() g = Constant<value = bool {1}>() "
    "t = Loop(c, g, x) <body = b (int64 i, bool m, uint16[3] v) => (bool n, uint16[3] w) { n = Identity(m) w = Add(v, v) }> "
    "y = Div(t, x)": ((X.numpy() * 4) // X.numpy(), "uint16[3]"),
}


@pytest.mark.parametrize("body", BODIES)
def test_types_follow_through_operators_and_bodies(body) -> None:
    wanted, result = BODIES[body]
    found = to_torch(ir.from_proto(parser.parse_model(mixed(body, result))))(
        X, torch.tensor(True), torch.zeros(3)
    ).numpy()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_a_type_that_the_schema_lacks_does_not_end_inference(caplog) -> None:
    # ReduceMax has no uint16; nothing is logged that a user would see.
    text = '<ir_version: 9, opset_import: ["": 18]> g (uint16[3] x) => (uint16 y) { t = Identity(x) y = ReduceMax<keepdims = 0>(t) }'
    with caplog.at_level(logging.WARNING):
        assert to_torch(parser.parse_model(text))(X).item() == 65_000
    assert not caplog.records


def test_a_type_that_stays_open_is_refused_where_torch_may_lack_the_operator() -> None:
    body = (
        "i = Constant<value = int64 {0}>() s = SequenceConstruct(x) t = SequenceAt(s, i) y = ReduceMax<keepdims = 0>(t)"
    )
    with pytest.raises(
        UnsupportedError, match=r"ReduceMax \(input 't', whose element type does not follow.*ReduceMax->y"
    ):
        to_torch(ir.from_proto(parser.parse_model(mixed(body, "uint16"))))


def test_every_output_of_a_model_of_mixed_versions_has_a_type() -> None:
    body = "a = Shape(x) b = Cast<to = 1>(x) c = Equal(x, x) d = ArgMax(f) k, e = TopK(f, a) y = Identity(x)"
    model, differ = functions.inline(ir.from_proto(parser.parse_model(mixed(body, "uint16[3]"))))
    element_types.complete(model)
    found = {str(v.name): v.dtype for node in walk.nodes(model) for v in node.outputs}
    assert differ
    wanted = {"a": "INT64", "b": "FLOAT", "c": "BOOL", "d": "INT64", "k": "FLOAT", "e": "INT64", "y": "UINT16"}
    assert {name: ir.DataType[kind] for name, kind in wanted.items()}.items() <= found.items()
