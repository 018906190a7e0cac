"""convert-to-float32: float16, bfloat16 and double become float32, the interface stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxqat.errors import UnsupportedError
from onnxqat.graph import io
from onnxqat.passes.convert_to_float32 import ConvertToFloat32, convert, other_floats
from tests.passes.checks import check_pass, compare_outputs, in_function, in_if, ort_run, parse, run_checked

HALF_STEP = 2.0**-10  # two roundings of numbers up to 4 to 11 bits


def half(text: str, kind: Any = np.float16) -> onnx.ModelProto:
    """ONNX text in which float constants stand for those of `kind`: the parser takes numbers of half precision for bits."""
    model = parse(text)
    for tensor in (*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
    return model


def numbers(model: onnx.ModelProto, name: str) -> np.ndarray:
    return next(numpy_helper.to_array(i) for i in model.graph.initializer if i.name == name)


def kinds(model: onnx.ModelProto) -> set[ir.DataType]:
    return set(other_floats(io.load(model)))


@pytest.mark.parametrize(("kind", "to", "atol"), [("float16", 10, 2 * HALF_STEP), ("double", 11, 1e-6)])
def test_interface_stays_and_inside_is_float32(kind: str, to: int, atol: float) -> None:
    before = f"g ({kind}[N,2] x) => ({kind}[N,2] y) <float[2] w = {{1, 2}}> {{ t = Mul(x, w) y = Add(t, w) }}"
    check_pass(
        ConvertToFloat32(),
        half(before, kind),
        f"""g ({kind}[N,2] x) => ({kind}[N,2] y) <float[2] w = {{1, 2}}> {{
        x_float32 = Cast <to = 1> (x) t = Mul(x_float32, w) y_float32 = Add(t, w) y = Cast <to = {to}> (y_float32) }}""",
        atol=atol,
        inside_if="skip",
        inside_function="skip",
    )


def test_without_keep_io_types_the_interface_is_float32() -> None:
    before = half("g (float16[N,2] x) => (float16[N,2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    made = ConvertToFloat32(keep_io_types=False).run(before).model
    assert [n.op_type for n in made.graph.node] == ["Mul"]
    assert not kinds(made)
    assert not ConvertToFloat32(keep_io_types=False).run(made).changed


def test_bfloat16() -> None:
    before = half(
        "g (bfloat16[N,2] x) => (bfloat16[N,2] y) { w = Constant <value = float[2] {1, 2}> () y = Mul(x, w) }",
        ml_dtypes.bfloat16,
    )
    made = ConvertToFloat32(keep_io_types=False).run(before).model
    x = np.float32([[1.5, -3]])
    np.testing.assert_array_equal(ort_run(made, {"x": x})["y"], x * [1, 2])
    kept = ConvertToFloat32().run(before).model
    assert [v.type.tensor_type.elem_type for v in (*kept.graph.input, *kept.graph.output)] == [TensorProto.BFLOAT16] * 2


@pytest.mark.parametrize("text", ["float", "kept"])
def test_what_is_float32_is_left_alone(text: str) -> None:
    inner = "{ y = Neg(x) }" if text == "float" else "{ a = Cast <to = 1> (x) b = Neg(a) y = Cast <to = 10> (b) }"
    kind = "float" if text == "float" else "float16"
    inside = {"inside_if": "skip", "inside_function": "skip"}  # whose bodies would hold the Casts
    check_pass(ConvertToFloat32(), f"g ({kind}[2] x) => ({kind}[2] y) {inner}", None, **inside)


def test_casts_of_a_mixed_model_go() -> None:
    """What onnxconverter-common writes with keep_io_types and a block list: float32 outside and in Softmax."""
    before = """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
        h = Cast <to = 10> (x) t = Mul(h, w) f = Cast <to = 1> (t) s = Softmax(f) u = Cast <to = 10> (s)
        v = Add(u, w) y = Cast <to = 1> (v) }"""
    after = """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
        t = Mul(x, w) s = Softmax(t) y = Add(s, w) }"""
    check_pass(ConvertToFloat32(), half(before), after, atol=8 * HALF_STEP, inside_function="skip")


def test_casts_of_integers_stay() -> None:
    before = parse("""g (float16[N,2] x, int64[N,2] i) => (float16[N,2] y, int64[N,2] k) {
        f = Cast <to = 10> (i) t = Add(x, f) k = Cast <to = 7> (t) c = CastLike(i, x) y = Neg(c) }""")
    made = run_checked(ConvertToFloat32(), before, 0).model
    assert [(n.op_type, n.attribute[0].i if n.attribute else None) for n in made.graph.node] == [
        ("Cast", 1), ("Cast", 1), ("Add", None), ("Cast", 7), ("CastLike", None), ("Neg", None), ("Cast", 10),
    ]  # fmt: skip


def test_branches_and_functions() -> None:
    mixed = half("""g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
        h = Cast <to = 10> (x) t = Mul(h, w) y = Cast <to = 1> (t) }""")
    after = "g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"
    check_pass(ConvertToFloat32(), mixed, after, atol=4 * HALF_STEP, inside_function="skip")
    before = half("g (float16[N,2] x) => (float16[N,2] y) <float[2] w = {1, 2}> { t = Mul(x, w) y = Relu(t) }")
    for wrap in (in_if, in_function):
        made = run_checked(ConvertToFloat32(), wrap(before), 4 * HALF_STEP).model
        assert [n.op_type for n in made.graph.node] == ["Cast", "If" if wrap is in_if else "body", "Cast"]
        assert kinds(made) == {ir.DataType.FLOAT16}  # the interface


def test_loop_body() -> None:
    before = half("""g (float16[2] x) => (float16[2] y) <int64 n = {3}, bool c = {1}, float[2] w = {1, 0.5}> {
        y = Loop (n, c, x) <body = b (int64 i, bool go, float16[2] v) => (bool on, float16[2] r) {
            on = Identity(go) r = Mul(v, w) }> }""")
    run_checked(ConvertToFloat32(), before, HALF_STEP)


def test_attributes_that_hold_types() -> None:
    before = half("""g (float16[N,4] x) => (float16[N,4] y, float16[4,4] e) {
        s = Shape(x) z = ConstantOfShape <value = float[1] {0.5}> (s) t = Add(x, z)
        k = Constant <value = float[4,4] {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> ()
        e = EyeLike <dtype = 10> (k) y = MatMul(t, e) }""")
    made = run_checked(ConvertToFloat32(), before, 4 * HALF_STEP).model
    stated = {n.op_type: a for n in made.graph.node for a in n.attribute if n.op_type != "Cast"}
    assert stated["EyeLike"].i == TensorProto.FLOAT
    assert stated["ConstantOfShape"].t.data_type == stated["Constant"].t.data_type == TensorProto.FLOAT


def test_sizes_that_come_from_integers_keep_their_rounding() -> None:
    """0.29 * 100 is 28 in double after Floor and 29 in float32: the shape would be another."""
    before = half(
        """g (double[N,4] x) => (double[M,4] y) <int64 a = {0}, float f = {0.29}, int64[1] first = {0},
        int64[1] one = {1}, float two = {2}> {
        s = Shape(x) n = Gather(s, a) d = Cast <to = 11> (n) m = Mul(d, f) l = Floor(m) i = Cast <to = 7> (l)
        u = Unsqueeze(i, first) h = Concat <axis = 0> (u, one) q = Tile(x, h) y = Mul(q, two) }""",
        np.float64,
    )
    before.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float64(0.29), "f"))
    result = ConvertToFloat32().run(before)
    x = np.ones((100, 4))
    assert ort_run(result.model, {"x": x})["y"].shape == ort_run(before, {"x": x})["y"].shape == (2800, 4)
    assert numbers(result.model, "f").dtype == np.float64
    assert any("sizes" in remark.message for remark in result.remarks)
    assert not ConvertToFloat32().run(result.model).changed


def test_a_constant_of_sizes_and_of_data_is_split() -> None:
    before = half("""g (float16[N,4] x) => (float16[N,4] y, int64 k) <int64 a = {0}, float f = {0.5}> {
        s = Shape(x) n = Gather(s, a) d = Cast <to = 10> (n) m = Mul(d, f) k = Cast <to = 7> (m) y = Mul(x, f) }""")
    made = run_checked(ConvertToFloat32(), before, 0).model
    assert {i.name: i.data_type for i in made.graph.initializer if i.name != "a"} == {
        "f": TensorProto.FLOAT16,
        "f_float32": TensorProto.FLOAT,
    }


@pytest.mark.parametrize(("to", "stays"), [(10, False), (16, False), (11, True)])
def test_what_goes_on_in_float32_stays_in_double_alone(to: int, stays: bool) -> None:
    """The root of a head's size, as an exporter writes it; runtimes have no kernels for it in half precision."""
    before = parse(f"""g (float[N,4] x) => (float[N,4] y) <int64 a = {{1}}> {{
        s = Shape(x) n = Gather(s, a) d = Cast <to = {to}> (n) r = Sqrt(d) f = Cast <to = 1> (r) y = Div(x, f) }}""")
    result = ConvertToFloat32().run(before)
    assert result.changed != stays
    x = np.float32([[1, 2, 3, 4]])
    np.testing.assert_array_equal(ort_run(result.model, {"x": x})["y"], x / 2)


def test_a_float32_model_with_positions_in_double_is_left_alone() -> None:
    text = """g (float[N,4] x) => (float[N,4] y) <int64 z = {0}, int64 n = {4}, int64 one = {1}, double f = {0.1}> {
        p = Range(z, n, one) d = Cast <to = 11> (p) m = Mul(d, f) c = Cos(m) e = Cast <to = 1> (c) y = Add(x, e) }"""
    check_pass(ConvertToFloat32(), text, None, inside_function="skip")


def test_an_embedding_and_what_follows_it_is_data() -> None:
    before = half(
        """g (int64[N] i) => (float16[N,2] y) <float[3,2] w = {1,2,3,4,5,6}> { e = Gather(w, i) y = Relu(e) }"""
    )
    made = run_checked(ConvertToFloat32(), before, 0).model
    assert numbers(made, "w").dtype == np.float32


def test_masks_keep_their_meaning() -> None:
    before = half("""g (float16[1,3] x, int64[1,3] mask) => (float16[1,3] y, float16[1,3] z)
        <float one = {1}, float low = {-65504}, float lowest = {-1}, bool[3] hidden = {0, 0, 1}> {
        m = Cast <to = 10> (mask) i = Sub(one, m) a = Mul(i, low) t = Add(x, a) y = Softmax(t)
        w = Where(hidden, lowest, x) z = Softmax(w) }""")
    before.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.float16(-np.inf), "lowest"))
    made = ConvertToFloat32().run(before).model
    feeds = {"x": np.float16([[3, -2, 1]]), "mask": np.int64([[1, 1, 0]])}
    old, new = ort_run(before, feeds), ort_run(made, feeds)
    for name in old:
        assert new[name][0, 2] == old[name][0, 2] == 0.0
        np.testing.assert_allclose(new[name], old[name], atol=HALF_STEP)


