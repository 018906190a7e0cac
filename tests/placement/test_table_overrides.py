"""What the user takes out or changes."""

from typing import Any

import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.errors import UsageError
from onnxqat.placement.table_overrides import Overrides, apply, select, type_roles
from onnxqat.types import QType
from tests.backends.planning import proto

TEXT = """g (float[N] x) => (float[N] out) {
    ["block1/a"] t = Relu(x) ["block1.b"] u = Neg(t) ["block10"] v = Abs(u) ["head"] out = Relu(v) }"""


def left_out(**overrides: object) -> dict[str, str]:
    return select(ir.from_proto(proto(TEXT)), Overrides(**overrides)).left_out  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("head", {"head"}),
        ("block1", {"block1/a", "block1.b"}),
        ("block1/", {"block1/a", "block1.b"}),
        ("block1*", {"block1/a", "block1.b", "block10"}),
        ("block?0", {"block10"}),
        ("u", {"block1.b"}),
        ("*", {"block1/a", "block1.b", "block10", "head"}),
    ],
)
def test_patterns(pattern: str, nodes: set[str]) -> None:
    assert left_out(exclude=(pattern,)) == dict.fromkeys(nodes, f"excluded by {pattern!r}")
    assert set(left_out(include=(pattern,))) == {"block1/a", "block1.b", "block10", "head"} - nodes


def test_operator_type() -> None:
    assert left_out(exclude_ops=("Relu",)) == dict.fromkeys(("block1/a", "head"), "operator type Relu is excluded")


def test_a_node_that_was_merged_is_known_by_its_tensor() -> None:
    chosen = select(ir.from_proto(proto(TEXT)), Overrides(exclude=("block10",)))
    merged = ir.from_proto(proto('g (float[N] x) => (float[N] v) { ["another"] v = Relu(x) }')).graph[0]
    assert chosen.reason(merged) == "excluded by 'block10'"
    other = ir.from_proto(proto('g (float[N] x) => (float[N] y) { ["another"] y = Relu(x) }')).graph[0]
    assert chosen.reason(other) is None


@pytest.mark.parametrize("option", ["exclude", "include", "exclude_ops"])
@pytest.mark.parametrize("pattern", ["nothing", "relu", "block"])
def test_a_pattern_that_matches_nothing(option: str, pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        left_out(**{option: ("*" if option == "exclude" else "Relu" if option != "include" else "head", pattern)})
    assert caught.value.code == "pattern-no-match"
    assert repr(pattern) in caught.value.message
    close = "did you mean Relu?" if (option, pattern) == ("exclude_ops", "relu") else None
    assert caught.value.hint == close if close else "block1/a" in caught.value.hint or "Neg" in caught.value.hint


def test_widths_change_every_type_of_that_role() -> None:
    table = apply(Overrides(weight_bits=4, activation_bits=6), schema.load("onnxruntime-cpu"))
    assert table.types["wt"].qtype() == QType("int8", -8, 7)
    assert table.types["act"].qtype() == QType("uint8", 0, 63)
    assert table.types["bias"] == schema.load("onnxruntime-cpu").types["bias"]


def test_sixteen_bits_take_another_storage_type() -> None:
    table = apply(Overrides(weight_bits=16, activation_bits=16), schema.load("onnxruntime-cpu-s8"))
    assert table.types["wt"].qtype() == table.types["act"].qtype() == QType("int16", -32768, 32767)


@pytest.mark.parametrize(
    ("backend", "choice", "what"),
    [
        ("tensorrt", {"activation_bits": 16}, "activations of type int16"),
        ("tensorrt", {"weight_bits": 16}, "weights of type int16"),
        ("tensorrt", {"node_bits": (("head", 8, 16),)}, "activations of type int16"),
        ("tensorrt", {"first_last_bits": 16}, "weights of type int16"),
        ("tensorrt", {"activation_type": "uint8"}, "activations of type uint8 with a zero point"),
        ("tensorrt", {"activation_type": "int8"}, "activations of type int8 with a zero point"),
        ("tensorrt-nlp", {"activation_type": "int16-symmetric"}, "activations of type int16"),
        ("tensorrt-int4", {"weight_bits": 8}, "weights of type int8"),
        ("qnn-htp-a16", {"weight_bits": 16}, "weights of type int16"),
    ],
)
def test_types_that_the_compiler_refuses(backend: str, choice: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=f"{backend} does not compile {what} ") as caught:
        apply(Overrides(**choice), schema.load(backend))
    assert caught.value.code == "option-invalid"
    assert "int" in caught.value.hint


def test_types_that_the_compiler_takes() -> None:
    for backend, choice in (
        ("tensorrt", {"activation_type": "int8-symmetric", "weight_bits": 4, "first_last_bits": 8}),
        ("tensorrt-fp8", {}),
        ("qnn-htp", {"activation_bits": 16}),
        ("qnn-htp-w4", {"weight_bits": 8}),
    ):
        apply(Overrides(**choice), schema.load(backend))


def test_the_other_choices() -> None:
    base = schema.load("onnxruntime-cpu")
    table = apply(
        Overrides(per_channel=False, observer="mse", reduce_range=False, activation_type="int8-symmetric"), base
    )
    assert table.types["wt"].granularity == "tensor"
    assert table.types["wt"].observer == table.types["act"].observer == "mse"
    assert table.types["wt"].qtype() == QType("int8", -128, 127)
    assert (table.types["act"].dtype, table.types["act"].symmetric) == ("int8", True)
    assert base == schema.load("onnxruntime-cpu")
    assert apply(Overrides(), base) == base


@pytest.mark.parametrize("width", [-1, 0, 1, 9, 15, 17])
def test_impossible_widths(width: int) -> None:
    for option in ("weight_bits", "activation_bits", "first_last_bits"):
        if (option, width) == ("first_last_bits", 0):  # leaves them in float
            continue
        with pytest.raises(UsageError) as caught:
            apply(Overrides(**{option: width}), schema.load("academic"))
        assert caught.value.code == "option-invalid"


def test_unknown_activation_type() -> None:
    with pytest.raises(UsageError, match="'int7'") as caught:
        apply(Overrides(activation_type="int7"), schema.load("academic"))
    assert "uint8" in caught.value.hint


def test_roles() -> None:
    assert type_roles(schema.load("onnxruntime-cpu")) == ({"act"}, {"wt", "wt_f"})
