"""Wide MaxPools become chains of small ones, with the same numbers."""

import itertools

import onnx_ir as ir
import pytest

from onnxqat.deployment.workarounds.rknn_max_pools import RknnMaxPools
from onnxqat.graph import query
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


@pytest.mark.parametrize(
    ("size", "side", "pools"), [("4,4", 5, 4), ("6,4", 13, 12), ("5,9", 7, 6), ("5,5", 5, 1), ("2,2", 3, 1)]
)
def test_windows_that_are_longer_than_the_map(size: str, side: int, pools: int) -> None:
    """RKNN-Toolkit2 takes the maximum of what lies outside of them too, and makes one of two square ones."""
    reach = side // 2
    pool = f"MaxPool<kernel_shape = [{side},{side}], pads = [{','.join([str(reach)] * 4)}]>(x)"
    model = proto(f"g (float[1,3,{size}] x) => (float[1,3,{size}] y) {{ y = {pool} }}")
    made = run_checked(RknnMaxPools(), model, atol=0).model
    kernels = [query.attribute(node, "kernel_shape", []) for node in ir.from_proto(made).graph]
    assert len(kernels) == pools
    assert pools == 1 or all(one != two for one, two in itertools.pairwise(kernels))


def test_indices_are_left_alone() -> None:
    pool = "MaxPool<kernel_shape = [9,9], pads = [4,4,4,4]>(x)"
    check_pass(
        RknnMaxPools(), f"g (float[1,3,14,17] x) => (float[1,3,N,M] y, int64[1,3,N,M] i) {{ y, i = {pool} }}", None
    )
