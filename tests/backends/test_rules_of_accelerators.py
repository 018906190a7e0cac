"""What tables of accelerators say beyond those of CPUs: conversion pairs, unsigned twins, blocks, own pairs, limits."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.backends.schema import load
from onnxqat.errors import BackendError, UsageError
from onnxqat.graph import io, qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides, apply
from onnxqat.types import Derived, QType, Shared, ShiftLimit, TensorSpec
from tests.backends.planning import decision, edges, plan, proto, reasons, root, spec, table_file, weight

W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2] bias = {{0.1, -0.1}}"
GATE = f"""g (float[1,2,4,4] x) => (float[1,4,4,4] out) <{W}> {{
    a = Conv(x, w, bias) s = Sigmoid(a) b = Conv(x, w, bias) c = Concat<axis = 1>(s, b) out = Neg(c) }}"""


def inserted(text: str, backend: str, seed: int = 0, **options: object) -> onnx.ModelProto:
    model = proto(text)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    rng = np.random.default_rng(seed)
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return insert_qdq(model, backend, data=data, **options).model  # type: ignore[arg-type, no-any-return]


def quantizers(model: onnx.ModelProto) -> dict[str, list[Quantizer]]:
    found: dict[str, list[Quantizer]] = {}
    for q in qdq.quantizers(io.load(model), every=True):
        found.setdefault(q.tensor, []).append(q)
    return found


# ------------------------------------------------------------------ conversion pairs
def test_prescribed_parameters_in_front_of_a_tied_concat() -> None:
    found = plan(GATE, "litert-int8")
    own, converted = edges(found)["s"]
    assert float(own.decision.qparams.scale) == 1 / 256  # type: ignore[union-attr]
    assert own.consumers is None
    assert converted.decision == Shared(root(found, "c"))
    assert converted.consumers == (("c_Concat", 0),)
    assert root(found, "b") == root(found, "c")


def test_the_conversion_pair_stands_behind_the_first() -> None:
    found = quantizers(inserted(GATE, "litert-int8"))
    own = found["s"][0]
    (second,) = found["s_DequantizeLinear_Output"]
    (joined,) = found["b"]
    assert second.qparams.same(joined.qparams)
    assert second.qparams.same(found["c"][0].qparams)
    assert not second.qparams.same(own.qparams)


def test_without_convert_such_an_input_keeps_its_own() -> None:
    assert len(edges(plan(GATE, "onnxruntime-cpu"))["s"]) == 1


def test_eight_and_sixteen_bits_meet(tmp_path: Path) -> None:
    table = table_file(
        tmp_path,
        "backend: t\nextends: qnn-htp\nops:\n"
        "  Add: {in: [{use: act, dtype: uint16}, {use: act, dtype: uint16}], out: [{use: act, dtype: uint16}]}\n",
    )
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{
        a = Conv(x, w) b = Conv(a, w) s = Add(a, b) out = Conv(s, w) }}"""
    found = plan(text, table)
    assert spec(found, "a").qtype == QType("uint8", 0, 255)
    assert [e.consumers for e in edges(found)["a"]] == [None, (("s_Add", 0),)]
    assert isinstance(edges(found)["a"][1].decision, TensorSpec)
    assert spec(found, "b").qtype == QType("uint16", 0, 65535)  # nothing reads it in 8 bits
    assert spec(found, "s").qtype == QType("uint8", 0, 255)
    onnx.checker.check_model(inserted(text, table), full_check=True)