def test_doubles_that_float32_cannot_hold() -> None:
    values = np.array([1e300, -1e300, 1e-300, -1e-300, 0.0, np.inf, -np.inf, np.nan, 1.0])
    before = half("g (double[9] x) => (double[9] y) <float[9] w = {1,2,3,4,5,6,7,8,9}> { y = Mul(x, w) }")
    before.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w"))
    result = ConvertToFloat32().run(before)
    most, least = np.finfo(np.float32).max, np.finfo(np.float32).smallest_normal
    wanted = np.float32([most, -most, least, -least, 0.0, np.inf, -np.inf, np.nan, 1.0])
    np.testing.assert_array_equal(numbers(result.model, "w"), wanted)
    assert any("nearest number" in remark.message and remark.nodes == ("w",) for remark in result.remarks)


def test_quantizers_in_half_precision() -> None:
    """As vendors' float16 files have them: opset 19 lets x and the scale be float16; stored weights come out float16."""
    text = """<ir_version: 9, opset_import: ["" : 19]> g (float16[N,2] x) => (float16[N,2] y)
        <float s = {0.0625}, int8 z = {0}, int8[2,2] w = {64, -3, 5, 127}, float t = {0.0078125}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, t, z) y = MatMul(d, v) }"""
    made = run_checked(ConvertToFloat32(), half(text), 4 * HALF_STEP).model
    assert numbers(made, "s") == np.float32(0.0625)
    assert numbers(made, "w").dtype == np.int8
    assert [n.op_type for n in made.graph.node].count("Cast") == 2


