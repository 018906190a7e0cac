"""insert_qdq with batch_norm="keep" where weight scales cannot take it up: the graph folds in front of the quantizers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.deployment.handoff import handoff
from onnxqat.errors import UsageError
from onnxqat.graph import folded_batchnorm, io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.passes.checks import in_function, in_if, ort_run
from tests.test_insert_batchnorm import DATA, TEXT

# powers of two per tensor with int8 biases, with int32 biases, per channel; uint8 per tensor; the bias on the grid in float
CASES = {
    "vitis-dpu": ("vitis-dpu", None),
    "tidl": ("tidl", None),
    "esp-dl": ("esp-dl", None),
    "snpe": ("snpe", None),
    "rknn per tensor": ("rknn", Overrides(per_channel=False)),
    "cpu per tensor": ("onnxruntime-cpu", Overrides(per_channel=False, scale_bits=(4, 2), reduce_range=True)),
    "exact": ("academic", Overrides(exact=True)),
}
BN = "float[4] {n}g = {{2, -1.5, 0, 0.5}}, float[4] {n}b = {{0.5, 1, -1, 0.25}}, float[4] {n}m = {{0.5, 0, -1, 0.1}}, float[4] {n}v = {{4, 1, 0.25, 2}}"
LAYERS = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4,6,6] image) => (float[N,4] logits)
<{BN.format(n="a")}, {BN.format(n="c")}, {BN.format(n="f")}, {BN.format(n="h")},
 float[4,1,3,3] w = {weight(4, 1, 3, 3)}, float[4,4,2,2] u = {weight(4, 4, 2, 2)}, float[4,4] e = {weight(4, 4)}, float[4,4] d = {weight(4, 4)}, float[4] k = {{0.25, -0.5, 1, 0}}> {{
    ["depthwise"] s = Conv<group = 4, pads = [1,1,1,1]>(image, w, k) ["bn1"] t = BatchNormalization(s, ag, ab, am, av)
    ["up"] r = ConvTranspose<strides = [2,2]>(t, u) ["bn2"] z = BatchNormalization<epsilon = 0.01, momentum = 0.75>(r, cg, cb, cm, cv)
    p = GlobalAveragePool(z) q = Flatten(p) ["product"] o = MatMul(q, e) ["bn3"] i = BatchNormalization(o, fg, fb, fm, fv)
    ["head"] j = Gemm<transB = 1>(i, d) ["bn4"] logits = BatchNormalization(j, hg, hb, hm, hv) }}"""
IMAGES = {"image": np.random.default_rng(1).normal(size=(8, 4, 6, 6)).astype(np.float32) * 3}


def kept(case: str, text: str = TEXT, data: dict[str, np.ndarray] = DATA, **options: object) -> onnx.ModelProto:
    backend, overrides = CASES[case]
    options = {"data": data, "overrides": overrides, **options}
    model = insert_qdq(proto(text), backend, batch_norm="keep", **options).model  # type: ignore[call-overload]
    assert isinstance(model, onnx.ModelProto)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("case", CASES)
def test_kept_folded_and_never_kept_are_the_same_bits(case: str) -> None:
    backend, overrides = CASES[case]
    model = kept(case)
    folds = folded_batchnorm.every(io.load(model))
    assert [fold.layer.name for fold in folds] == ["stem", "deep", "head"]
    result = fold_batchnorm(model)
    assert (result.count, result.left) == (3, 0)
    plain = insert_qdq(proto(TEXT), backend, data=DATA, overrides=overrides, rounding="nearest").model
    outputs = [ort_run(m, DATA)["logits"] for m in (model, result.model, plain)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[1], outputs[2])
    kinds = [[node.op_type for node in m.graph.node] for m in (result.model, plain)]
    assert kinds[0] == kinds[1]
    grids = [
        [(q.role, q.qparams.scale.tolist(), q.qparams.qtype) for q in qdq.quantizers(io.load(m))]
        for m in (result.model, plain)
    ]
    assert grids[0] == grids[1]


@pytest.mark.parametrize("case", ["vitis-dpu", "tidl", "cpu per tensor"])
def test_every_kind_of_layer(case: str) -> None:
    model = kept(case, LAYERS, IMAGES)
    folds = folded_batchnorm.every(io.load(model))
    momenta = {"depthwise": 0.9, "up": 0.75, "product": 0.9, "head": 0.9}
    assert {str(fold.layer.name): round(fold.momentum, 6) for fold in folds} == momenta
    folded = fold_batchnorm(model)
    assert folded.left == 0
    left, right = (ort_run(m, IMAGES)["logits"] for m in (model, folded.model))
    np.testing.assert_array_equal(left, right)
    plain = insert_qdq(proto(LAYERS), CASES[case][0], data=IMAGES, overrides=CASES[case][1]).model
    # a MatMul has no bias, so that the plain file has an Add
    np.testing.assert_allclose(ort_run(plain, IMAGES)["logits"], right, atol=0.05 * np.abs(right).max())


