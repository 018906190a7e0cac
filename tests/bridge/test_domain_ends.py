"""Slopes at the end of a domain are 0 and not infinite; values keep their bits."""

import numpy as np
import pytest
import torch

from onnxqat.bridge import domain_ends
from tests.bridge import lowering_checks, one_node

INFINITY, NAN = float("inf"), float("nan")
PAIRS = [
    (domain_ends.square_root, torch.sqrt),
    (domain_ends.arc_sine, torch.asin),
    (domain_ends.arc_cosine, torch.acos),
    (domain_ends.area_hyperbolic_cosine, torch.acosh),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda f: f.__name__)
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
    expected = torch.where(y.grad.isinf() & kept, torch.zeros_like(y.grad), y.grad)
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=0, equal_nan=True)


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
