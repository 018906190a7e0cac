"""insert_qdq with batch_norm="keep": two nodes stay, and no pair comes between them."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxqat.errors import UsageError
from onnxqat.graph import batchnorm, io, qdq, walk
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.fold_quantized_batchnorm import FoldQuantizedBatchnorm
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.passes.checks import in_function, in_if, ort_run

BN = "float[4] {n}g = {{2, -1.5, 0, 0.5}}, float[4] {n}b = {{0.5, 1, -1, 0.25}}, float[4] {n}m = {{0.5, 0, -1, 0.1}}, float[4] {n}v = {{4, 1, 0.25, 2}}"
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,1,6,6] image) => (float[N,4] logits)
<{BN.format(n="a")}, {BN.format(n="c")}, {BN.format(n="f")},
 float[4,1,3,3] w = {weight(4, 1, 3, 3)}, float[4] k = {{0.25, -0.5, 1, 0}}, float[4,4,1,1] u = {weight(4, 4, 1, 1)},
 float[4,4] e = {weight(4, 4)}> {{
    ["stem"] s = Conv<pads = [1,1,1,1]>(image, w, k) ["bn1"] t = BatchNormalization(s, ag, ab, am, av) r = Relu(t)
    ["deep"] d = Conv(r, u) ["bn2"] z = BatchNormalization(d, cg, cb, cm, cv) ["sum"] y = Add(r, z)
    p = GlobalAveragePool(y) q = Flatten(p) ["head"] h = Gemm(q, e) ["bn3"] logits = BatchNormalization(h, fg, fb, fm, fv) }}"""
DATA = {"image": np.random.default_rng(0).normal(size=(16, 1, 6, 6)).astype(np.float32) * 3}
KEEPING = ["academic", "onnxruntime-cpu", "openvino-cpu", "tensorrt", "qnn-htp"]


@pytest.mark.parametrize("backend", KEEPING)
def test_kept_and_folded_compute_the_same(backend: str) -> None:
    kept = insert_qdq(proto(TEXT), backend, data=DATA, batch_norm="keep").model
    model = io.load(kept)
    layers = [batchnorm.layer(n) for n in model.graph if batchnorm.is_kept(n)]
    # a table that has one scale for a Gemm folds what is behind that in front of its quantizer
    assert [n.name for n in layers if n is not None] == ["stem", "deep", "head"][: len(layers)]
    assert len(layers) >= 2
    found = qdq.by_output(qdq.quantizers(model, every=True))
    for layer in layers:
        assert layer is not None
        assert layer.inputs[2:] == ()
        assert found[id(layer.inputs[1])].role == "weight"
    folded = FoldQuantizedBatchnorm("float").run(kept).model
    assert not Counter(n.op_type for n in folded.graph.node)["BatchNormalization"]
    left, right = (ort_run(m, DATA)["logits"] for m in (kept, folded))
    plain = insert_qdq(proto(TEXT), backend, data=DATA).model
    assert [n.op_type for n in folded.graph.node if n.op_type not in ("Constant", "DequantizeLinear")] == [
        n.op_type for n in plain.graph.node if n.op_type not in ("Constant", "DequantizeLinear")
    ]
    # a value on the edge between two codes may take the other one
    steps = np.abs(left - right) / np.abs(left).max()
    assert np.quantile(steps, 0.9) < 1e-5
    assert steps.max() < 0.02


def test_the_output_pair_is_where_it_is_without_the_normalization() -> None:
    kept = io.load(insert_qdq(proto(TEXT), "onnxruntime-cpu", data=DATA, batch_norm="keep").model)
    plain = io.load(insert_qdq(proto(TEXT), "onnxruntime-cpu", data=DATA).model)
    activations = [{q.tensor for q in qdq.quantizers(m) if q.role == "activation"} for m in (kept, plain)]
    assert activations[0] == activations[1]
    assert {"r", "z"} <= activations[0]
    assert not {"s", "t", "d"} & activations[0]


def test_short_scales_stay_short_until_the_fold() -> None:
    short = Overrides(scale_bits=(4, 2))
    kept = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep", overrides=short).model
    limits = [
        {q.qparams.scale_bits for q in qdq.quantizers(io.load(m)) if q.role == "weight"}
        for m in (kept, FoldQuantizedBatchnorm().run(kept).model)
    ]
    assert None not in limits[0]
    assert limits[1] == {None}


