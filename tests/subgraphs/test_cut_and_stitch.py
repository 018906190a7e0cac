"""A part computes what it did inside, and the whole with the part put back computes what it did before."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onnxqat
from onnxqat.errors import QatError
from onnxqat.graph import io, provenance
from tests.backends.planning import proto, weight

WEIGHTS = f"float[4,3,3,3] w = {weight(4, 3, 3, 3)}, float[6,4,1,1] h = {weight(6, 4, 1, 1)}"
DETECTOR = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (uint8[N,3,H,W] picture, float[1] limit) => (float[N,F] best, int64[N,F] index, float[N,6,H,W] raw)
 <{WEIGHTS}, int64[1] five = {{5}}, int64[3] flat = {{0, 6, -1}}, float[1] shared = {{0.5}}> {{
    ["cast"] image = Cast<to = 1>(picture)
    ["scale"] input = Mul(image, shared)
    ["stem"] s = Conv<pads = [1,1,1,1]>(input, w) ["act"] a = Relu(s)
    ["head"] raw = Conv(a, h)
    ["half"] halved = Mul(raw, shared)
    ["shape"] size = Shape(a)
    ["sum"] count = ReduceSum(size)
    ["flatten"] rows = Reshape(halved, flat)
    ["squash"] scores = own.Squash(rows)
    ["most"] m = ReduceMax<axes = [1], keepdims = 0>(scores)
    ["more"] more = Greater(count, count)
    ["choose"] chosen = If(more)<then_branch = t () => (float[A,B] x) {{ x = Add(m, limit) }},
                                 else_branch = e () => (float[A,B] y) {{ y = Mul(m, limit) }}>
    ["top"] best, index = TopK(chosen, five) }}
<domain: "own", opset_import: ["" : 17]> Squash (x) => (y) {{ n = Neg(x) k = Neg(n) y = Sigmoid(k) }}"""


def detector() -> onnx.ModelProto:
    model = proto(DETECTOR)
    model.metadata_props.add(key="who", value="me")
    return model


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "picture": rng.integers(0, 256, (2, 3, 5, 4), np.uint8),
        "limit": np.array([0.25], np.float32),
    }


def picture() -> np.ndarray:
    return feeds()["picture"].astype(np.float32) * np.float32(0.5)


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def test_a_part_computes_what_it_did_inside() -> None:
    part = onnxqat.cut(detector(), ["input"], ["a", "raw"])
    onnx.checker.check_model(part, full_check=True)
    assert names(part) == ["stem", "act", "head"]
    assert {v.name for v in part.graph.initializer} == {"w", "h"}
    assert not part.functions
    assert {v.name: shape(v) for v in (*part.graph.input, *part.graph.output)} == {
        "input": ["N", 3, "H", "W"],
        "a": ["N", 4, "unk__0", "unk__1"],  # as onnx infers it behind padding
        "raw": ["N", 6, "H", "W"],
    }
    assert {p.key: p.value for p in part.metadata_props}["who"] == "me"
    np.testing.assert_array_equal(run(part, {"input": picture()})["raw"], run(detector(), feeds())["raw"])


def test_bodies_and_functions_come_along() -> None:
    tail = onnxqat.cut(detector(), ["raw", "a", "limit"], ["best", "index"])
    onnx.checker.check_model(tail, full_check=True)
    assert [f.name for f in tail.functions] == ["Squash"]
    front = run(onnxqat.cut(detector(), ["picture"], ["a", "raw"]), {"picture": feeds()["picture"]})
    whole = run(detector(), feeds())
    equal(run(tail, {**front, "limit": feeds()["limit"]}), {k: whole[k] for k in ("best", "index")})


def test_the_boundary_is_found() -> None:
    part = onnxqat.cut(detector(), auto=True)
    noted = json.loads({p.key: p.value for p in part.metadata_props}["onnxqat.cut"])
    assert noted == {"inputs": ["input"], "outputs": ["raw", "a"]}
    only_tail = onnxqat.cut(detector(), inputs=["picture"], auto=True)
    assert [v.name for v in only_tail.graph.input] == ["picture"]


