"""Groups of nodes become one call of torch where that means the same, and only there."""

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

from tests.bridge import parity

RANDOM = np.random.default_rng(0)


def parse(
    body: str, weights: dict[str, np.ndarray], inputs: str = "float[n, 3, 8] x", outputs: str = "float[a, b, c] y"
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{ {body} }}')
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()
    )
    return model


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


GELU = {"root": np.sqrt(2), "one": 1.0, "half": 0.5}
GELUS = [
    "d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "d = Div(x, root) e = Erf(d) a = Add(one, e) h = Mul(half, x) y = Mul(h, a)",
    "d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(a, half) y = Mul(x, h)",
]


@pytest.mark.parametrize("body", GELUS)
def test_gelu_is_one_call_and_its_constants_are_gone(body: str) -> None:
    module = parity.check(parse(body, GELU))
    assert module.code.count("gelu(") == 1
    assert "erf" not in module.code
    assert not module.state_dict()
    assert not module.parameter_names


def test_gelu_that_multiplies_by_the_inverse() -> None:
    body = "d = Mul(root, x) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)"
    assert "gelu(" in parity.check(parse(body, GELU | {"root": np.sqrt(0.5)})).code


NOT_GELU = {
    "another constant": ("d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", {"root": 1.4}),
    "another half": ("d = Div(x, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", {"half": 0.25}),
    "another x": ("z = Neg(x) d = Div(z, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", {}),
    "divided by": ("d = Div(root, x) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", {}),
}


@pytest.mark.parametrize("case", NOT_GELU)
def test_what_is_no_gelu_stays(case: str) -> None:
    body, constants = NOT_GELU[case]
    module = parity.check(parse(body, GELU | constants))
    assert "gelu(" not in module.code
    assert "torch.erf(" in module.code


def test_an_inner_result_that_is_an_output_stays() -> None:
    model = parse("s = Sigmoid(x) y = Mul(x, s)", {}, outputs="float[a, b, c] y, float[d, e, f] s")
    assert "torch.sigmoid(" in parity.check(model).code


def test_silu_keeps_the_name_of_its_result() -> None:
    module = parity.check(parse("s = Sigmoid(x) y = Mul(s, x)", {}))
    assert "torch.nn.functional.silu(x)" in module.code
    assert set(module.tensor_nodes) == {"x", "y"}


def test_a_quantizer_inside_keeps_the_steps() -> None:
    body = "s = Sigmoid(x) q = QuantizeLinear(s, scale) d = DequantizeLinear(q, scale) y = Mul(x, d)"
    module = parity.check(parse(body, {"scale": 1 / 128}))
    assert "torch.sigmoid(" in module.code
    assert "s_quantizer" in module.code


@pytest.mark.parametrize("body", ["m = MatMul(x, w) y = Add(m, b)", "m = MatMul(x, w) y = Add(b, m)"])
def test_linear(body: str) -> None:
    module = parity.check(parse(body, {"w": normal(8, 5), "b": normal(5)}))
    assert "torch.nn.functional.linear(" in module.code
    assert set(module.state_dict()) == {"w", "b"}
    module(torch.randn(2, 3, 8)).square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_bias_that_widens_the_product_stays_an_addition() -> None:
    module = parity.check(parse("m = MatMul(x, w) y = Add(m, b)", {"w": normal(8, 1), "b": normal(5)}))
    assert "linear(" not in module.code


def test_quantized_weights_stay_trainable_in_a_linear() -> None:
    body = """q = QuantizeLinear(w, scale, z) d = DequantizeLinear(q, scale, z) m = MatMul(x, d) y = Add(m, b)"""
    model = parse(body, {"w": normal(8, 5), "b": normal(5), "scale": 0.02})
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0), "z"))
    module = parity.check(model)
    assert "linear(" in module.code
    module(torch.randn(2, 3, 8)).square().sum().backward()
    assert module.w.grad is not None
    assert module.w_quantizer.scale.grad is not None


NORM = """
    s = Shape(x)  flat = Constant<value_ints = [0, 2, -1]>()  r = Reshape(x, flat)
    i = InstanceNormalization<epsilon = 1e-3>(r, ones, zeros)  back = Reshape(i, s)
    m = Mul(back, w)  y = Add(m, b)
"""
NORM_WEIGHTS = {"ones": np.ones(2), "zeros": np.zeros(2), "w": normal(6, 1, 1), "b": normal(6, 1, 1)}
IMAGE = {"inputs": "float[n, 6, 4, 4] x", "outputs": "float[n, 6, 4, 4] y"}


