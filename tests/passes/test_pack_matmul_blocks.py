"""Stored weights become MatMulNBits: the numbers stay those of the DequantizeLinear, and what it has no form for stays."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxqat.graph import io
from onnxqat.passes.pack_matmul_blocks import PackMatmulBlocks
from tests.passes.checks import ort_run

KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
LAYERS = {
    "MatMul(x, d)": 0,
    "Gemm(x, d)": 0,
    "Gemm<transB = 1>(x, d, b)": 1,
}


def network(layer: str, kind: str, block: int, *, inputs: int = 40, outputs: int = 6) -> onnx.ModelProto:
    """A product with a stored weight; `block` 0 is one scale for each output, -1 one in all."""
    axis = LAYERS.get(layer, 0)
    rng = np.random.default_rng(0)
    bits, signed = int(kind[-1]), kind.startswith("int")
    low = -(2 ** (bits - 1)) if signed else 0
    shape = (outputs, inputs) if axis else (inputs, outputs)
    size: tuple[int, ...] = (outputs,) if block == 0 else ()
    if block > 0:
        size = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
    attributes = f"<axis = {axis}, block_size = {block}>" if block > 0 else f"<axis = {1 - axis}>"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[N, {inputs}] x) => (float[N, {outputs}] y)'
        f" {{ d = DequantizeLinear {attributes} (w, s{', z' if not signed else ''})\n[mm] y = {layer} }}"
    )

    def codes(name: str, of: tuple[int, ...]) -> onnx.TensorProto:
        values = rng.integers(low, low + 2**bits, of)
        return helper.make_tensor(name, KINDS[kind], of, np.ravel(values).tolist())

    held = [codes("w", shape), codes("z", size)][: 1 if signed else 2]
    scale = rng.uniform(0.01, 0.02, size).astype(np.float32)
    held.append(numpy_helper.from_array(scale, "s"))
    held.append(numpy_helper.from_array(rng.standard_normal(outputs).astype(np.float32), "b"))
    model.graph.initializer.extend(h for h in held if h.name != "b" or ", b)" in layer)
    return model


def packed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Any]:
    made = PackMatmulBlocks().run(model)
    return made.model, made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_numbers_stay(layer: str, kind: str) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)}
    for block in (16, 32, 0, -1):  # 40 inputs end within a block of either size
        model = network(layer, kind, block)
        made, _ = packed(model)
        assert [n.op_type for n in made.graph.node] == ["MatMulNBits"]
        attributes = {a.name: helper.get_attribute_value(a) for a in made.graph.node[0].attribute}
        wanted = {"bits": int(kind[-1]), "K": 40, "N": 6, "accuracy_level": 1}
        assert wanted.items() <= attributes.items()
        assert attributes["block_size"] == (block if block > 0 else 64)
        wide = ort_run(model, x)["y"]
        # float32 sums of 40 products in another order
        np.testing.assert_allclose(ort_run(made, x)["y"], wide, rtol=0, atol=1e-5 * np.abs(wide).max())
        assert not packed(made)[1].changed


@pytest.mark.parametrize(
    ("layer", "block", "reason"),
    [
        ("MatMul(x, d)", 8, "no blocks of 8"),
        ("MatMul(x, d)", 20, "no blocks of 20"),
        ("Gemm<alpha = 0.5>(x, d)", 16, "alpha"),
        ("MatMul(x, d) u = Neg(d)", 16, "something else"),
    ],
)
def test_what_it_has_no_form_for_stays(layer: str, block: int, reason: str) -> None:
    model = network(layer, "int4", block)
    made, result = packed(model)
    assert not result.changed
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
    assert any(reason in remark.message for remark in result.remarks)


def test_a_branch_and_layers_that_share_a_weight() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (bool c, float[N, 40] x) => (float[N, 6] y) {
        y = If (c) <then_branch = t () => (float[N, 6] p) {
                d = DequantizeLinear <axis = 0, block_size = 16> (w, s)
                m = MatMul (x, d)
                n = MatMul (x, d)
                p = Add (m, n)
            }, else_branch = e () => (float[N, 6] q) { h = Slice (x, from, to, along) q = Neg (h) }>
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(network("MatMul(x, d)", "int4", 16).graph.initializer)
    for name, value in (("from", 0), ("to", 6), ("along", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray([value]), name))
    made, _ = packed(model)
    inner = io.load(made).graph[0].attributes["then_branch"].as_graph()
    assert [node.op_type for node in inner] == ["MatMulNBits", "MatMulNBits", "Add"]
    assert isinstance(inner[0], ir.Node)
    assert inner[0].inputs[1] is inner[1].inputs[1]
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32), "c": np.asarray(True)}
    wide = ort_run(model, feeds)["y"]
    np.testing.assert_allclose(ort_run(made, feeds)["y"], wide, rtol=0, atol=1e-5 * np.abs(wide).max())
