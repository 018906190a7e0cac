"""Wide MaxPools become chains of small ones, with the same numbers."""

import numpy as np
import onnx
import pytest

from onnxqat.deployment.workarounds.rknn_max_pools import with_small_pools
from onnxqat.graph import io
from onnxqat.runtime.session import Session
from tests.backends.planning import proto


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
    before = model.SerializeToString()
    made = with_small_pools(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(made, full_check=True)
    assert len(made.graph.node) == pools
    x = np.random.default_rng(0).standard_normal((1, 3, 14, 17)).astype(np.float32) - 2
    one, two = (Session(io.load(m), optimize=False).run({"x": x})["y"] for m in (model, made))
    assert np.array_equal(one, two)
