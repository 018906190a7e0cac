"""Backend tables: they load, extend each other, and say where they are wrong."""

import re
from pathlib import Path

import pytest
import yaml

from onnxqat.backends import review, schema, table_files, validation
from onnxqat.errors import BackendError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.types import QType
from tests.backends.planning import proto, table_file

TABLE = """
schema: 1
backend: mine
description: a table
opset: [13, 25]
placement: both
types:
  act: {dtype: uint8, symmetric: false}
  wt: {dtype: int8, granularity: channel}
ops:
  Conv: {in: [act, wt@0], out: [act]}
"""


def refused(folder: Path, text: str) -> BackendError:
    with pytest.raises(BackendError) as caught:
        schema.load(table_file(folder, text))
    return caught.value


def test_the_built_in_tables(repository: Path) -> None:
    """The page on tables, which a tool writes and people read, promises each by its name."""
    page = (repository / "docs" / "backends.md").read_text(encoding="utf-8")
    promised = re.findall(r"^\| `([a-z0-9-]+)` \| (?:u?int|float)", page, re.M)
    assert schema.names() == promised


@pytest.mark.parametrize("name", schema.names())
def test_every_table_loads(name: str, tmp_path: Path) -> None:
    table = schema.load(name)
    # The tables of the package are read without pydantic: that they are valid is this test's to show.
    path = table_files.FOLDER / f"{name.replace('-', '_')}.yaml"
    assert schema.load(table_file(tmp_path, path.read_text(encoding="utf-8"))) == table
    assert table.backend == name
    assert table.source
    assert table.opset[0] <= table.opset[1]
    # A Gemm becomes a MatMul where activations are quantized as the model runs.
    linear = set() if name == "mnn" else {"MatMul", *([] if table.dynamic_activations else ["Gemm"])}
    assert linear <= set(table.ops)


@pytest.mark.parametrize("name", schema.names())
def test_every_statement_of_a_table_has_a_source(name: str) -> None:
    stated = schema.stated(name)
    assert review.unsourced(stated) == []
    assert "extends" in stated or {"opset", "placement", "io"} <= set(stated["facts"])
    doubts = [text for text in review.remarks(schema.load(name)) if "unverified" not in text]
    assert doubts == []
    assert all(fact.source for fact in schema.load(name).facts.values())


def test_what_nobody_published_is_marked() -> None:
    for name in ("tsqat", "experimental"):
        facts = schema.load(name).facts
        open_ones = {key for key, fact in facts.items() if fact.status == "unverified"}
        assert open_ones == {"types.act.symmetric", "types.act.scale", "placement"}


@pytest.mark.parametrize("name", schema.names())
def test_description_is_an_equal_table(name: str, tmp_path: Path) -> None:
    table = schema.load(name)
    found = schema.load(table_file(tmp_path, schema.describe(table)))
    assert found == table.model_copy(update={"extends": None})


def test_description_keeps_every_kind_of_slot(tmp_path: Path) -> None:
    text = TABLE + (
        "  Concat: {in: [act...], out: [act], share: io}\n"
        "  Add: {in: [act, '-'], out: [{use: act, fixed: {scale: 0.5, zero_point: qmin}}]}\n"
        "  AveragePool: {in: [act], when: {count_include_pad: 0}, float_output: true}\n"
        "  Mul: {in: [act, wt@K], not_behind: [Conv], share: io, convert: true}\n"
        "fused:\n  - {chain: [Conv|Add, Relu], when: clip_is_redundant, else: float}\n"
        "first_last_bits: 8\nsession: {a: '1'}\nio: {inputs: float}\npairs: consumer\n"
        "checks:\n  - {op: Conv|Add, shift: in0 + in1 - out, range: [0, 16]}\n"
        "facts:\n  types.act: {source: somebody, status: inferred, note: so}\n"
    )
    table = schema.load(table_file(tmp_path, text))
    (again := tmp_path / "again").mkdir()
    assert schema.load(table_file(again, schema.describe(table))) == table
    assert table.ops["Add"].input_slot(1) == schema.Slot()
    assert table.ops["Concat"].input_slot(7) == schema.Slot(use="act", variadic=True)
    assert table.fused[0].chain == (("Conv", "Add"), ("Relu",))