def test_precision_of_quantizers() -> None:
    text = """<ir_version: 11, opset_import: ["" : 23]> g (float16[N,2] x) => (float16[N,2] y)
        <float s = {0.0625}, int8 z = {0}> {
        q = QuantizeLinear <precision = 10> (x, s, z) y = DequantizeLinear <output_dtype = 10> (q, s, z) }"""
    made = ConvertToFloat32().run(half(text)).model
    stated = {(n.op_type, a.name): a.i for n in made.graph.node for a in n.attribute if n.op_type != "Cast"}
    assert stated == {("QuantizeLinear", "precision"): 1, ("DequantizeLinear", "output_dtype"): 1}


def test_names_of_outputs_that_are_read_and_given_twice() -> None:
    before = half("g (float16[2] x) => (float16[2] y, float16[2] z) { y = Neg(x) z = Mul(y, y) }")
    made = run_checked(ConvertToFloat32(), before, 4 * HALF_STEP).model
    assert [n.op_type for n in made.graph.node] == ["Cast", "Neg", "Mul", "Cast", "Cast"]
    passed = half("g (float16[2] x) => (float16[2] x, float16[2] z) { z = Neg(x) }")
    run_checked(ConvertToFloat32(), passed, 0)


def test_an_output_that_is_a_constant() -> None:
    before = half("g (float16[2] x) => (float16[2] y, float16[2] w) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    made = run_checked(ConvertToFloat32(), before, 4 * HALF_STEP).model
    assert numbers(made, "w_float32").dtype == np.float32


def test_an_input_with_a_default_keeps_it() -> None:
    before = half("g (float16[2] x, float16[2] w) => (float16[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    made = run_checked(ConvertToFloat32(), before, 4 * HALF_STEP).model
    assert numbers(made, "w").dtype == np.float16


def test_sequences_inside() -> None:
    before = half("""g (float16[2] x) => (float16[2] y) <int64 z = {0}> {
        e = SequenceEmpty <dtype = 10> () s = SequenceInsert(e, x) y = SequenceAt(s, z) }""")
    before.graph.value_info.append(
        helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(10, [2])))
    )
    made = run_checked(ConvertToFloat32(), before, 0).model
    info = next(v for v in made.graph.value_info if v.name == "s")
    assert info.type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.FLOAT