def test_a_table_that_quantizes_no_weight_of_such_a_layer_is_an_error(tmp_path: Path) -> None:
    table = tmp_path / "sums.yaml"
    table.write_text(
        "schema: 1\nbackend: sums\ndescription: sums alone\nsource: [a test]\nopset: [13, 19]\nplacement: both\n"
        "types:\n  act: {dtype: int8}\nops:\n  Add: {in: [act, act], out: [act]}\n"
    )
    with pytest.raises(
        UsageError, match="no BatchNormalization can be kept for sums: sums does not quantize"
    ) as caught:
        insert_qdq(proto(TEXT), str(table), data=DATA, batch_norm="keep")
    assert "fold" in caught.value.hint


def test_a_layer_that_the_user_leaves_in_float_takes_its_normalization() -> None:
    chosen = Overrides(exclude=("deep",))
    kept = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep", overrides=chosen).model
    assert [n.name for n in kept.graph.node if n.op_type == "BatchNormalization"] == ["bn1", "bn3"]


def test_nothing_to_keep_is_no_error() -> None:
    plain = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        ["head"] y = Gemm(x, w) }"""
    data = {"x": np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)}
    insert_qdq(proto(plain), "vitis-dpu", data=data, batch_norm="keep")


@pytest.mark.parametrize(
    "options",
    [{"rounding": "up"}, {"batch_norm": "live"}],
    ids=["rounding", "unknown"],
)
def test_unknown_options(options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        insert_qdq(proto(TEXT), "academic", data=DATA, **{"batch_norm": "keep", **options})  # type: ignore[arg-type]
    assert caught.value.code == "option-invalid"


def test_in_a_branch_and_in_a_function() -> None:
    model = proto(TEXT)
    for wrapped in (in_if(model), in_function(model)):
        feeds = dict(DATA) | ({"choose": np.asarray(True)} if wrapped.graph.input[0].name == "choose" else {})
        batches = [feeds, feeds | {"choose": np.asarray(False)}] if "choose" in feeds else [feeds]
        kept = insert_qdq(wrapped, "academic", data=batches, batch_norm="keep").model
        loaded = io.load(kept)
        assert sum(map(batchnorm.is_kept, walk.nodes(loaded))) in (3, 6)
        folded = FoldQuantizedBatchnorm("float").run(kept).model
        assert not any(map(batchnorm.is_batchnorm, walk.nodes(io.load(folded))))
        left, right = (ort_run(m, feeds)["logits"] for m in (kept, folded))
        np.testing.assert_allclose(left, right, atol=0.02 * np.abs(left).max())


def test_onnxruntime_computes_the_same_with_optimizations() -> None:
    short = Overrides(scale_bits=(4, 2), reduce_range=True)
    kept: onnx.ModelProto = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep", overrides=short).model
    session = ort.InferenceSession(kept.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["logits"], DATA)[0], ort_run(kept, DATA)["logits"])


def test_onnxsim_leaves_it() -> None:
    pytest.importorskip("onnxsim")
    kept = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep", simplify=True).model
    assert Counter(n.op_type for n in kept.graph.node)["BatchNormalization"] == 3


@pytest.mark.parametrize(
    ("bits", "mode", "kept"), [(2, "auto", 3), (3, "auto", 3), (4, "auto", 0), (2, "fold", 0), (4, "keep", 3)]
)
def test_few_bits_keep_it_by_default(bits: int, mode: str, kept: int) -> None:
    overrides = Overrides(weight_bits=bits, activation_bits=bits)
    result = insert_qdq(proto(TEXT), "academic", data=DATA, overrides=overrides, batch_norm=mode)  # type: ignore[arg-type]
    assert Counter(n.op_type for n in result.model.graph.node)["BatchNormalization"] == kept
    found = [r for r in result.remarks if "weights of" in r.message and "handoff folds it" in r.message]
    assert [r.nodes for r in found] == ([("bn1", "bn2", "bn3")] if kept and mode == "auto" else [])
