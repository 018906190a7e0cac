"""What a compiler stops at is an error before calibration; what it leaves to the CPU is a remark."""

from pathlib import Path

import pytest

from onnxqat.errors import BackendError, ModelError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, table_file, weight

LAYER = f"""g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {weight(4, 4)}> {{ h = MatMul(x, w) BODY }}"""
ROWS = """schema: 1
backend: mine
extends: qnn-htp
limits:
  - {op: Gelu|Softplus, outcome: hang, form: FORM, why: "it went on for ever"}
  - {op: Erf, outcome: cpu, why: "no kernel"}
  - {op: Softmax, outcome: refused, when: {axis: 0}, why: "another axis than the last"}
  - {op: Conv, outcome: crash, when: {"strides>=": 8}, why: "it ended"}
"""


def made(folder: Path, body: str, form: str = "float") -> list[str]:
    """Remarks of placing a layer with `body` behind it."""
    (folder / form).mkdir(exist_ok=True)  # tables are kept by their path
    table = table_file(folder / form, ROWS.replace("FORM", form))
    return [r.message for r in insert_qdq(proto(LAYER.replace("BODY", body)), table, random_data=True).remarks]


def test_it_stops_before_calibration(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        made(tmp_path, "s = Softplus(h) y = Softplus(s)")
    assert caught.value.code == "target-refuses"
    assert "does not end: Softplus in float: it went on for ever; so it is with 1 more nodes" in caught.value.message


def test_the_form_counts(tmp_path: Path) -> None:
    assert not any("went on" in text for text in made(tmp_path, "y = Gelu(h)"))  # the table has a row: between pairs
    with pytest.raises(ModelError, match="between pairs"):
        made(tmp_path, "y = Gelu(h)", form="quantized")


def test_pairs_that_are_kept_count(tmp_path: Path) -> None:
    table = table_file(tmp_path, ROWS.replace("FORM", "float"))
    quantized = insert_qdq(proto(LAYER.replace("BODY", "y = Gelu(h)")), table, random_data=True).model
    again = insert_qdq(quantized, table, random_data=True, keep=True)
    assert again.model.SerializeToString() == quantized.SerializeToString()


def test_attributes_count(tmp_path: Path) -> None:
    made(tmp_path, "y = Softmax <axis = 1> (h)")
    with pytest.raises(ModelError, match="Softmax with axis=0: another axis"):
        made(tmp_path, "y = Softmax <axis = 0> (h)")


def test_the_cpu_is_a_remark(tmp_path: Path) -> None:
    assert [t for t in made(tmp_path, "y = Erf(h)") if "leaves it to the CPU: Erf: no kernel" in t]


def test_a_table_is_checked(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="limits"):
        made(tmp_path, "y = Erf(h)", form="sometimes")


def test_what_the_node_reads_counts(tmp_path: Path) -> None:
    rows = ROWS.replace("FORM", "any") + '  - {op: Relu, behind: Softmax|Tanh, outcome: refused, why: "not there"}\n'
    table = table_file(tmp_path, rows)
    insert_qdq(proto(LAYER.replace("BODY", "t = Tanh(h) s = Sigmoid(t) y = Relu(s)")), table, random_data=True)
    with pytest.raises(ModelError, match="Relu behind Softmax or Tanh: not there"):
        insert_qdq(proto(LAYER.replace("BODY", "t = Tanh(h) y = Relu(t)")), table, random_data=True)
    (tmp_path / "wrong").mkdir()
    with pytest.raises(BackendError, match="Rellu"):
        insert_qdq(
            proto(LAYER.replace("BODY", "y = Tanh(h)")),
            table_file(tmp_path / "wrong", rows.replace("Softmax|Tanh", "Rellu")),
            random_data=True,
        )


def strided(stride: int) -> str:
    return f"""g (float[1,1,16,16] x) => (float[1,1,H,W] y) <float[1,1,1,1] w = {{1}}> {{
        y = Conv <strides = [1, {stride}]> (x, w) }}"""


def test_a_number_at_least_so_large(tmp_path: Path) -> None:
    table = table_file(tmp_path, ROWS.replace("FORM", "float"))
    insert_qdq(proto(strided(7)), table, random_data=True)
    with pytest.raises(ModelError, match=r"crashes: Conv .*with strides of 8 and more: it ended"):
        insert_qdq(proto(strided(8)), table, random_data=True)


VOLUME = """g (float[1,1,4,4,16] x) => (float[1,1,4,4,2] y) <float[1,1,1,1,1] w = {1}> {
    y = Conv <strides = [1, 1, 8]> (x, w) }"""
COMPUTED = """g (float[1,1,16,16] x, float[1,1,1,1] v) => (float[1,1,H,W] y) {
    w = Neg(v) y = Conv <strides = [8, 8]> (x, w) }"""


@pytest.mark.parametrize(
    ("condition", "met", "said"),
    [("rank: 5", VOLUME, "over 5 axes"), ("computed: true", COMPUTED, "with a computed weight")],
)
def test_axes_and_a_computed_weight(tmp_path: Path, condition: str, met: str, said: str) -> None:
    rows = ROWS.replace("FORM", "float").replace("op: Conv,", f"op: Conv, {condition},")
    table = table_file(tmp_path, rows)
    insert_qdq(proto(strided(8)), table, random_data=True)
    with pytest.raises(ModelError, match=f"with strides of 8 and more {said}: it ended"):
        insert_qdq(proto(met), table, random_data=True)


@pytest.mark.parametrize(("text", "refused"), [(VOLUME, "over 5 axes"), (COMPUTED, "computed"), (strided(16), "")])
def test_rknn_refuses_what_no_workaround_mends(text: str, refused: str) -> None:
    if not refused:
        insert_qdq(proto(text), "rknn", random_data=True)
        return
    with pytest.raises(ModelError, match=refused):
        insert_qdq(proto(text), "rknn", random_data=True)


def test_chips_without_float16_are_told_apart() -> None:
    head = f"g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {weight(4, 4)}, float c = {{0.5}}> {{ h = MatMul(x, w)"
    boxes = proto(f"{head} d = Sub(c, h) y = Mul(d, c) }}")
    chosen = Overrides(exclude_ops=("Sub", "Mul"))
    assert insert_qdq(boxes, "qnn-htp", random_data=True, overrides=chosen).remarks
    with pytest.raises(ModelError, match="qnn-htp-v68 refuses the model: Mul behind Sub"):
        insert_qdq(boxes, "qnn-htp-v68", random_data=True, overrides=chosen)


@pytest.mark.parametrize("nested", [False, True])
def test_branches_of_different_ranks(nested: bool) -> None:
    """OpenVINO takes no If with them, in a branch neither."""

    def text(returned: str, shape: str) -> str:
        inner = "r = If(c) <then_branch = a () => (float[4] p) { p = Squeeze(h, one) }, "
        inner += f"else_branch = b () => (float{shape} q) {{ q = {returned} }}>"
        outer = f"y = If(d) <then_branch = e () => (float[4] s) {{ {inner} s = Relu(r) }}, "
        outer += "else_branch = f () => (float[4] t) { t = Squeeze(h, one) }>"
        layer = f"<float[4,4] w = {weight(4, 4)}, int64[1] one = {{0}}> {{ h = MatMul(x, w) "
        return (
            f"g (float[1,4] x, bool c, bool d) => (float[4] y) {layer} {outer if nested else inner + ' y = Relu(r)'} }}"
        )

    with pytest.raises(ModelError, match="refuses the model: If whose branches return different numbers of axes"):
        insert_qdq(proto(text("Identity(h)", "[1,4]")), "openvino-cpu", random_data=True)
    made = insert_qdq(proto(text("Squeeze(h, one)", "[4]")), "openvino-cpu", random_data=True)
    assert made.quantizers["weight"] == 1
