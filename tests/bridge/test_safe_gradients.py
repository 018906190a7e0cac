"""Slopes at the end of a domain and beyond are 0 and not infinite or NaN; values keep their bits."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.functional import safe_gradients
from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node

INFINITY, NAN = float("inf"), float("nan")
PAIRS = [
    (safe_gradients.square_root, torch.sqrt),
    (safe_gradients.arc_sine, torch.asin),
    (safe_gradients.arc_cosine, torch.acos),
    (safe_gradients.area_hyperbolic_cosine, torch.acosh),
    (safe_gradients.area_hyperbolic_tangent, torch.atanh),
    (lambda x: safe_gradients.fractional_power(x, 0.5), lambda x: torch.pow(x, 0.5)),
    (lambda x: safe_gradients.fractional_power(x, 1.75), lambda x: torch.pow(x, 1.75)),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_values_have_the_bits_of_torch_and_slopes_do_not_exceed_all_bounds(ours, theirs, dtype) -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 0.25, 0.5, 1.5, 3.0, -0.75, -2.0, INFINITY, NAN]
    x, y = (torch.tensor(numbers, dtype=dtype, requires_grad=True) for _ in range(2))
    found, wanted = ours(x), theirs(y)
    assert torch.equal(found.isnan(), wanted.isnan())
    kept = ~wanted.isnan()
    # The sign of a NaN is no part of its value.
    assert torch.equal(found[kept], wanted[kept])
    assert torch.equal(found[kept].signbit(), wanted[kept].signbit())
    found.sum().backward()
    wanted.sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    sloped = kept & ~(y.grad.isinf() & wanted.isfinite())
    torch.testing.assert_close(x.grad, torch.where(sloped, y.grad, torch.zeros_like(y.grad)), rtol=0, atol=0)


EXPONENTS = [2.0, 3.0, 0.0, 1.0, 0.5, 1.5, -1.0, -0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_with_a_tensor_as_exponent(dtype) -> None:
    grids = torch.meshgrid(
        torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0], dtype=dtype), torch.tensor(EXPONENTS, dtype=dtype), indexing="ij"
    )
    ours, theirs = ([g.clone().requires_grad_() for g in grids] for _ in range(2))
    found, wanted = safe_gradients.power(*ours), torch.pow(*theirs)
    assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
    found.sum().backward()
    wanted.sum().backward()
    base, exponent = grids
    assert ours[0].grad is not None
    assert ours[1].grad is not None
    assert theirs[0].grad is not None
    assert theirs[1].grad is not None
    kept = (base > 0) | (exponent == exponent.round())
    assert torch.equal(ours[0].grad, torch.where(kept, theirs[0].grad, 0))
    assert torch.equal(ours[1].grad, torch.where(base > 0, theirs[1].grad, 0))
    assert torch.isfinite(ours[0].grad[(base != 0) | (exponent >= 0)]).all()


@pytest.mark.parametrize(
    ("ours", "theirs", "slopes"),
    [
        (safe_gradients.truncated_remainder, torch.fmod, [-3.0, 3.0]),
        (safe_gradients.floored_remainder, torch.remainder, [-3.0, 4.0]),
    ],
)
def test_remainders_have_finite_slopes(ours, theirs, slopes) -> None:
    pairs = [
        (7.5, 2.0),
        (-7.5, 2.0),
        (7.5, 0.0),
        (INFINITY, 2.0),
        (1.0, INFINITY),
        (NAN, 2.0),
        (2.0, NAN),
        (1e38, 1e-38),
    ]
    a, b = (torch.tensor(numbers, requires_grad=True) for numbers in zip(*pairs, strict=True))
    found = ours(a, b)
    assert torch.equal(found.nan_to_num(7), theirs(a, b).nan_to_num(7))
    found.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    assert a.grad.tolist() == [1.0] * len(pairs)
    assert b.grad.tolist() == [*slopes, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Sqrt", {"x": np.array([-1.0, 0.0, 4.0], np.float32)}),
        ("Atanh", {"x": np.array([-2.0, 0.0, 0.5], np.float32)}),
        ("Pow", {"x": np.array([-2.0, 0.0, 4.0], np.float32), "e": np.array([0.5, 0.5, 0.5], np.float32)}),
        ("Pow", {"x": np.array([-2.0, 0.0, 4.0], np.float32), "e": np.array(0.5, np.float32)}),
        ("Mod", {"x": np.array([-2.0, 0.0, 4.0], np.float32), "e": np.array([0.0, 0.0, 3.0], np.float32)}),
    ],
    ids=str,
)
def test_operators_beyond_their_domain_have_finite_gradients(op_type, inputs) -> None:
    constants = [name for name, array in inputs.items() if not array.ndim]
    model = one_node.make(op_type, inputs, constants=constants, **({"fmod": 1} if op_type == "Mod" else {}))
    leaves = lowering_checks.tensors(model, inputs)
    result = lowering_checks.results(to_torch(model), [leaf.requires_grad_() for leaf in leaves])[0]
    assert result.isnan().any()
    result.sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad[-1] != 0


@pytest.mark.parametrize(
    ("op_type", "shape", "options"),
    [
        ("LpNormalization", (2, 3), {"p": 2}),
        ("LpNormalization", (2, 3), {"p": 1}),
        ("ReduceL2", (2, 3), {}),
        ("MeanVarianceNormalization", (1, 2, 3, 3), {"rank": 4}),
        ("LpPool", (1, 1, 4, 4), {"kernel_shape": [2, 2], "rank": 4}),
        ("GlobalLpPool", (1, 2, 3, 3), {}),
    ],
    ids=str,
)
def test_norms_of_zeros_have_gradients(op_type, shape, options) -> None:
    inputs = {"x": np.zeros(shape, np.float32)}
    gradient = lowering_checks.gradients(one_node.make(op_type, inputs, opset=18, **options), inputs)[0]
    assert torch.isfinite(gradient).all()