# ------------------------------------------------------------------ unsigned twins
def test_unsigned_codes_where_nothing_is_negative() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{
        a = Conv(x, w) r = Relu(a) m = MaxPool<kernel_shape = [1,1]>(r) b = Conv(m, w) out = Neg(b) }}"""
    found = plan(text, "imx500")
    assert spec(found, "x").qtype == spec(found, "b").qtype == QType("int8", -128, 127)
    assert spec(found, "r").qtype == spec(found, "m").qtype == QType("uint8", 0, 255)
    made = quantizers(inserted(text, "imx500"))
    assert int(made["r"][0].qparams.zero_point) == 0
    assert np.frexp(made["r"][0].qparams.scale)[0] == 0.5


def test_a_concat_of_both_signs_converts() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,4,4,4] out) <{W}> {{
        a = Conv(x, w) r = Relu(a) b = Conv(x, w) c = Concat<axis = 1>(r, b) out = Neg(c) }}"""
    found = plan(text, "imx500")
    assert [e.decision for e in edges(found)["r"][1:]] == [Shared(root(found, "c"))]


# ------------------------------------------------------------------ rows
def test_sums_of_masks_and_embeddings_stay_float() -> None:
    text = """g (float[2,2] x, float[2,2] m) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}, float two = {2}> {
        a = MatMul(x, w) d = Div(a, two) t = Add(d, m) b = MatMul(t, w) r = Add(x, b) y = MatMul(r, w) }"""
    found = plan(text, "tensorrt-nlp")
    assert reasons(found)["t_Add"] == "the backend leaves Add behind Div in float"
    assert "r_Add" not in reasons(found)


def test_a_constant_that_is_added_stays_float_for_tensorrt() -> None:
    text = """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}, float one = {1}> {
        a = MatMul(x, w) b = Add(a, one) y = MatMul(b, w) }"""
    for backend in ("tensorrt", "tensorrt-nlp", "tensorrt-fp8"):
        found = plan(text, backend)
        assert reasons(found)["b_Add"] == "the backend takes Add of computed tensors alone"
        assert set(edges(found)) == {"x", "w", "b"}


def test_a_computed_operand_of_a_weight_only_product() -> None:
    text = "g (float[2,2] x, float[2,2] z) => (float[2,2] y) { y = MatMul(x, z) }"
    assert plan(text, "tensorrt-int4").edges == ()


def test_a_bias_with_a_scale_of_its_own() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ a = Conv(x, w, bias) out = Neg(a) }}"
    found = plan(text, "vitis-dpu")
    assert spec(found, "bias") == TensorSpec(QType("int8", -128, 127), scale_bits=1, role="weight")
    assert not any("bias" in r.message for r in found.remarks)
    assert decision(plan(text, "esp-dl-s3"), "bias") == Derived("x", "w", "int32", 20)


def test_a_bias_of_few_bits_raises_the_weight_scale() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W.replace('0.1', '5000')}> {{ out = Conv(x, w, bias) }}"
    (bias,) = quantizers(inserted(text, "esp-dl-s3"))["bias_DequantizeLinear_Output"]
    codes = np.asarray(bias.input.const_value.numpy())  # type: ignore[union-attr]
    assert 2**18 <= np.abs(codes).max() < 2**19
    assert (np.frexp(bias.qparams.scale)[0] == 0.5).all()


def test_limits_name_the_tensor_behind_the_activation() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ a = Conv(x, w) r = Relu(a) out = Neg(r) }}"
    first = plan(text, "vitis-dpu").shift_limits[0]
    assert first == ShiftLimit("a_Conv", ((1, "in0"), (1, "in1"), (-1, "out")), ("x", "w"), "r", 0, 16)


# ------------------------------------------------------------------ blocks
@pytest.mark.parametrize(("node", "axis"), [("Gemm<transB = 1>(x, w)", 1), ("Gemm(x, v)", 0), ("MatMul(x, v)", 0)])
def test_blocks_lie_along_the_axis_that_is_summed_over(node: str, axis: int) -> None:
    text = f"""g (float[1,200] x) => (float[1,3] y) <float[3,200] w = {weight(3, 200)}, float[200,3] v = {weight(200, 3)}> {{
        y = {node} }}"""
    made = inserted(text, "tensorrt-int4")
    (found,) = [q for qs in quantizers(made).values() for q in qs]
    assert (found.qparams.axis, found.qparams.block_size) == (axis, 128)
    assert found.qparams.scale.shape == ((3, 2) if axis else (2, 3))
    assert made.opset_import[0].version == 21
    onnx.checker.check_model(made, full_check=True)


