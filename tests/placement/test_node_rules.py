"""Rules for single nodes: what they match, what they change, and what wins."""

from typing import Any

import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.errors import UsageError
from onnxqat.placement import node_rules
from onnxqat.placement.node_rules import NodeRule, TensorRule
from onnxqat.placement.table_overrides import Overrides, apply
from onnxqat.types import QType
from tests.backends.planning import edges, plan, proto, reasons, spec, weight

W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2,2,1,1] v = {weight(2, 2, 1, 1)}"
TEXT = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] z) <{W}> {{
    ["body/a"] s = Conv(x, w) ["body/b"] t = Conv(s, v) ["sum"] u = Add(s, t) ["head"] z = Neg(u) }}"""
MSE = TensorRule(observer="mse")
WIDE = TensorRule(type="int16", symmetric=True)


def ruled(*rules: NodeRule, backend: str = "onnxruntime-cpu", **overrides: Any) -> Any:
    return plan(TEXT, backend, rules=rules, **overrides)


@pytest.mark.parametrize(
    ("rule", "nodes"),
    [
        ({"name": ("body",)}, {"body/a", "body/b"}),
        ({"name": ("t",)}, {"body/b"}),
        ({"regex": "^body/[ab]$"}, {"body/a", "body/b"}),
        ({"operator": ("Add", "Neg")}, {"sum", "head"}),
        ({"between": ("s", "u")}, {"body/b", "sum"}),
        ({"between": ("x", "t"), "operator": ("Conv",)}, {"body/a", "body/b"}),
        ({"between": ("s", "z"), "name": ("body",)}, {"body/b"}),
    ],
)
def test_conditions(rule: dict[str, Any], nodes: set[str]) -> None:
    found, _ = node_rules.resolve(ir.from_proto(proto(TEXT)), [NodeRule(**rule, weights=MSE)])
    assert {name for name in found if name not in "stuz"} == nodes
    assert set(found.values()) == {(MSE, TensorRule())}


def test_weights_and_activations() -> None:
    low = NodeRule(name=("body/b",), weights=TensorRule(bits=4, per_channel=False))
    found = ruled(low, NodeRule(name=("sum",), activations=WIDE))
    assert spec(found, "v").qtype == QType("int8", -8, 7)
    assert spec(found, "v").granularity == "tensor"
    assert spec(found, "w").granularity == "channel"
    assert spec(found, "t").qtype == spec(found, "u").qtype == QType("int16", -32768, 32767)
    assert spec(found, "x").qtype == QType("uint8", 0, 255)


def test_a_later_rule_wins_value_by_value() -> None:
    first = NodeRule(operator=("Conv",), weights=TensorRule(bits=4, observer="mse"))
    second = NodeRule(name=("body/a",), weights=TensorRule(bits=6))
    found = ruled(first, second)
    assert (spec(found, "w").qtype.bits, spec(found, "w").observer) == (6, "mse")
    assert spec(found, "v").qtype.bits == 4


def test_rules_win_over_widths_of_nodes() -> None:
    found = ruled(NodeRule(name=("body/a",), weights=TensorRule(bits=6)), node_bits=(("body/*", 4, 8),))
    assert (spec(found, "w").qtype.bits, spec(found, "v").qtype.bits) == (6, 4)


def test_float() -> None:
    found = ruled(NodeRule(regex="b$", float=True))
    assert reasons(found)["body/b"] == "left in float by the rule for regex b$"


def test_a_graph_input_has_a_rule_of_its_own() -> None:
    found = ruled(NodeRule(name=("x",), activations=TensorRule(type="int8", symmetric=True)))
    assert (spec(found, "x").qtype.storage, spec(found, "x").symmetric) == ("int8", True)
    assert spec(found, "s").qtype.storage == "uint8"


def test_a_rule_that_matches_nothing() -> None:
    for rule, hint in (
        (NodeRule(name=("bodi/a",), weights=MSE), "body/a"),
        (NodeRule(operator=("Relu",), weights=MSE), "Add, Conv, Neg"),
        (NodeRule(between=("s", "nothing"), weights=MSE), "s"),
    ):
        with pytest.raises(UsageError) as caught:
            node_rules.resolve(ir.from_proto(proto(TEXT)), [rule])
        assert caught.value.code == "pattern-no-match"
        assert hint in caught.value.hint


def test_types_that_the_compiler_refuses() -> None:
    wide = Overrides(rules=(NodeRule(operator=("Conv",), activations=TensorRule(type="uint8")),))
    with pytest.raises(UsageError, match="does not compile activations of type uint8") as caught:
        apply(wide, schema.load("tensorrt"))
    assert caught.value.code == "option-invalid"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"weights": MSE}, "condition"),
        ({"name": ("a",)}, "needs weights"),
        ({"regex": "(", "weights": MSE}, "regex"),
        ({"name": ("a",), "activations": TensorRule(per_channel=True)}, "one scale"),
    ],
)
def test_rules_that_say_nothing(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        NodeRule(**given)


def test_what_a_plan_says_as_rules_makes_the_same_plan() -> None:
    first = ruled(NodeRule(name=("body/b",), weights=TensorRule(bits=4), activations=WIDE))
    rows = [
        NodeRule(
            name=(row["name"],) if isinstance(row["name"], str) else tuple(row["name"]),
            weights=TensorRule(**row.get("weights", {})),
            activations=TensorRule(**row.get("activations", {})),
        )
        for row in node_rules.of_plan(first)
    ]
    assert ruled(*rows).edges == first.edges


def test_parameters_keep_their_width_where_activations_are_wider() -> None:
    """Qualcomm's LayerNorm with gamma in 16 bits goes to the CPU."""
    text = f"""g (float[2,8] x) => (float[2,8] y) <float[8] gamma = {weight(8)}, float[8] beta = {weight(8)}>
        {{ a = Relu(x) l = LayerNormalization <axis: int = -1> (a, gamma, beta) y = Relu(l) }}"""
    found = edges(plan(text, "qnn-htp", node_bits=(("l_LayerNormalization", 8, 16),)))
    assert found["gamma"][0].decision.qtype.storage == "uint8"
    assert {edge.decision.qtype.storage for edge in found["a"]} == {"uint16"}