def _refused(model: onnx.ModelProto, text: str, **options: Any) -> None:
    with pytest.raises(UnsupportedError, match=text) as caught:
        ConvertToFloat32(**options).run(model)
    assert caught.value.code == "operator-unsupported"
    assert caught.value.hint


def test_refusals() -> None:
    bits = (
        """<ir_version: 13, opset_import: ["" : 26]> g (float16[2] x) => (uint16[2] y) { y = BitCast <to = 4> (x) }"""
    )
    _refused(parse(bits), "BitCast")
    sequence = half("g (float16[2] x) => (seq(float16[2]) y) { y = SequenceConstruct(x) }")
    _refused(sequence, "'y'")
    assert ConvertToFloat32(keep_io_types=False).run(sequence).changed
    generic = half("""<ir_version: 9, opset_import: ["" : 19, "local" : 1]>
        g (float16[2] x) => (float16[2] y) { y = local.f <kind = 10> (x) }
        <domain: "local", opset_import: ["" : 19]> f <kind> (x) => (y) { y = Cast <to : int = @kind> (x) }""")
    _refused(generic, "attribute 'kind' of the function")


def test_external_data_are_read_when_they_are_wanted(tmp_path: Path) -> None:
    values = np.arange(4096, dtype=np.float16).reshape(64, 64) / 4096
    proto = parse(
        "g (float16[N,64] x) => (float16[N,64] y) { y = MatMul(x, w) }".replace("{", "<float[1] w = {1}> {", 1)
    )
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "w"))
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    made = ConvertToFloat32().run(tmp_path / "m.onnx").model
    held = made.graph.initializers["w"].const_value
    assert isinstance(held, ir.LazyTensor)
    for external in (False, True):
        io.save(made, tmp_path / "out.onnx", external_data=external)
        onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
        again = onnx.load(tmp_path / "out.onnx")
        compare_outputs(whole, again, 2.0**-5)  # a sum of up to 64 to 11 bits
        np.testing.assert_array_equal(numbers(again, "w"), values.astype(np.float32))