def test_a_classifier_has_no_boundary() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {weight(4, 4)}>
    {{ p = MatMul(x, w) y = Softmax(p) }}"""
    with pytest.raises(QatError, match="no pre- or post-processing"):
        onnxqat.cut(proto(text), auto=True)


def test_weights_inside_a_function_are_a_network() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[N,4] x) => (int64[N] y) <float[4,4] w = {weight(4, 4)}> {{
        p = own.Layer(x, w) s = Softmax(p) y = ArgMax<axis = 1, keepdims = 0>(s) }}
    <domain: "own", opset_import: ["" : 17]> Layer (a, b) => (c) {{ m = MatMul(a, b) c = Relu(m) }}"""
    assert [v.name for v in onnxqat.cut(proto(text), auto=True).graph.output] == ["p"]


def test_a_part_that_was_only_cut_fits_back() -> None:
    for ends in (["input"], ["a", "raw"]), (["image"], ["raw"]), (["picture"], ["raw"]), (["s", "limit"], ["chosen"]):
        part = onnxqat.cut(detector(), *ends)
        whole = onnxqat.stitch(part, detector())
        onnx.checker.check_model(whole, full_check=True)
        assert sorted(names(whole)) == sorted(names(detector()))
        assert [v.name for v in whole.graph.input] == ["picture", "limit"]
        equal(run(whole, feeds()), run(detector(), feeds()))


def test_a_quantized_part_in_the_whole() -> None:
    part = onnxqat.cut(detector(), auto=True)
    quantized = onnxqat.insert_qdq(part, "tensorrt", data={"input": picture()}).model
    whole = onnxqat.stitch(quantized, detector())
    onnx.checker.check_model(whole, full_check=True)
    found = run(whole, feeds())
    inside = run(quantized, {"input": picture()})
    tail = run(onnxqat.cut(detector(), ["raw", "a", "limit"], ["best", "index"]), {**inside, "limit": feeds()["limit"]})
    equal(found, {**tail, "raw": inside["raw"]})
    assert not np.array_equal(found["raw"], run(detector(), feeds())["raw"])
    assert {shape(v)[0] for v in whole.graph.output} == {"N"}
    metadata = {p.key: p.value for p in whole.metadata_props}
    assert metadata["onnxqat.backend"] == "tensorrt"
    assert "onnxqat.cut" not in metadata


def test_the_float_model_of_the_whole_is_recorded(tmp_path) -> None:
    onnx.save(detector(), tmp_path / "detector.onnx")
    np.savez(tmp_path / "cal.npz", input=picture())
    part = onnxqat.cut(tmp_path / "detector.onnx", auto=True, output=tmp_path / "part.onnx")
    quantized = onnxqat.insert_qdq(part, data=tmp_path / "cal.npz", output=tmp_path / "part.qdq.onnx").model
    whole = io.load(onnxqat.stitch(quantized, tmp_path / "detector.onnx", tmp_path / "whole.onnx"))
    recorded = provenance.of(whole)
    assert provenance.find_float(whole, tmp_path / "whole.onnx") == tmp_path / "detector.onnx"
    assert recorded.data == ""  # of the part's input, which the whole computes
    assert provenance.of(io.load(quantized)).data == "cal.npz"


def test_new_names_of_the_part_give_way() -> None:
    model = detector()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "input_scale"))
    model.graph.node[[n.name for n in model.graph.node].index("half")].input[1] = "input_scale"
    part = onnxqat.cut(model, ["input"], ["a", "raw"])
    quantized = onnxqat.insert_qdq(part, "tensorrt", data={"input": picture()}).model
    whole = onnxqat.stitch(quantized, model)
    onnx.checker.check_model(whole, full_check=True)
    kept = {v.name: onnx.numpy_helper.to_array(v) for v in whole.graph.initializer}
    assert kept["input_scale"] == np.ones(1)
    inside = run(quantized, {"input": picture()})
    np.testing.assert_array_equal(run(whole, feeds())["raw"], inside["raw"])