def test_extends_states_the_differences(tmp_path: Path) -> None:
    text = """
backend: mine
extends: openvino-cpu
io: {outputs: float}
types: {act: {symmetric: true}}
ops: {Mul: null, Add: {in: [act]}}
passthrough: [Reshape]
"""
    table, base = schema.load(table_file(tmp_path, text)), schema.load("openvino-cpu")
    assert table.backend == "mine"
    assert (table.io.inputs, table.io.outputs) == ("quantize", "float")
    assert table.types["act"] == base.types["act"].model_copy(update={"symmetric": True})
    assert set(base.ops) - set(table.ops) == {"Mul"}
    assert len(table.ops["Add"].inputs) == 1
    assert table.ops["Add"].outputs == base.ops["Add"].outputs
    assert table.passthrough == ("Reshape",)
    assert table.fused == base.fused


def test_extends_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("backend: base\nextends: tensorrt\nplacement: both\n")
    assert schema.load(table_file(tmp_path, "backend: mine\nextends: base.yaml\n")).placement == "both"


def test_tables_that_extend_each_other(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(f"extends: {second}\n")
    second.write_text(f"extends: {first}\n")
    with pytest.raises(BackendError, match=r"first\.yaml: extends: .*circle") as caught:
        schema.load(str(first))
    assert caught.value.code == "backend-table"


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        (("placement: both", "placement: both\nplacment: both"), "placment", "no such key"),
        (("opset: [13, 25]\n", ""), "opset", "required"),
        (("placement: both", "placement: everywhere"), "placement", "'both' or 'inputs'"),
        (("Conv: {in: [act, wt@0]", "Convolve: {in: [act, wt@0]"), "table", "'Convolve' is not an operator"),
        (("out: [act]", "out: [acts]"), "table", "ops.Conv uses type 'acts'"),
        (("dtype: uint8", "dtype: uint7"), "types.act", "'uint7' is none of"),
        (("dtype: uint8", "dtype: int32"), "types.act", "derive: in0*in1"),
        (("dtype: uint8", "dtype: int4, bits: 3"), "types.act", "does not go into int4"),
        (("dtype: uint8", "dtype: uint8, bits: 9"), "types.act", "9 bits"),
        (("dtype: uint8", "dtype: uint8, bits: 1"), "types.act", "1 bits"),
        (("dtype: uint8", "dtype: uint8, qrange: [0, 300]"), "types.act", "do not fit uint8"),
        (("wt@0", "wt@first"), "ops.Conv.in.1", "first"),
        (("out: [act]", "out: [{use: act, dtype: int7}]"), "table", "'int7'"),
        (("out: [act]", "out: [{use: act, fixed: {zero_point: 0}}]"), "ops.Conv.out.0.fixed", "scale > 0"),
        (("out: [act]", "out: [{use: act, fixed: {scale: 0}}]"), "ops.Conv.out.0.fixed", "scale > 0"),
        (("placement: both", "placement: both\nfirst_last_bits: 1"), "table", "first_last_bits is 1"),
        (("placement: both", "placement: both\nfused: [{chain: [Conv, Rlu]}]"), "table", "'Rlu'"),
        (("granularity: channel", "granularity: block"), "types.wt", "a block of at least 2"),
        (("granularity: channel", "granularity: channel, block: 8"), "types.wt", "a block of at least 2"),
        (("dtype: uint8", "dtype: float8e4m3fn"), "types.act", "is symmetric"),
        (("dtype: int8,", "dtype: float8e4m3fn, observer: mse,"), "types.wt", "equal steps"),
        (("dtype: uint8", "dtype: uint8, unsigned: true"), "types.act", "unsigned twin"),
        (("dtype: int8,", "dtype: int8, derive: in0*in1, bits: 33,"), "types.wt", "33 bits of a derived bias"),
        (
            ("placement: both", "placement: both\nchecks: [{op: Conv, shift: in0 in1, range: [0, 1]}]"),
            "checks.0",
            "in0 in1",
        ),
        (("placement: both", "placement: both\nchecks: [{op: Conv, shift: in9, range: [0, 1]}]"), "checks.0", "in9"),
        (("placement: both", "placement: both\nchecks: [{op: Conv, shift: in0, range: [1, 0]}]"), "checks.0", "empty"),
        (("placement: both", "placement: both\nchecks: [{op: Cnv, shift: in0, range: [0, 1]}]"), "table", "'Cnv'"),
        (("placement: both", "placement: both\nfacts: {ops: {source: a, status: sure}}"), "facts.ops.status", "'run'"),
    ],
)
def test_error_names_file_and_key(change: tuple[str, str], key: str, says: str, tmp_path: Path) -> None:
    assert TABLE.count(change[0]) == 1
    error = refused(tmp_path, TABLE.replace(*change))
    assert error.code == "backend-table"
    assert f"{tmp_path / 'table.yaml'}: {key}" in error.message
    assert says in error.message
    assert "\n" not in error.message


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    again = TABLE + "  Gemm: {in: [act], out: [act]}\n  Conv: {in: [act, wt], out: [act]}\n"
    error = refused(tmp_path, again)
    assert error.code == "backend-table"
    assert str(tmp_path / "table.yaml") in error.message
    assert "line 13: the key 'Conv' is there twice, first in line 11" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- schema",
        "a: !!bool maybe",
        "a: !!timestamp now",
        "? !!map a",
        "schema",
        "",
        "a: \x00",
        f"a: {'9' * 9999}",
    ],
)
def test_no_mapping_at_all(text: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text)
    assert error.code == "backend-table"
    assert str(tmp_path / "table.yaml") in error.message