def test_what_cannot_be_cut_stays_float() -> None:
    text = f"g (float[2,1,4] x) => (float[2,1,2] y) <float[2,4,2] w = {weight(2, 4, 2)}> {{ y = MatMul(x, w) }}"
    assert reasons(plan(text, "tensorrt-int4"))["y_MatMul"] == "only a weight with two axes is cut into blocks"


# ------------------------------------------------------------------ pairs
def test_a_pair_for_each_consumer(tmp_path: Path) -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] out, float[1,2,4,4] a) <{W}> {{
        a = Conv(x, w) b = Conv(a, w) c = Conv(a, w) d = Add(b, c) out = Neg(d) }}"""
    table = table_file(tmp_path, "backend: t\nextends: litert-int8\npairs: consumer\n")
    made = inserted(text, table)
    onnx.checker.check_model(made, full_check=True)
    assert [v.name for v in made.graph.output] == ["out", "a"]
    found = quantizers(made)
    assert len(found["a_QuantizeLinear_Input"]) == 3
    assert len({q.scales[0].name for q in found["a_QuantizeLinear_Input"]}) == 1
    assert all(len(q.outputs) == 1 and len(q.outputs[0].uses()) <= 1 for qs in found.values() for q in qs)
    once = quantizers(inserted(text, "litert-int8"))
    assert len(once["a_QuantizeLinear_Input"]) == 1


# ------------------------------------------------------------------ options that do not fit
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("tensorrt-fp8", {"weight_bits": 4}),
        ("tensorrt-fp8", {"activation_bits": 8}),
        ("tensorrt-fp8", {"first_last_bits": 8}),
        ("tensorrt-fp8", {"exact": True}),
        ("tensorrt-fp8", {"observer": "mse"}),
        ("tensorrt-int4", {"per_channel": True}),
    ],
)
def test_options_that_the_types_do_not_have(backend: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        apply(Overrides(**options), load(backend))  # type: ignore[arg-type]
    assert caught.value.code == "option-invalid"


def test_first_and_last_layer_may_stay_float_in_any_table() -> None:
    assert apply(Overrides(first_last_bits=0), load("tensorrt-fp8")).first_last_bits == 0


def test_four_bits_of_a_type_of_four_bits_change_nothing() -> None:
    table = apply(Overrides(weight_bits=4), load("qnn-htp-w4"))
    assert table.types["wt"].dtype == "int4"
    assert apply(Overrides(weight_bits=3), load("qnn-htp-w4")).types["wt"].qtype() == QType("int8", -4, 3)


# ------------------------------------------------------------------ what training may move
def test_a_scale_that_the_kernel_has_built_in_is_not_trained() -> None:
    pytest.importorskip("torch")
    from onnxqat.bridge.importing.importer import to_torch

    text = """g (float[1,4] x) => (float[1,4] y) { s = Softmax(x) t = Transpose(s) u = Sigmoid(x) v = Transpose(u)
        w = MatMul(s, v) y = Neg(w) }"""
    found = {}
    for backend in ("litert-int8", "qnn-htp"):
        module = to_torch(inserted(text, backend))
        found[backend] = {
            n: p.requires_grad for n, p in module.named_parameters() if n.startswith(("s_", "t_", "u_", "v_", "w_"))
        }
    assert found["litert-int8"] == dict.fromkeys(found["litert-int8"], False) | {"w_quantizer.scale": True}
    assert all(found["qnn-htp"].values())


def test_rounding_on_data_leaves_small_floats_alone() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ a = Conv(x, w, bias) out = Neg(a) }}"
    models = [inserted(text, "tensorrt-fp8", rounding=rounding) for rounding in ("nearest", "compensated")]
    assert models[0].graph == models[1].graph


# ------------------------------------------------------------------ widths of some nodes
MIXED = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}, float[2,2,1,1] v = {weight(2, 2, 1, 1)}> {{
    ["stem/a"] a = Conv(x, w) ["head/b"] b = Conv(a, v, bias) ["head/c"] c = Sigmoid(b) d = Add(a, c) out = Neg(d) }}"""