def test_bfloat16_constants_keep_their_values() -> None:
    values = np.array([1.0, -3.39e38, np.inf, 1e-30]).astype(ml_dtypes.bfloat16)
    model = ir.from_proto(parse("g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }"))
    assert isinstance(model, ir.Model)
    graph = model.graph
    graph.initializers["w"].const_value = ir.Tensor(values, dtype=ir.DataType.BFLOAT16)
    graph.initializers["w"].type = ir.TensorType(ir.DataType.BFLOAT16)
    made = ConvertToFloat32().run(model).model
    np.testing.assert_array_equal(made.graph.initializers["w"].const_value.numpy(), values.astype(np.float32))


def test_a_constant_that_the_caller_of_a_function_gives() -> None:
    before = parse("""<ir_version: 9, opset_import: ["" : 19, "local" : 1]>
        g (float16[2] x) => (float[2] y) { c = Cast <to = 1> (x) y = local.f <v = float {2}> (c) }
        <domain: "local", opset_import: ["" : 19]> f <v> (x) => (y) {
        k = Constant <value : tensor = @v> () y = Mul(x, k) }""")
    made = run_checked(ConvertToFloat32(), before, 0).model
    assert made.functions[0].node[0].attribute[0].ref_attr_name == "v"


def test_casts_in_functions_that_state_no_types_go() -> None:
    before = parse("""<ir_version: 9, opset_import: ["" : 19, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 19]> f (x) => (y) {
        h = Cast <to = 10> (x) t = Cast <to = 1> (h) y = Mul(t, t) }""")
    made = run_checked(ConvertToFloat32(), before, 8 * HALF_STEP).model
    assert [node.op_type for node in made.functions[0].node] == ["Cast", "Mul"]  # x may be anything


def test_an_initializer_that_states_no_type() -> None:
    model = ir.from_proto(half("g (float16[2] x) => (float16[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"))
    assert isinstance(model, ir.Model)
    model.graph.initializers["w"].type = None
    made = ConvertToFloat32(keep_io_types=False).run(model).model
    assert made.graph.initializers["w"].dtype == ir.DataType.FLOAT


def test_a_model_in_float32_is_not_copied() -> None:
    model = ir.from_proto(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    assert isinstance(model, ir.Model)
    assert convert(model) is model