def test_what_the_rest_reads_from_inside_comes_from_the_part() -> None:
    part = onnxqat.cut(detector(), ["input"], ["raw"])  # the tail reads the shape of `a` as well
    quantized = onnxqat.insert_qdq(part, data={"input": picture()}).model
    whole = onnxqat.stitch(quantized, detector())
    onnx.checker.check_model(whole, full_check=True)
    assert names(whole).count("stem") == 1
    run(whole, feeds())


def test_files_with_external_data(tmp_path) -> None:
    model = ir.from_proto(detector())
    ir.save(model, tmp_path / "model.onnx", external_data="weights.bin", size_threshold_bytes=0)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    part = onnxqat.cut(tmp_path / "model.onnx", ["input"], ["a", "raw"])
    assert part == tmp_path / "model.part.onnx"
    whole = onnxqat.stitch(part, tmp_path / "model.onnx", tmp_path / "whole.onnx")
    equal(run(onnx.load(whole), feeds()), run(detector(), feeds()))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


WRONG = {
    "unknown": (["inptu"], ["raw"], "name-unknown", "inptu"),
    "bypassed": (["limit"], ["raw"], "option-invalid", "picture"),
    "not needed": (["input", "limit"], ["raw"], "option-invalid", "limit"),
    "constant": (["input", "w"], ["raw"], "option-invalid", "'w'"),
    "twice": (["input"], ["raw", "raw"], "option-invalid", "once"),
    "backwards": (["raw"], ["input"], "option-invalid", "picture"),
    "empty": (["a"], ["a"], "option-invalid", "'a'"),
    "an input": (["picture"], ["picture"], "option-invalid", "picture"),
    "inside a body": (["input"], ["x"], "name-unknown", "'x'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_that_enclose_no_part(case: str) -> None:
    inputs, outputs, code, text = WRONG[case]
    with pytest.raises(QatError, match=text) as failed:
        onnxqat.cut(detector(), inputs, outputs)
    assert failed.value.code == code


def test_nothing_named() -> None:
    with pytest.raises(QatError, match="nothing to cut"):
        onnxqat.cut(detector())


def renamed(part: onnx.ModelProto) -> onnx.ModelProto:
    part.graph.output[0].name = part.graph.node[-1].output[0] = "other"
    return part


def retyped(part: onnx.ModelProto) -> onnx.ModelProto:
    part.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    del part.metadata_props[:]
    return part


@pytest.mark.parametrize(("change", "text"), [(renamed, "cut with"), (retyped, "'raw' is")])
def test_parts_that_do_not_fit(change, text: str) -> None:
    part = change(onnxqat.cut(detector(), ["input"], ["raw"]))
    with pytest.raises(QatError, match=text) as failed:
        onnxqat.stitch(part, detector())
    assert failed.value.code == "option-invalid"


def test_another_whole() -> None:
    other = proto('<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }')
    with pytest.raises(QatError, match="no tensor 'input'"):
        onnxqat.stitch(onnxqat.cut(detector(), ["input"], ["raw"]), other)


def test_sizes_that_become_numbers_are_no_decoding() -> None:
    """Arithmetic on a shape, in front of the weights, is no pre-processing."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,3,H,W] x) => (float[N,4,A,B] y, int64[N,1,A,B] k) <float[4,3,1,1] w = {weight(4, 3, 1, 1)}> {{
        s = Shape(x) c = Cast<to = 1>(s) m = ReduceMax<keepdims = 0>(c) d = Div(x, m)
        y = Conv(d, w) k = ArgMax<axis = 1>(y) }}"""
    part = onnxqat.cut(proto(text), auto=True)
    assert [v.name for v in (*part.graph.input, *part.graph.output)] == ["x", "y"]


def test_weights_that_a_caller_may_override_are_weights() -> None:
    model = detector()
    value = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 3, 3, 3])
    model.graph.input.append(value)
    part = onnxqat.cut(model, auto=True)
    assert [v.name for v in part.graph.input] == ["input", "w"]
    whole = onnxqat.stitch(part, model)
    assert [v.name for v in whole.graph.input] == ["picture", "limit", "w"]
    equal(run(whole, feeds()), run(detector(), feeds()))