MORE = {"image": np.random.default_rng(2).normal(size=(40, 1, 6, 6)).astype(np.float32) * 3}


@pytest.mark.parametrize(
    ("backend", "overrides"),
    [
        ("rknn", Overrides(per_channel=False, weight_bits=4)),
        ("onnxruntime-cpu", Overrides(per_channel=False, weight_bits=4)),
        ("academic", Overrides(exact=True)),
    ],
)
def test_kept_where_the_weights_are_rounded_on_data(backend: str, overrides: Overrides, tmp_path: Path) -> None:
    """With 4 bits rounding on data has 4 dB more, whatever the processor."""
    onnx.save(proto(TEXT), tmp_path / "m.onnx")
    options = {"data": MORE, "overrides": overrides, "output": tmp_path / "q.onnx", "batch_norm": "keep"}
    result = insert_qdq(tmp_path / "m.onnx", backend, **options)  # type: ignore[call-overload]
    assert any("weights of 3 layers were rounded on" in remark.message for remark in result.remarks)
    model = onnx.load(tmp_path / "q.onnx")
    assert [fold.layer.name for fold in folded_batchnorm.every(io.load(model))] == ["stem", "deep", "head"]
    outputs = [ort_run(m, MORE)["logits"] for m in (model, fold_batchnorm(model).model)]
    np.testing.assert_array_equal(*outputs)


def test_in_memory_weights_keep_their_codes() -> None:
    """Training takes the unquantized model itself for its teacher there, so that its weights stay."""
    data = {"image": np.random.default_rng(0).normal(size=(64, 1, 6, 6)).astype(np.float32) * 2}  # rounding helps here
    left, right = (
        {i.name: numpy_helper.to_array(i) for i in kept("cpu per tensor", data=data, **options).graph.initializer}
        for options in ({}, {"rounding": "nearest"})
    )
    for name in ("w", "u", "e", "ab", "cb", "fb"):
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_kept_where_channels_were_equalized() -> None:
    text = TEXT.replace("float[4] ag = {2, -1.5, 0, 0.5}", "float[4] ag = {20, -1.5, 3, 0.5}")
    text = text.replace('["sum"] y = Add(r, z)', "y = Relu(z)")
    assert text.count("20, -1.5") == text.count("y = Relu(z)") == 1
    plain, model = kept("tidl", text, equalize="none"), kept("tidl", text, equalize="cross-layer-equalization")
    assert [fold.layer.name for fold in folded_batchnorm.every(io.load(model))] == ["stem", "deep", "head"]
    left, right = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (plain, model))
    np.testing.assert_array_equal(left["w"], right["w"])  # gamma and beta follow
    assert (left["ag"] != right["ag"]).any()
    assert (left["u"] != right["u"]).any()
    outputs = [ort_run(m, DATA)["logits"] for m in (model, fold_batchnorm(model).model)]
    np.testing.assert_array_equal(*outputs)


def test_parts_keep_their_names_and_values() -> None:
    model = kept("tidl")
    held = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    given = {i.name: numpy_helper.to_array(i) for i in proto(TEXT).graph.initializer}
    for name in ("w", "u", "e", "ag", "ab", "av", "cg", "cb", "cm", "cv", "fg", "fb", "fm", "fv"):
        np.testing.assert_array_equal(held[name], given[name], err_msg=name)
    np.testing.assert_allclose(held["am"], given["am"] - given["k"])  # the bias of the layer is in the mean
    weights = [q for q in qdq.quantizers(io.load(model)) if q.role == "weight"]
    assert [q.tensor for q in weights] == ["w_folded", "u_folded", "e_folded"]
    factor = given["ag"] / np.sqrt(given["av"] + np.float32(1e-5))
    np.testing.assert_array_equal(folded_batchnorm.held(weights[0]), given["w"] * factor.reshape(4, 1, 1, 1))


def test_a_layer_that_stays_in_float_has_its_normalization_folded() -> None:
    chosen = Overrides(exclude=("deep",))
    model = insert_qdq(proto(TEXT), "tidl", data=DATA, batch_norm="keep", overrides=chosen).model
    assert [fold.layer.name for fold in folded_batchnorm.every(io.load(model))] == ["stem", "head"]