def test_widths_of_some_nodes() -> None:
    found = plan(MIXED, "litert-int8", node_bits=(("head/*", 8, 16), ("head/c", 8, 8)))
    assert spec(found, "w").qtype == spec(found, "v").qtype == QType("int8", -127, 127)
    assert spec(found, "x").qtype == QType("int8", -128, 127)
    own, converted = edges(found)["a"]
    assert own.decision.qtype == QType("int8", -128, 127)  # type: ignore[union-attr]
    assert converted.decision.qtype == QType("int16", -32768, 32767)  # type: ignore[union-attr]
    assert converted.consumers == (("head/b", 0),)
    assert spec(found, "b").qtype == QType("int8", -128, 127)  # all that reads it wants 8 bits


def test_widths_of_weights_alone() -> None:
    found = plan(MIXED, "litert-int8", node_bits=(("stem", 4, 8),))
    assert spec(found, "w").qtype == QType("int8", -7, 7)
    assert spec(found, "v").qtype == QType("int8", -127, 127)
    assert spec(plan(MIXED, "vitis-dpu", node_bits=(("head", 4, 8),)), "bias").qtype == QType("int8", -128, 127)


def test_widths_of_some_nodes_win_over_first_and_last() -> None:
    found = plan(MIXED, "academic", node_bits=(("stem/a", 2, 3),))
    assert spec(found, "w").qtype == QType("int8", -2, 1)
    assert spec(found, "x").qtype == QType("uint8", 0, 7)


def test_sixteen_bits_of_some_nodes_need_their_opset() -> None:
    made = inserted(MIXED, "qnn-htp", overrides=Overrides(node_bits=(("head", 8, 16),)))
    assert made.opset_import[0].version == 21
    onnx.checker.check_model(made, full_check=True)
    storages = {q.qparams.qtype.storage for qs in quantizers(made).values() for q in qs}
    assert storages == {"uint8", "uint16", "int8", "int32"}
    assert not any("onnxqat.widths" in {p.key for p in n.metadata_props} for n in made.graph.node)
    with pytest.raises(BackendError, match="reads opset 13 to 19"):
        inserted(MIXED, "rknn", overrides=Overrides(node_bits=(("head", 8, 16),)))


@pytest.mark.parametrize(
    ("bits", "code"), [(("nothing", 8, 8), "pattern-no-match"), (("head", 9, 8), "option-invalid")]
)
def test_widths_that_cannot_be(bits: tuple[str, int, int], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(MIXED, "litert-int8", node_bits=(bits,))
    assert caught.value.code == code


def test_attributes_at_their_defaults_are_written_for_compilers_that_do_not_know_them() -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] out) <{W}> {{ a = Conv(x, w) b = LeakyRelu(a) out = Neg(b) }}"
    for backend, written in (("rknn", True), ("litert-int8", False)):
        (node,) = [n for n in inserted(text, backend).graph.node if n.op_type == "LeakyRelu"]
        assert bool(node.attribute) is written


def test_a_channel_of_next_to_nothing_stays_within_the_reach_of_htp() -> None:
    """Its shifter takes positions modulo 32. The other channels keep their scales."""
    model = proto(f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ y = Conv(x, w) }}")
    values = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    values[1] *= 1e-12
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    data = {"x": np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)}
    positions = {}
    for backend in ("qnn-htp", "onnxruntime-cpu"):
        found = quantizers(insert_qdq(model, backend, data=data, overrides=Overrides(scale_bits=(24, 24))).model)
        x, weights, y = (found[name][0].qparams.scale for name in ("x", "w", "y_QuantizeLinear_Input"))
        positions[backend] = -np.log2(x * weights / y)
    assert positions["onnxruntime-cpu"][1] > 40
    assert 15 < positions["qnn-htp"][1] <= 16.001
    assert positions["qnn-htp"][0] < 16
