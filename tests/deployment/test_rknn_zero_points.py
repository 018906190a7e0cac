"""The copy that RKNN-Toolkit2 gets: weights of the same values, and grids that it does not stretch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat.deployment.workarounds.rknn_zero_points import with_kept_grids
from onnxqat.graph import io
from onnxqat.runtime.session import Session

TEXT = """<ir_version: 8, opset_import: ["" : 13]> g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[2,2,1,1] w2)
<float s = {0.25}, uint8 z = {%d}, int8[2,2,1,1] w = {%s}, float[2] t = {0.5, 0.125}, int8[2] v = {0, 0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    k = DequantizeLinear<axis = 0>(w, t, v)
    w2 = DequantizeLinear<axis = 0>(w, t%s)
    y = Conv(d, k)
}"""


def made(codes: str, zero_point: int = 128, rest: str = ", v") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = onnx.parser.parse_model(TEXT % (zero_point, codes, rest))
    before = model.SerializeToString()
    copy = with_kept_grids(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(copy, full_check=True)
    return model, copy


def constants(model: onnx.ModelProto, node: int) -> list[np.ndarray]:
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [stored[name] for name in model.graph.node[node].input if name in stored]


@pytest.mark.parametrize(
    ("codes", "shifted", "centres"),
    [
        ("-127, 3, 127, -128", [-128, 2, 127, -128], [-1, 0]),
        ("-128, 3, 127, -127", [-128, 3, 126, -128], [0, -1]),
        ("-128, 3, -128, 126", [-127, 4, -128, 126], [1, 0]),
        ("-128, 127, 127, -128", [-128, 127, 127, -128], [0, 0]),  # no code to spare
    ],
)
@pytest.mark.parametrize("rest", [", v", ""])
def test_weights_keep_their_values_beside_the_middle(
    codes: str, shifted: list[int], centres: list[int], rest: str
) -> None:
    model, copy = made(codes, rest=rest)
    for node in (2, 3):
        found = constants(copy, node)
        assert found[0].ravel().tolist() == shifted
        assert len(found) < 3 or found[2].tolist() == centres
    feeds = {"x": np.zeros((1, 2, 4, 4), np.float32)}
    one, two = (Session(io.load(m), optimize=False).run(feeds)["w2"] for m in (model, copy))
    assert np.array_equal(one, two)


def test_a_grid_around_the_middle_is_what_the_toolkit_stretches_to_the_files() -> None:
    _, copy = made("1, 2, 3, 4")
    for node in (0, 1):
        scale = constants(copy, node)[0]
        reach = np.float32(128) * scale  # what the toolkit takes for the largest number
        assert reach / np.float32(127) == np.float32(0.25)


def test_other_zero_points_are_left_alone() -> None:
    model, copy = made("1, 2, 3, 4", zero_point=127)
    assert copy.graph.node[0] == model.graph.node[0]
    assert copy.graph.node[1] == model.graph.node[1]


def test_a_copy_of_the_weights_is_not_shifted_twice() -> None:
    _, copy = made("1, 2, 3, 4", zero_point=127)
    assert with_kept_grids(copy).SerializeToString() == copy.SerializeToString()


@pytest.mark.parametrize("axis", ["", "<axis = 1>", "<axis = -2>"])
@pytest.mark.parametrize("middle", [0, 128])
def test_any_axis_and_both_types(axis: str, middle: int) -> None:
    dtype, many = "uint8" if middle else "int8", "[3]" if axis else ""
    scale, centre = ("0.5, 0.25, 2.0", ", ".join([str(middle)] * 3)) if axis else ("0.5", str(middle))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]> g () => (float[2,3,2] y)
        <{dtype}[2,3,2] w = {{{", ".join(str(middle + v - 6) for v in range(12))}}}, float{many} s = {{{scale}}},
         {dtype}{many} z = {{{centre}}}> {{ y = DequantizeLinear{axis}(w, s, z) }}""")
    copy = with_kept_grids(model)
    assert {middle - 1} <= set(constants(copy, 0)[2].ravel().tolist()) <= {middle - 1, middle}
    one, two = (Session(io.load(m), optimize=False).run({})["y"] for m in (model, copy))
    assert np.array_equal(one, two)