def test_some_behind_and_some_in_front() -> None:
    """openvino-cpu has one scale for the weight of a Gemm, and one a channel for those of convolutions."""
    model = insert_qdq(proto(TEXT), "openvino-cpu", data=DATA, batch_norm="keep").model
    computed = [fold.layer.name for fold in folded_batchnorm.every(io.load(model))]
    behind = [n.name for n in model.graph.node if n.op_type == "BatchNormalization"]
    assert (len(computed), len(behind)) in ((0, 3), (1, 2))
    assert fold_batchnorm(model).left == 0


GROUPED = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,4,6,6] image) => (float[N,4,6,6] y)
    <{BN.format(n="a")}, float[4,SIZE,1,1] w = WEIGHT> {{
    ["up"] c = ConvTranspose<group = GROUPS>(image, w) ["bn"] y = BatchNormalization(c, ag, ab, am, av) }}"""


def grouped(groups: int) -> onnx.ModelProto:
    text = GROUPED.replace("WEIGHT", weight(4, 4 // groups, 1, 1)).replace("SIZE", str(4 // groups))
    return proto(text.replace("GROUPS", str(groups)))


def test_a_depthwise_transposed_convolution() -> None:
    made = insert_qdq(grouped(4), "tidl", data=IMAGES, batch_norm="keep").model
    assert len(folded_batchnorm.every(io.load(made))) == 1
    np.testing.assert_array_equal(ort_run(made, IMAGES)["y"], ort_run(fold_batchnorm(made).model, IMAGES)["y"])


def test_other_groups_of_a_transposed_convolution_are_refused() -> None:
    with pytest.raises(UsageError, match="each group of a ConvTranspose has several inputs"):
        insert_qdq(grouped(2), "tidl", data=IMAGES, batch_norm="keep")


def test_in_a_branch_and_in_a_function() -> None:
    model = proto(TEXT)
    for wrapped in (in_if(model), in_function(model)):
        feeds = dict(DATA) | ({"choose": np.asarray(True)} if wrapped.graph.input[0].name == "choose" else {})
        batches = [feeds, feeds | {"choose": np.asarray(False)}] if "choose" in feeds else [feeds]
        made = insert_qdq(wrapped, "tidl", data=batches, batch_norm="keep").model
        assert len(folded_batchnorm.every(io.load(made))) in (3, 6)
        folded = fold_batchnorm(made)
        assert folded.left == 0
        np.testing.assert_array_equal(ort_run(made, feeds)["logits"], ort_run(folded.model, feeds)["logits"])


@pytest.mark.parametrize("case", ["vitis-dpu", "tidl", "snpe"])
def test_the_bundle_has_none_and_lint_knows_why(case: str, tmp_path: Path) -> None:
    model = kept(case)
    found = {f.code: f for f in lint(model, backend=case).findings}
    assert "kept for training" in found["batchnorm-unfolded"].message
    assert not {"target-operator-float", "half-quantized"} & set(found)
    report = handoff(model, case, tmp_path / "bundle", data=DATA, trace=False, tolerance_lsb=8.0)
    assert not report.failures
    made = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert not {"BatchNormalization", "Sqrt", "Mul", "Round"} & {n.op_type for n in made.graph.node}


@pytest.mark.parametrize(("bias", "derived", "grids"), [("int32", 3, 0), ("snapped", 0, 3), ("float", 0, 0)])
def test_forms_of_the_bias(bias: str, derived: int, grids: int) -> None:
    model = io.load(fold_batchnorm(kept("tidl"), bias=bias).model)  # type: ignore[arg-type]
    assert sum(q.derived_from is not None for q in qdq.quantizers(model)) == derived
    assert sum(qdq.BIAS_GRID in node.metadata_props for node in model.graph) == grids


def test_arithmetic_that_another_tool_changed_is_left_alone() -> None:
    model = kept("tidl")
    node = next(n for n in model.graph.node if n.op_type == "Sqrt")
    node.op_type = "Abs"
    result = fold_batchnorm(model)
    assert (result.count, result.left) == (2, 1)
    assert any("was changed" in remark.message for remark in result.remarks)


def test_prepare_by_platform_still_refuses() -> None:
    from onnxqat import prepare_by_platform

    with pytest.raises(UsageError, match="no BatchNormalization can be kept") as caught:
        prepare_by_platform(proto(TEXT), "tidl", batch_norm="keep")
    assert "onnxqat insert-qdq" in caught.value.hint


@pytest.mark.parametrize("case", ["tidl", "snpe", "cpu per tensor"])
def test_optimized_sessions_agree_about_both(case: str) -> None:
    model = kept(case)
    outputs = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(["logits"], DATA)[0]
        for m in (model, fold_batchnorm(model).model)
    ]
    np.testing.assert_array_equal(*outputs)
