"""Wide MaxPools become chains of small ones, with the same numbers."""

import pytest

from onnxqat.deployment.workarounds.rknn_max_pools import RknnMaxPools
from tests.backends.planning import proto
from tests.passes.checks import check_pass, in_function, in_if, run_checked


@pytest.mark.parametrize(
    ("attributes", "pools"),
    [
        ("kernel_shape = [9,9], pads = [4,4,4,4]", 2),
        ("kernel_shape = [13,13], pads = [6,6,6,6], strides = [1,1]", 3),
        ("kernel_shape = [5,5], pads = [2,2,2,2]", 1),
        ("kernel_shape = [7,7], pads = [3,3,3,3]", 1),
        ("kernel_shape = [9,9]", 1),
        ("kernel_shape = [9,9], pads = [4,4,4,4], strides = [2,2]", 1),
        ("kernel_shape = [9,5], pads = [4,2,4,2]", 1),
    ],
)
def test_the_same_numbers(attributes: str, pools: int) -> None:
    model = proto(f"g (float[1,3,14,17] x) => (float[1,3,N,M] y) {{ y = MaxPool<{attributes}>(x) }}")
    made = run_checked(RknnMaxPools(), model, atol=0).model
    assert len(made.graph.node) == pools
    for wrap in (in_if, in_function):
        assert run_checked(RknnMaxPools(), wrap(model), atol=0).changed == (pools > 1)


def test_indices_are_left_alone() -> None:
    pool = "MaxPool<kernel_shape = [9,9], pads = [4,4,4,4]>(x)"
    check_pass(
        RknnMaxPools(), f"g (float[1,3,14,17] x) => (float[1,3,N,M] y, int64[1,3,N,M] i) {{ y, i = {pool} }}", None
    )
