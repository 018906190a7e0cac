"""Matrix products, Einsum and determinants."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, parser

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (4, 1), (4, 5)], ids=str)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, 2.0), (1.5, 0.0)], ids=str)
def test_gemm_equals_onnxruntime(shape, transposed, factors) -> None:
    inputs = {"a": normal(3, 4) if transposed else normal(4, 3), "b": normal(5, 3) if transposed else normal(3, 5)}
    inputs["c"] = normal(*shape)
    options = {"transA": transposed, "transB": transposed, "alpha": factors[0], "beta": factors[1]}
    for constants in ((), ("b", "c")):
        model = one_node.make("Gemm", inputs, opset=13, constants=constants, **options)
        parity.check(model, one_node.feeds(model, inputs))


def test_the_first_gemm_broadcasts_where_it_is_told_to() -> None:
    inputs = {"a": normal(4, 3), "b": normal(3, 5), "c": normal(5)}
    model = one_node.make("Gemm", inputs, opset=6, broadcast=1, rank=2)
    found = parity.run_module(to_torch(model), inputs)[0]
    np.testing.assert_allclose(found, inputs["a"] @ inputs["b"] + inputs["c"], rtol=1e-5, atol=1e-6)


EQUATIONS = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk": [(2, 3, 4), (2, 4, 5)],
    "...ij,...jk->...ik": [(2, 1, 3, 4), (3, 4, 5)],
    "...i->...": [(2, 3, 4)],
    "ii->i": [(3, 3)],
    "ii": [(3, 3)],
    "Ab,bC->CA": [(2, 3), (3, 4)],
    "bA": [(2, 3)],
    "ij,jk,kl->il": [(2, 3), (3, 4), (4, 5)],
    " i j -> j i ": [(2, 3)],
    ",->": [(), ()],
    "->": [()],
    "i->": [(4,)],
}

RANKS = {"...ij,...jk->...ik": 4}  # onnx infers no shape from an ellipsis


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_equals_the_reference(equation) -> None:
    inputs = {f"x{i}": normal(*shape) for i, shape in enumerate(EQUATIONS[equation])}
    model = one_node.make("Einsum", inputs, opset=12, equation=equation, rank=RANKS.get(equation))
    lowering_checks.equals_reference(model, inputs)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 1, 2, 2), (1, 1)], ids=str)
def test_determinants_equal_onnxruntime(shape) -> None:
    inputs = {"x": normal(*shape)}
    model = one_node.make("Det", inputs, opset=11)
    parity.check(model, inputs)
    gradient = lowering_checks.gradients(model, inputs)[0]
    assert torch.isfinite(gradient).all()


def test_determinants_of_half_floats_are_computed_in_float32() -> None:
    inputs = {"x": normal(5, 4, 4).astype(np.float16)}
    model = one_node.make("Det", inputs, outputs={"y": TensorProto.FLOAT16}, opset=22)
    wanted = np.linalg.det(inputs["x"].astype(np.float32)).astype(np.float16)
    np.testing.assert_allclose(parity.run_module(to_torch(model), inputs)[0], wanted, rtol=2e-3)


def test_products_export() -> None:
    lowering_checks.exports("Det", {"x": normal(3, 4, 4)}, {"x": (0,)}, {"x": normal(2, 4, 4)}, opset=11)
    given, other = {"a": normal(3, 4, 5), "b": normal(3, 5, 2)}, {"a": normal(2, 4, 5), "b": normal(2, 5, 2)}
    lowering_checks.exports("Einsum", given, {"a": (0,), "b": (0,)}, other, opset=12, equation="bij,bjk->bik")


@pytest.mark.parametrize(("transposed", "size"), [(0, 3), (1, 1)])
def test_a_vector_is_a_row_or_transposed_a_column(transposed: int, size: int) -> None:
    model = parser.parse_model(  # a rank that onnxruntime does not infer: others it refuses
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[3] x, float[n] like, float[{size}, 4] w) => (float[r, 4] y) {{
            s = Shape(like) a = Reshape(x, s) y = Gemm <transA = {transposed}> (a, w)
        }}"""
    )
    parity.check(model, {"x": normal(3), "like": normal(3), "w": normal(size, 4)})
