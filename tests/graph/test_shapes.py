"""What onnx infers is read into the model, and nothing else about the model changes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.graph import shapes, walk
from tests.backends.planning import weight

CONV = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] x) => (y) <float[16,3,5,5] w = {weight(16, 3, 5, 5)}, int64[2] s = {{-1, 16}}> {{
    t = Conv<pads = [2,2,2,2]>(x, w)
    p = GlobalAveragePool(t)
    y = Reshape(p, s) }}"""
BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[2,3] x) => (y) {
    y = If (c) <then_branch = a () => (float[2,3] u) { s = Relu(x)  u = Abs(s) },
                else_branch = b () => (float[2,3] v) { r = Transpose(x)  v = Transpose(r) }> }"""
UNKNOWN = """<ir_version: 8, opset_import: ["" : 17, "some.where" : 1]>
g (float[2,3] x) => (y) { r = Relu(x)  t = some.where.Mystery(r)  s = Shape(r)  y = Abs(t) }"""
BROKEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, float[5,7] z) => (y) { r = Relu(x)  t = MatMul(r, z)  y = Abs(t) }"""
SEQUENCE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (y) { q = SequenceConstruct(x, x)  i = Constant<value = int64 {0}>()  y = SequenceAt(q, i) }"""


def loaded(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def known(model: ir.Model) -> dict[str, tuple[object, object]]:
    return {
        str(v.name): (v.dtype, None if v.shape is None else tuple(d if isinstance(d, int) else str(d) for d in v.shape))
        for scope in walk.scopes(model)
        for v in walk.values(scope)
    }


def test_types_and_shapes_follow() -> None:
    model = loaded(CONV)
    shapes.infer(model)
    found = known(model)
    assert found["t"] == (ir.DataType.FLOAT, ("N", 16, 8, 8))
    assert found["p"] == (ir.DataType.FLOAT, ("N", 16, 1, 1))
    assert found["y"][1] is not None, "the target of the Reshape is small enough to be read"


def test_inside_branches() -> None:
    model = loaded(BRANCHES)
    shapes.infer(model)
    found = known(model)
    assert found["s"] == (ir.DataType.FLOAT, (2, 3))
    assert found["r"] == (ir.DataType.FLOAT, (3, 2))


def test_behind_what_onnx_does_not_know() -> None:
    model = loaded(UNKNOWN)
    shapes.infer(model)
    found = known(model)
    assert found["r"] == (ir.DataType.FLOAT, (2, 3))
    assert found["s"] == (ir.DataType.INT64, (2,))
    assert found["t"] == (None, None)


def test_a_type_that_is_no_tensor() -> None:
    model = loaded(SEQUENCE)
    shapes.infer(model)
    sequence = next(v for v in walk.values(model.graph) if v.name == "q")
    assert sequence.type == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))


@pytest.mark.parametrize("text", [CONV, BRANCHES, UNKNOWN, BROKEN, SEQUENCE])
def test_as_the_pass_of_onnx_ir(text: str) -> None:
    from onnx_ir.passes.common import ShapeInferencePass

    ours, theirs = loaded(text), loaded(text)
    shapes.infer(ours)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(theirs)
    assert known(ours) == known(theirs)


def test_the_model_keeps_its_weights_inputs_and_order() -> None:
    model = loaded(CONV)
    weights = {name: np.array(v.const_value.numpy()) for name, v in model.graph.initializers.items() if v.const_value}
    shapes.infer(model)
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert list(model.graph.initializers) == list(weights) == ["w", "s"]
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), weights[name])


def test_large_weights_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[onnx.ModelProto] = []
    real = onnx.shape_inference.infer_shapes

    def spy(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        seen.append(model)
        return real(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    shapes.infer(loaded(CONV))
    assert [t.name for t in seen[0].graph.initializer] == ["s"]


def test_what_the_file_states_in_full_stays() -> None:
    model = loaded(UNKNOWN)
    stated = next(v for v in walk.values(model.graph) if v.name == "t")
    stated.type, stated.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2, 16])
    assert shapes.mend(model) == ()
    shapes.infer(model)
    assert known(model)["t"] == (ir.DataType.FLOAT, (2, 16))


def test_inference_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    model = loaded(CONV)
    before = known(model)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    shapes.infer(model)
    assert known(model) == before


def test_names_of_dimensions_of_outputs_stay() -> None:
    model = loaded(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[N,M] y) { r = Relu(x) y = Abs(r) }'
    )
    shapes.infer(model)
    assert known(model)["y"][1] == ("N", "M")
    assert known(model)["r"][1] == (2, 3)


def test_types_behind_operators_of_onnxruntime_are_known() -> None:
    text = UNKNOWN.replace("some.where", "com.microsoft").replace("Mystery", "QuickGelu")
    model = loaded(text)
    shapes.infer(model)
    assert known(model)["t"] == (ir.DataType.FLOAT, (2, 3))


STALE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,8,8,3] x, bool k) => (float[1,3,8,8] y) <float[1,3,8,8] r, float[N,8,8,3] t> {
    t = Transpose<perm = [0,3,1,2]>(x)
    r = Relu(t)
    a = Abs(r)
    y = If (k) <then_branch = b () => (float[1,3,8,8] u) <float[3,3] s> { s = Neg(a)  u = Abs(s) },
                else_branch = c () => (float[1,3,8,8] v) { v = Neg(a) }> }"""


def test_stated_shapes_that_contradict_the_inputs_are_replaced() -> None:
    model = loaded(STALE)
    assert shapes.mend(model) == ("t", "r", "s", "u", "v")
    shapes.infer(model)
    found = {name: shape for name, (_, shape) in known(model).items()}
    assert found["t"] == ("N", 3, 8, 8), "another order of the axes"
    assert found["r"] == ("N", 3, 8, 8), "a batch of 1 from before the input's batch was left open"
    assert found["s"] == ("N", 3, 8, 8), "of another rank, inside a branch"
    assert found["u"] == found["v"] == ("N", 3, 8, 8), "outputs of branches are inner tensors"
    assert found["y"] == (1, 3, 8, 8), "outputs are the user's"
    assert shapes.mend(model) == ()


def test_a_sequence_out_of_a_branch_stays_one() -> None:
    sequence = "{ %s = SequenceConstruct(a) }"
    model = loaded(f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool k) => (float[2,3] y) <float[9,9] a, float[9,9] b> {{
    a = Relu(x)
    q = If (k) <then_branch = t () => (seq(float[2,3]) u) {sequence % "u"},
                else_branch = e () => (seq(float[2,3]) v) {sequence % "v"}>
    i = Constant<value = int64 {{0}}>()
    b = SequenceAt(q, i)
    y = Abs(b) }}""")
    assert shapes.mend(model) == ("a", "b"), "what follows behind the sequence is known"