def test_group_norm() -> None:
    module = parity.check(parse(NORM, NORM_WEIGHTS, **IMAGE))
    assert "torch.group_norm(x, 2, " in module.code
    assert set(module.state_dict()) == {"w", "b"}


@pytest.mark.parametrize(
    "change", [{"ones": np.array([1.0, 2.0])}, {"zeros": np.array([0.0, 0.1])}, {"w": normal(1, 1, 4)}]
)
def test_another_normalization_over_groups_stays(change: dict[str, np.ndarray]) -> None:
    module = parity.check(parse(NORM, NORM_WEIGHTS | change, **IMAGE))
    assert "instances" in module.code


ATTENTION = """
    kt = Transpose<perm = [0, 1, 3, 2]>(k)  qs = Mul(q, scale)  ks = Mul(kt, scale)
    p = MatMul(qs, ks)  {mask}  w = Softmax<axis = -1>({scores})  y = MatMul(w, v)
"""
QKV = "float[n, 2, 5, 8] q, float[n, 2, 7, 8] k, float[n, 2, 7, 8] v"
FOUR = "float[n, 2, 5, 8] y"


def test_attention_without_a_mask() -> None:
    body = ATTENTION.format(mask="", scores="p")
    module = parity.check(parse(body, {"scale": 0.6}, QKV, FOUR))
    assert "scaled_dot_product_attention(q, " in module.code
    assert not module.state_dict()


def test_attention_with_a_finite_mask() -> None:
    body = ATTENTION.format(mask="f = Mul(mask, large)  a = Add(p, f)", scores="a")
    model = parse(body, {"scale": 0.6, "large": -10000.0}, f"{QKV}, float[n, 1, 1, 7] mask", FOUR)
    given = {name: normal(2, 2, length, 8) for name, length in (("q", 5), ("k", 7), ("v", 7))}
    given["mask"] = np.array([0, 1, 0, 0, 1, 0, 0], np.float32).reshape(1, 1, 1, 7).repeat(2, 0)
    module = parity.check(model, given)
    assert "scaled_dot_product_attention(" in module.code


def test_attention_with_a_mask_that_may_be_infinite_stays() -> None:
    body = ATTENTION.format(mask="a = Add(p, mask)", scores="a")
    model = parse(body, {"scale": 0.6}, f"{QKV}, float[n, 1, 1, 7] mask", FOUR)
    given = {name: normal(2, 2, length, 8) for name, length in (("q", 5), ("k", 7), ("v", 7))}
    given["mask"] = np.full((2, 1, 1, 7), -np.inf, np.float32)
    module = parity.check(model, given)  # NaN, as the file says
    assert "scaled_dot_product_attention(" not in module.code


def test_a_scale_that_is_computed_from_a_shape() -> None:
    body = """s = Shape(q)  last = Constant<value = int64 {3}>()  d = Gather(s, last)  f = Cast<to = 1>(d)  r = Sqrt(f)
    kt = Transpose<perm = [0, 1, 3, 2]>(k)  one = Constant<value = float {1.0}>() g = Div(one, r)
    flat = Constant<value_ints = [1]>() h = Reshape(g, flat) qs = Mul(q, h)
    p = MatMul(qs, kt)  w = Softmax<axis = -1>(p)  y = MatMul(w, v)"""
    inputs = "float[n, 2, 5, e] q, float[n, 2, 7, e] k, float[n, 2, 7, e] v"
    model = parse(body, {}, inputs, "float[n, 2, 5, e] y")
    assert "scaled_dot_product_attention(q, " in parity.check(model, e=8).code


@pytest.mark.parametrize(("rows", "masks"), [(2, 2), (1, 3), (3, 1)])
def test_a_mask_may_widen_the_scores(rows: int, masks: int) -> None:
    body = ATTENTION.format(mask="f = Mul(mask, large)  a = Add(p, f)", scores="a")
    inputs = "float[n, 2, 5, 8] q, float[n, 2, 7, 8] k, float[n, 2, 7, 8] v, float[m, 1, 1, 7] mask"
    model = parse(body, {"scale": 0.6, "large": -10000.0}, inputs, "float[o, 2, 5, 8] y")
    given = {name: normal(rows, 2, length, 8) for name, length in (("q", 5), ("k", 7), ("v", 7))}
    given["mask"] = (normal(masks, 1, 1, 7) > 0).astype(np.float32)
    assert "fusion.masked_attention(" in parity.check(model, given).code