@pytest.mark.parametrize(("name", "close"), [("openvino", "openvino-cpu"), ("onnxruntime_cpuu", "onnxruntime-cpu")])
def test_unknown_name(name: str, close: str) -> None:
    with pytest.raises(BackendError) as caught:
        schema.load(name)
    assert caught.value.code == "backend-unknown"
    assert close in caught.value.hint


@pytest.mark.parametrize("name", ["../backends/academic", "missing.yaml", "", "a/b"])
def test_no_way_around_the_names(name: str) -> None:
    with pytest.raises(BackendError) as caught:
        schema.load(name)
    assert caught.value.code == "backend-unknown"


def test_name_with_underscores() -> None:
    assert schema.load("onnxruntime_cpu") == schema.load("onnxruntime-cpu")


@pytest.mark.parametrize(
    ("row", "grid"),
    [
        ({"dtype": "int8"}, QType("int8", -128, 127)),
        ({"dtype": "int8", "reduce_range": True}, QType("int8", -64, 63)),
        ({"dtype": "int8", "bits": 8, "reduce_range": True}, QType("int8", -64, 63)),
        ({"dtype": "int8", "bits": 4, "reduce_range": True}, QType("int8", -8, 7)),
        ({"dtype": "uint8", "reduce_range": True}, QType("uint8", 0, 255)),
        ({"dtype": "uint8", "bits": 3}, QType("uint8", 0, 7)),
        ({"dtype": "int8", "qrange": [-127, 127]}, QType("int8", -127, 127)),
        ({"dtype": "uint16"}, QType("uint16", 0, 65535)),
        ({"dtype": "int4"}, QType("int4", -8, 7)),
    ],
)
def test_grid_of_a_type(row: dict[str, object], grid: QType) -> None:
    assert validation.validated(schema.TypeRow, row, "here").qtype() == grid


def test_axis_counts_per_channel_only() -> None:
    per_tensor, per_channel = schema.TypeRow(dtype="int8"), schema.TypeRow(dtype="int8", granularity="channel")
    assert per_tensor.spec("weight", 1).axis is None
    assert per_channel.spec("weight", 1).axis == 1
    assert per_channel.spec("weight", None).granularity == "tensor"


def test_description_lists_what_is_inherited(tmp_path: Path) -> None:
    table = schema.load(table_file(tmp_path, "backend: mine\nextends: tensorrt\n"))
    assert set(yaml.safe_load(schema.describe(table))["ops"]) == set(schema.load("tensorrt").ops)


def test_former_names_are_read_and_said(tmp_path: Path) -> None:
    text = """backend: mine
extends: onnxruntime-cpu
moved: bare
summands: [Conv]
exact: odd
ops: {AveragePool: {tie: io, midpoints: true}}
fused: [{chain: [Conv, Relu], when: clip_is_redundant, else: tie, inner: bare}]
facts: {moved: {source: a test, status: run}}
"""
    table = schema.load(table_file(tmp_path, text))
    assert (table.data_movement, table.fused_residual_add, table.exact) == ("no_pair", ("Conv",), "tie_free")
    assert (table.ops["AveragePool"].share, table.ops["AveragePool"].meets_ties) == ("io", True)
    assert (table.fused[0].otherwise, table.fused[0].inner) == ("share", "no_pair")
    assert table.facts["data_movement"].source == "a test"
    assert list(table.former_keys) == [
        "moved is now data_movement: no_pair",
        "summands is now fused_residual_add",
        "exact is now exact: tie_free",
        "ops.AveragePool.tie is now ops.AveragePool.share",
        "ops.AveragePool.midpoints is now ops.AveragePool.meets_ties",
        "fused.else is now fused.else: share",
        "fused.inner is now fused.inner: no_pair",
    ]
    result = insert_qdq(
        proto("g (float[1,2] x) => (float[1,2] y) { y = Relu(x) }"), table_file(tmp_path, text), random_data=True
    )
    assert "backend table mine: summands is now fused_residual_add" in [r.message for r in result.remarks]
    assert not schema.load("openvino-cpu").former_keys
