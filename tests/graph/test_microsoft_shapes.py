"""Shapes behind onnxruntime's operators: what is inferred is what onnxruntime computes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.graph import microsoft_shapes
from onnxqat.ops import operators
from tests.bridge import one_node, parity

MS = microsoft_shapes.DOMAIN
U8, F32, I32 = np.uint8, np.float32, np.int32


def zeros(dtype, *shape):
    return np.zeros(shape, dtype)


ONE, ZERO = np.ones((), F32), np.zeros((), U8)
ATTENTION = {"num_heads": 2}
# Operator: arrays in order of the inputs, attributes, outputs (element type and rank).
CASES = {
    "SkipLayerNormalization": ([zeros(F32, 2, 3, 8)] * 2 + [zeros(F32, 8)], {}, [(1, 3)]),
    "FusedMatMul": ([zeros(F32, 2, 5, 3), zeros(F32, 2, 4, 5)], {"transA": 1, "transB": 1}, [(1, 3)]),
    "MatMulNBits": (
        [zeros(F32, 2, 3, 32), zeros(U8, 6, 2, 8), zeros(F32, 6, 2)],
        {"N": 6, "K": 32, "block_size": 16, "bits": 4},
        [(1, 3)],
    ),
    "Attention": ([zeros(F32, 2, 3, 8), zeros(F32, 8, 48), zeros(F32, 48), None, None], ATTENTION, [(1, 3)]),
    "MultiHeadAttention": ([zeros(F32, 2, 3, 8), zeros(F32, 2, 5, 8), zeros(F32, 2, 5, 12)], ATTENTION, [(1, 3)]),
    "EmbedLayerNormalization": (
        [zeros(I32, 2, 3), None, zeros(F32, 9, 8), zeros(F32, 5, 8), None, zeros(F32, 8), zeros(F32, 8)],
        {},
        [(1, 3), (6, 1)],
    ),
    "FusedGemm": ([zeros(F32, 4, 3), zeros(F32, 4, 5)], {"transA": 1, "activation": "Relu"}, [(1, 2)]),
    "FusedConv": ([zeros(F32, 2, 3, 6, 6), zeros(F32, 4, 3, 3, 3)], {"activation": "Relu"}, [(1, 4)]),
    "QGemm": ([zeros(U8, 3, 4), ONE, ZERO, zeros(U8, 4, 5), ONE, ZERO], {}, [(1, 2)]),
    "QLinearAdd": ([zeros(U8, 3, 4), ONE, ZERO, zeros(U8, 4), ONE, ZERO, ONE, ZERO], {}, [(2, 2)]),
    "QLinearConcat": ([ONE, ZERO, zeros(U8, 3, 4), ONE, ZERO, zeros(U8, 3, 2), ONE, ZERO], {"axis": 1}, [(2, 2)]),
    "DynamicQuantizeMatMul": ([zeros(F32, 2, 3, 4), zeros(U8, 4, 5), ONE], {}, [(1, 3)]),
    "QLinearGlobalAveragePool": ([zeros(U8, 2, 3, 4, 4), ONE, ZERO, ONE, ZERO], {}, [(2, 4)]),
    "NhwcMaxPool": ([zeros(U8, 2, 4, 4, 3)], {"kernel_shape": [2, 2]}, [(2, 4)]),
    "QuantizeLinear": ([zeros(F32, 2, 4), ONE, ZERO], {}, [(2, 2)]),
    "DequantizeLinear": ([zeros(U8, 2, 4), ONE, ZERO], {}, [(1, 2)]),
    "GatherBlockQuantized": (
        [zeros(U8, 7, 8), zeros(np.int64, 2, 3), zeros(F32, 7, 1)],
        {"bits": 4, "block_size": 16},
        [(1, 3)],
    ),
}


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in model.graph.output:
        value.type.Clear()
    with microsoft_shapes.known_to_inference(ir.from_proto(model)):
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.parametrize("op_type", CASES)
def test_inferred_dimensions_are_those_of_onnxruntime(op_type) -> None:
    arrays, attributes, outputs = CASES[op_type]
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    kinds = {f"y{i}": kind for i, (kind, _) in enumerate(outputs)}
    constants = [name for name in inputs if name != "x0"]
    model = one_node.make(op_type, inputs, constants=constants, outputs=kinds, domain=MS, **attributes)
    for value, (_, rank) in zip(model.graph.output, outputs, strict=True):
        del value.type.tensor_type.shape.dim[:]
        value.type.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension() for _ in range(rank)])
    computed = parity.session(model).run(None, one_node.feeds(model, inputs))
    for value, (kind, rank), array in zip(infer(model).graph.output, outputs, computed, strict=True):
        found = value.type.tensor_type
        assert (found.elem_type, len(found.shape.dim)) == (kind, rank)
        for dimension, size in zip(found.shape.dim, array.shape, strict=True):
            assert dimension.dim_value in (size, 0)


def test_every_operator_that_has_a_lowering_has_a_rule() -> None:
    rows = {(domain, name) for domain, name in operators.table() if domain == MS}
    assert rows <= microsoft_shapes.RULES.keys()


def test_symbolic_dimensions_go_through() -> None:
    inputs = {"x": zeros(F32, 2, 3, 8), "skip": zeros(F32, 2, 3, 8), "gamma": zeros(F32, 8)}
    shapes = dict.fromkeys(("x", "skip"), ("batch", "sequence", 8))
    model = one_node.make("SkipLayerNormalization", inputs, constants=["gamma"], domain=MS, shapes=shapes)
    [found] = infer(model).graph.output
    assert [d.dim_param or d.dim_value for d in found.type.tensor_type.shape.dim] == ["batch", "sequence", 8]


def test_onnx_is_as_before_afterwards() -> None:
    model = one_node.make("FastGelu", {"x": zeros(F32, 2, 3)}, domain=MS)
    with microsoft_shapes.known_to_inference(ir.from_proto(model)):
        assert onnx.defs.has("FastGelu", 1, MS)
        assert not onnx.defs.has("QuickGelu", 1, MS)
    assert not onnx.defs.has("FastGelu", 1, MS)
    with pytest.raises(RuntimeError), microsoft_shapes.known_to_inference(ir.from_proto(model)):
        raise RuntimeError
    assert not onnx.defs.has("FastGelu", 1, MS)
    assert onnx.defs.get_schema("LayerNormalization", 17).since_version == 17
