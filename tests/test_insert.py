"""insert_qdq: float ONNX in, calibrated QDQ ONNX out, nothing else changed."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxqat
from onnxqat.errors import BackendError, DataError, ModelError, UsageError
from onnxqat.graph import io, qdq
from onnxqat.graph.provenance import Provenance
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.passes.checks import ort_run
from tests.repetitions import pairs

TEXT = f"""<ir_version: 8, opset_import: ["" : 17], producer_name: "someone">
g (float[N,1,6,6] image) => (float[N,3] logits, float[N,2,6,6] features)
<float[2,1,3,3] w = {weight(2, 1, 3, 3)}, float[2] b = {{0.25, -0.5}}, float[2,3] v = {weight(2, 3)}, float[3] c = {{1, 2, 3}},
 float zero = {{0}}, float six = {{6}}> {{
    ["stem"] t = Conv<pads = [1,1,1,1]>(image, w, b)
    ["act"] features = Clip(t, zero, six)
    ["pool"] p = GlobalAveragePool(features)
    ["flat"] f = Flatten(p)
    ["head"] logits = Gemm(f, v, c) }}"""
DATA = {"image": np.random.default_rng(0).normal(size=(8, 1, 6, 6)).astype(np.float32) * 3}
# One table of each placement; tests/backends goes through all of them.
BACKENDS = ["academic", "onnxruntime-cpu", "openvino-cpu", "tensorrt"]


def model() -> onnx.ModelProto:
    found = proto(TEXT)
    found.metadata_props.add(key="owner", value="me")
    found.doc_string = "a small net"
    return found


RECORDED = {field.name for field in dataclasses.fields(Provenance)}


def content(source: onnx.ModelProto) -> bytes:
    return source.SerializeToString(deterministic=True)


def anonymous(source: onnx.ModelProto) -> bytes:
    """The content without the record of the files that it was made from."""
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    kept = [e for e in copy.metadata_props if e.key.removeprefix("onnxqat.") not in RECORDED]
    del copy.metadata_props[:]
    copy.metadata_props.extend(kept)
    return content(copy)


def quantized(backend: str = "onnxruntime-cpu", **options: Any) -> onnx.ModelProto:
    found = insert_qdq(model(), backend, data=DATA, **options).model
    assert isinstance(found, onnx.ModelProto)
    return found


# ------------------------------------------------------------------ kinds
def test_path(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    before = path.read_bytes()
    result = insert_qdq(path, data=DATA)
    assert path.read_bytes() == before
    assert Path(result.model) == tmp_path / "net.qdq.onnx"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.qdq.onnx"]
    written = onnx.load(result.model)
    assert content(written) != content(quantized())  # it names the float model's file
    assert anonymous(written) == anonymous(quantized())


def test_path_and_output(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "net.onnx")
    result = insert_qdq(str(tmp_path / "net.onnx"), data=DATA, output=tmp_path / "other.onnx")
    assert str(result.model) == str(tmp_path / "other.onnx")
    assert not (tmp_path / "net.qdq.onnx").exists()


def test_proto() -> None:
    source = model()
    result = insert_qdq(source, data=DATA)
    assert content(source) == content(model())
    assert isinstance(result.model, onnx.ModelProto)
    assert result.model is not source


def test_ir_model() -> None:
    source = ir.from_proto(model())
    before = content(ir.to_proto(source))
    result = insert_qdq(source, data=DATA)
    assert content(ir.to_proto(source)) == before
    assert isinstance(result.model, ir.Model)
    assert qdq.is_quantized(result.model)
    assert not qdq.is_quantized(source)


def test_graphsurgeon() -> None:
    source = gs.import_onnx(model())
    before = content(gs.export_onnx(source))
    result = insert_qdq(source, data=DATA)
    assert content(gs.export_onnx(source)) == before
    assert isinstance(result.model, gs.Graph)
    ops = [n.op for n in result.model.nodes]
    assert ops.count("QuantizeLinear") == ops.count("DequantizeLinear") - 2 > 0  # two stored biases


def test_also_written_from_memory(tmp_path: Path) -> None:
    result = insert_qdq(model(), data=DATA, output=tmp_path / "net.onnx")
    assert isinstance(result.model, onnx.ModelProto)
    assert content(onnx.load(tmp_path / "net.onnx")) == content(result.model)


# ------------------------------------------------------------------ what is kept
@pytest.mark.parametrize("backend", BACKENDS)
def test_deterministic(backend: str) -> None:
    assert content(quantized(backend)) == content(quantized(backend))
    random = [insert_qdq(model(), backend, random_data=True).model for _ in range(2)]
    assert content(random[0]) == content(random[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_stay(backend: str) -> None:
    before, after = model(), quantized(backend)
    onnx.checker.check_model(after, full_check=True)
    assert list(after.graph.input) == list(before.graph.input)
    assert [(v.name, v.type) for v in after.graph.output] == [(v.name, v.type) for v in before.graph.output]
    assert {n.name for n in before.graph.node} <= {n.name for n in after.graph.node}
    names = {name for n in after.graph.node for name in (*n.input, *n.output)}
    assert {name for n in before.graph.node for name in (*n.input, *n.output) if name} - {"b", "c"} <= names
    assert (after.producer_name, after.doc_string) == ("someone", "a small net")
    props = {p.key: p.value for p in after.metadata_props}
    assert props["owner"] == "me"
    assert props["onnxqat.backend"] == backend
    assert props["onnxqat.calibration"] == "data"
    assert props["onnxqat.version"] == onnxqat.__version__


@pytest.mark.parametrize("backend", BACKENDS)
def test_stripped_it_is_the_float_model(backend: str) -> None:
    stripped = StripQdq().run(quantized(backend)).model
    before, after = ort_run(model(), DATA), ort_run(stripped, DATA)
    weights = {i.name: numpy_helper.to_array(i) for i in stripped.graph.initializer}
    np.testing.assert_array_equal(weights["w"], numpy_helper.to_array(model().graph.initializer[0]))
    for name, expected in before.items():
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=2e-3, err_msg=name)  # biases lie on a grid


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_to_the_float_model(backend: str) -> None:
    exact, near = (
        ort_run(model(), DATA),
        ort_run(quantized(backend, overrides=Overrides(weight_bits=8, activation_bits=8)), DATA),
    )
    for name, expected in exact.items():
        noise = np.mean((near[name] - expected) ** 2) / np.mean(expected**2)
        assert 0 < noise < 1e-3, (name, noise)


def test_the_activation_is_repeated_by_its_quantizer() -> None:
    found = {q.tensor: q.qparams for q in qdq.quantizers(io.load(quantized()))}
    features = next(p for name, p in found.items() if name.startswith("features"))
    assert np.float32(255) * features.scale <= 6
    assert int(features.zero_point) == 0
    assert "t" not in found


def test_result_counts() -> None:
    result = insert_qdq(model(), data=DATA)
    assert result.quantizers == {"activation": 4, "weight": 2, "bias": 2}
    assert result.plan.backend == "onnxruntime-cpu"


# ------------------------------------------------------------------ data
def test_no_data(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "net.onnx")
    with pytest.raises(DataError) as caught:
        insert_qdq(tmp_path / "net.onnx")
    assert caught.value.code == "data-missing"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_random_data_marks_the_file() -> None:
    found = insert_qdq(model(), random_data=True)
    assert {p.key: p.value for p in found.model.metadata_props}["onnxqat.calibration"] == "random"


def test_limit_and_batch_size_do_not_change_ranges() -> None:
    assert content(quantized(batch_size=1)) == content(quantized(batch_size=8))
    first = insert_qdq(model(), data={"image": DATA["image"][:4]}).model
    assert anonymous(quantized(limit=4)) == anonymous(first)


def test_progress() -> None:
    seen: list[tuple[int, int | None]] = []
    quantized(batch_size=2, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen][-1] == 4
    assert all(total in (None, 4) for _, total in seen)


# ------------------------------------------------------------------ quantized already
def test_already_quantized(tmp_path: Path) -> None:
    onnx.save(quantized(), tmp_path / "net.onnx")
    with pytest.raises(ModelError) as caught:
        insert_qdq(tmp_path / "net.onnx", data=DATA)
    assert caught.value.code == "model-already-quantized"
    assert "net.onnx" in caught.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_replace() -> None:
    again = insert_qdq(quantized("tensorrt"), data=DATA, replace=True)
    assert {p.key: p.value for p in again.model.metadata_props}["onnxqat.backend"] == "onnxruntime-cpu"
    fresh = insert_qdq(model(), data=DATA)
    assert again.quantizers == fresh.quantizers
    stored = [{i.name for i in r.model.graph.initializer} for r in (again, fresh)]
    assert stored[0] == stored[1]


PARTLY = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,6,6] x) => (float[N,2,6,6] y)
<float s = {{0.03}}, uint8 z = {{128}}, int8[2,2,1,1] wq = {{60, -60, 30, 20}}, float[2] ws = {{0.01, 0.02}}, int8[2] wz = {{0, 0}},
 float[2] b = {{0.1, -0.1}}, float[2,2,3,3] v = {weight(2, 2, 3, 3)}> {{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wd = DequantizeLinear<axis = 0>(wq, ws, wz)
    t = Conv(d, wd, b) r = Relu(t) y = Conv<pads = [1,1,1,1]>(r, v) }}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_keep(backend: str) -> None:
    source, data = proto(PARTLY), {"x": np.random.default_rng(0).normal(size=(4, 2, 6, 6)).astype(np.float32)}
    result = insert_qdq(source, backend, data=data, keep=True)
    onnx.checker.check_model(result.model, full_check=True)
    before = {i.name: i for i in source.graph.initializer}
    after = {i.name: i for i in result.model.graph.initializer}
    for name in ("s", "z", "wq", "ws", "wz"):
        assert after[name] == before[name]
    quantized = {n.input[0] for n in result.model.graph.node if n.op_type == "QuantizeLinear"}
    assert quantized >= {"x", "r", "v"}
    assert not quantized & {"d", "wd"}
    exact, near = ort_run(source, data)["y"], ort_run(result.model, data)["y"]
    assert 0 < np.mean((near - exact) ** 2) / np.mean(exact**2) < 1e-2
    again = insert_qdq(result.model, backend, data=data, keep=True)
    assert content(again.model) == content(result.model)


def test_keep_tells_of_weights_that_saturate() -> None:
    data = {"x": np.ones((1, 2, 6, 6), np.float32)}
    # Products with weights of different signs make up for each other.
    for first, expected in (("100, 60", True), ("127, -60", False), ("60, -60", False)):
        result = insert_qdq(proto(PARTLY.replace("60, -60", first)), data=data, keep=True)
        found = [r for r in result.remarks if "were kept as they are" in r.message]
        assert bool(found) is expected
        assert all("in 1 channel of 1 layer" in r.message and len(r.nodes) == 1 for r in found)
    other = insert_qdq(proto(PARTLY.replace("60, -60", "100, 60")), "tensorrt", data=data, keep=True)
    assert not any("were kept as they are" in r.message for r in other.remarks)


def test_keep_or_replace() -> None:
    with pytest.raises(UsageError) as caught:
        insert_qdq(proto(PARTLY), random_data=True, keep=True, replace=True)
    assert caught.value.code == "option-invalid"


# ------------------------------------------------------------------ types and opset
def test_16_bits_raise_the_opset() -> None:
    found = quantized(overrides=Overrides(activation_bits=16))
    assert {e.domain: e.version for e in found.opset_import}[""] >= 21
    onnx.checker.check_model(found, full_check=True)
    assert {e.version for e in quantized().opset_import} == {17}


def for_rknn(body: str) -> onnx.ModelProto:
    """What is quantized of a network of opset 24; RKNN reads up to 19."""
    text = f"""<ir_version: 13, opset_import: ["" : 24]> g (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {{2}}, int64[1] one = {{1}}> {{ t = Conv(x, w) u = Conv(t, w) {body} }}"""
    data = {"x": np.ones((1, 1, 4, 4), np.float32)}
    return insert_qdq(onnx.parser.parse_model(text), "rknn", data=data).model


@pytest.mark.parametrize("op", ["Identity(u)", "ReduceMax(u, one)", "Gelu(u)"])
def test_operators_of_newer_opsets_that_older_ones_can_express(op: str) -> None:
    """What only has more types in newer opsets is no concern: handoff lowers the opset."""
    findings = lint(for_rknn(f"y = {op}"), "rknn").findings
    assert [f.message for f in findings if f.code == "target-opset" and f.severity == "error"] == []


def test_operators_that_the_target_has_no_opset_for() -> None:
    with pytest.raises(BackendError, match=r"rknn reads opset 13 to 19; this model needs 24 for 'y_Swish' \(Swish\)"):
        for_rknn("y = Swish(u)")


def test_16_bits_at_both_ends() -> None:
    found = quantized("academic", overrides=Overrides(first_last_bits=16))
    ort_run(found, DATA)
    assert {q.qparams.qtype.storage for q in qdq.quantizers(io.load(found)) if q.role == "weight"} == {"int16"}


def test_a_backend_that_cannot_read_the_types(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("backend: old\nextends: onnxruntime-cpu\nopset: [13, 17]\n")
    with pytest.raises(BackendError) as caught:
        quantized(str(tmp_path / "old.yaml"), overrides=Overrides(activation_bits=16))
    assert caught.value.code == "backend-opset"


@pytest.mark.parametrize(("backend", "bits"), pairs(BACKENDS, range(2, 9)))
def test_every_width(backend: str, bits: int) -> None:
    found = quantized(backend, overrides=Overrides(weight_bits=bits, activation_bits=bits, first_last_bits=bits))
    onnx.checker.check_model(found, full_check=True)
    grids = [q.qparams.qtype for q in qdq.quantizers(io.load(found)) if q.role != "bias"]
    assert {g.bits for g in grids} <= {bits, bits - 1}  # 8-bit weights may keep to 7 bits
    assert all(np.isfinite(v).all() for v in ort_run(found, DATA).values())


@pytest.mark.parametrize("backend", ["tensorrt", "onnxruntime-cpu"])
@pytest.mark.parametrize("order", ["k, image", "image, k"])
def test_a_constant_in_a_tied_concat_is_covered(backend: str, order: str) -> None:
    text = f"g (float[N,2] image) => (float[M,2] y) <float[1,2] k = {{100, -100}}> {{ t = Concat<axis = 0>({order}) y = Neg(t) }}"
    found = insert_qdq(proto(text), backend, data={"image": np.ones((4, 2), np.float32)}).model
    result = ort_run(found, {"image": np.ones((1, 2), np.float32)})["y"]
    assert sorted(np.round(result.ravel()).tolist())[::3] == [-100.0, 100.0]
    assert len({str(q.scales[0].name) for q in qdq.quantizers(io.load(found))}) == 1


def test_a_group_and_a_wider_reader_of_its_root() -> None:
    w = weight(2, 2, 1, 1)
    text = f"""g (float[N,2,2,2] x, float[N,2,2,2] z) => (float[N,2,2,2] y, float[N,2,2,2] y2)
    <float[2,2,1,1] w = {w}, float[2,4,1,1] v = {weight(2, 4, 1, 1)}> {{
        a = Conv(x, w) b = Conv(z, w) c = Concat<axis = 1>(a, b) y = Conv(c, v) ["last"] y2 = Conv(a, w) }}"""
    overrides = Overrides(weight_bits=4, activation_bits=4, first_last_bits=8)
    found = io.load(insert_qdq(proto(text), "tensorrt", random_data=True, overrides=overrides).model)
    by_reader = {
        (str(node.name), index): q.qparams.qtype.bits
        for q in qdq.quantizers(found)
        for v in q.outputs
        for node, index in v.uses()
    }
    assert by_reader["last", 0] == 8
    assert by_reader["c_Concat", 0] == by_reader["c_Concat", 1] == 4


# ------------------------------------------------------------------ real models
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mtcnn_pnet": {"input": (1, 3, 24, 24)},
    "ppocr_v2_cls": {"x": (1, 3, 48, 192)},
    "silero_vad": {"input": (1, 512), "state": (2, 1, 128), "sr": ()},
    "swift_f0": {"audio": (1, 4096), "fmin": (), "fmax": ()},
}
SCALARS = {"sr": np.int64(16000), "fmin": np.float32(50), "fmax": np.float32(500)}
SMALL = [
    "autoencoder_ad", "dscnn_kws", "dscnn_kws_bn", "mobilenetv1_025_vww", "mtcnn_onet", "mtcnn_pnet", "mtcnn_rnet",
    "resnet8_cifar10", "resnet8_cifar10_bn",
]  # fmt: skip
# In this order those with most weights and nodes are by default with the backends that take least time.
LARGE = [
    "ppocr_v2_cls", "resnet20_cifar10", "basic_pitch", "silero_vad",
    "yolox_nano_coco_416", "swift_f0", "ultraface_rfb_320", "light_inception_v2", "resnet20_cifar10_bn", "mobilenetv2_imagenet_bn", "nanodet_coco_320",
    "efficientnet_lite0_imagenet", "light_squeezenet", "resnet56_cifar10_bn", "light_inception_v1",
    "resnet20_cifar10_dynamo", "resnet20_cifar10_slim", "light_shufflenet",
]  # fmt: skip
# Most of the time of these goes into their weights, and other networks have the same layers.
HEAVY = ["light_bvlc_alexnet", "light_densenet121", "light_resnet50", "light_vgg19", "light_zfnet512"]


REFUSED = {("silero_vad", "openvino-cpu")}  # an If of Squeeze and Identity


def feeds_for(name: str, source: onnx.ModelProto) -> dict[str, np.ndarray]:
    constants = {i.name for i in source.graph.initializer}
    rng, feeds = np.random.default_rng(0), {}
    for value in source.graph.input:
        if value.name in constants:
            continue
        shape = SHAPES.get(name, {}).get(value.name) or tuple(
            max(d.dim_value, 1) for d in value.type.tensor_type.shape.dim
        )
        feeds[value.name] = np.asarray(SCALARS.get(value.name, rng.normal(size=shape).astype(np.float32)))
    return feeds


def runs(content: bytes, feeds: dict[str, np.ndarray], level: ort.GraphOptimizationLevel) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return list(ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, feeds))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *pairs(SMALL, BACKENDS),
        *pairs(LARGE, BACKENDS, pytest.mark.slow),
        *(pytest.param(*pair, marks=pytest.mark.repetition) for pair in itertools.product(HEAVY, BACKENDS)),
    ],
)
def test_real_model(name: str, backend: str, shared: Path) -> None:
    source = onnx.load(shared / "data" / "models" / f"{name}.onnx")
    feeds = feeds_for(name, source)
    # What looks for the best scales takes most of the time, and is tested elsewhere.
    overrides = Overrides(observer="minmax") if backend == "academic" else None
    options: dict[str, Any] = {"data": [feeds], "limit": 1, "overrides": overrides, "fast": True, "guard": False}
    if (name, backend) in REFUSED:
        with pytest.raises(ModelError, match="refuses the model: If whose branches return different numbers of axes"):
            insert_qdq(source, backend, **options)
        return
    result = insert_qdq(source, backend, **options)
    found = result.model
    assert result.quantizers["activation"] > 0
    assert result.quantizers["weight"] > 0
    constants = {i.name for i in source.graph.initializer}
    assert list(found.graph.input) == [v for v in source.graph.input if v.name not in constants]
    assert [v.name for v in found.graph.output] == [v.name for v in source.graph.output]
    assert [v.type.tensor_type.elem_type for v in found.graph.output] == [
        v.type.tensor_type.elem_type for v in source.graph.output
    ]
    onnx.checker.check_model(found, full_check=True)
    serialized = content(found)
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        for array in runs(serialized, feeds, level):
            assert np.isfinite(array).all()


def test_every_real_model_is_listed(shared: Path) -> None:
    assert sorted(p.stem for p in (shared / "data" / "models").glob("*.onnx")) == sorted([*SMALL, *LARGE, *HEAVY])


def test_nodes_left_in_float_say_why() -> None:
    made = quantized(overrides=Overrides(exclude=("head",)))
    reasons = {n.name: p.value for n in made.graph.node for p in n.metadata_props if p.key == "onnxqat.float"}
    assert reasons == {"head": "excluded by 'head'"}


def test_a_model_of_which_nothing_is_quantized_says_so() -> None:
    result = insert_qdq(proto("g (float[1,2] x) => (float[1,2] y) { y = Sin(x) }"), random_data=True)
    (remark,) = [r for r in result.remarks if r.message.startswith("nothing is quantized")]
    assert remark.message.endswith("onnxruntime-cpu has no row for Sin")
    assert remark.nodes == ("y_Sin",)
