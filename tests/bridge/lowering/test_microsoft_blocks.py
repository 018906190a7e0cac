"""Weights stored as integers with one scale a block, against onnxruntime."""

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
MS = "com.microsoft"
# onnxruntime has no kernel for 8 bits with zero points that are floats.
FORMS = [(bits, zeros) for bits in (2, 4, 8) for zeros in (None, "packed", "float") if (bits, zeros) != (8, "float")]
DYNAMIC = torch.export.Dim.DYNAMIC


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(*shape):
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def product(bits, block, inputs, zero_points, bias=True):
    blocks = -(-inputs // block)
    zeros = {None: None, "packed": codes(6, -(-blocks * bits // 8)), "float": normal(6, blocks) * 3}[zero_points]
    arrays = {
        "x": normal(2, 3, inputs),
        "w": codes(6, blocks, block * bits // 8),
        "scales": RANDOM.random((6, blocks)).astype(np.float32) / 2**bits,
        "zeros": zeros,
        "group": None,
        "bias": normal(6) if bias else None,
    }
    options = {"bits": bits, "block_size": block, "N": 6, "K": inputs}
    constants = [name for name in arrays if name != "x"]
    shapes = {"x": ("batch", "sequence", inputs)}
    return one_node.make("MatMulNBits", arrays, constants=constants, domain=MS, shapes=shapes, **options), arrays


@pytest.mark.parametrize("inputs", [64, 40])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize(("bits", "zero_points"), FORMS)
def test_mat_mul_n_bits(bits, block, inputs, zero_points) -> None:
    model, arrays = product(bits, block, inputs, zero_points)
    module = parity.check(model, one_node.feeds(model, arrays))
    x = torch.from_numpy(arrays["x"]).requires_grad_()
    module(x).square().sum().backward()
    # A master on its grid pulls the scale neither way: the gradient of a quantizer is then 0 but for rounding.
    leaves = [p for name, p in module.named_parameters() if not name.endswith("quantizer.scale")]
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in (x, *leaves))


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_mat_mul_n_bits_exports_and_compiles_with_dynamic_batch_and_sequence() -> None:
    model, arrays = product(4, 16, 40, "packed")
    module = to_torch(model)
    x, other = torch.from_numpy(arrays["x"]), torch.randn(4, 5, 40)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},), strict=False)
    torch.testing.assert_close(exported.module()(other), module(other))
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(other), module(other))


def test_other_widths_are_refused() -> None:
    model, _ = product(4, 16, 40, None)
    next(a for a in model.graph.node[0].attribute if a.name == "bits").i = 3
    with pytest.raises(UnsupportedError, match="3 bits"):
        to_torch(model)


INDICES = np.asarray([[0, 3, -1], [2, 2, 1]], np.int64)


def table_model(table, scales, zeros, indices, **options):
    """A model that reads a constant table; 4-bit types are packed as ONNX prescribes."""
    constants = {"table": table, "scales": scales, "zeros": zeros}
    initializers = [
        helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape, a.astype(np.float32).flatten())
        for name, a in constants.items()
        if a is not None
    ]
    node = helper.make_node(
        "GatherBlockQuantized",
        ["table", "indices", "scales"] + (["zeros"] if zeros is not None else []),
        ["y"],
        domain=MS,
        **options,
    )
    index = helper.make_tensor_value_info("indices", TensorProto.INT64, indices.shape)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (table.ndim - 1 + indices.ndim))
    graph = helper.make_graph([node], "g", [index], [output], initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def check_table(model: onnx.ModelProto) -> None:
    module = parity.check(model, {"indices": INDICES})
    module(torch.from_numpy(INDICES)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 0), (-1, -1)])
def test_gather_of_4_bit_integers(kind, zero_points, axes) -> None:
    low, high = ml_dtypes.iinfo(kind).min, ml_dtypes.iinfo(kind).max
    shape, blocks = (36, 40), [36, 40]
    blocks[axes[1]] = -(-shape[axes[1]] // 16)
    table = RANDOM.integers(low, high + 1, shape).astype(kind)
    zeros = RANDOM.integers(low, high + 1, blocks).astype(kind) if zero_points else None
    scales = RANDOM.random(blocks).astype(np.float32)
    check_table(table_model(table, scales, zeros, INDICES, gather_axis=axes[0], quantize_axis=axes[1], block_size=16))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
def test_gather_of_packed_bytes(bits, zero_points) -> None:
    zeros = codes(7, 3 * bits // 8 or 1) if zero_points else None
    if zeros is not None and bits == 4:
        zeros = codes(7, 2)
    scales = RANDOM.random((7, 3)).astype(np.float32)
    model = table_model(codes(7, 48 * bits // 8), scales, zeros, INDICES, bits=bits, quantize_axis=1, block_size=16)
    check_table(model)


def test_an_index_outside_the_table_gives_zeros() -> None:
    model = table_model(codes(4, 16), RANDOM.random((4, 1)).astype(np.float32), None, INDICES, bits=8, block_size=16)
    found = to_torch(model)(torch.tensor([[0, 4, -5], [1, 2, 3]]))
    assert not found[0, 1:].any()
    assert found[0, 0].any()
