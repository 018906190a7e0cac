"""Resize of images in integers: the neighbours of onnxruntime, exact shares, and graphs that have one."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.graph import io
from onnxqat.integer_functions.functions import resize
from onnxqat.passes._resized_images import attributes_of
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
from tests.bridge.integer import networks
from tests.integer_functions import cases
from tests.passes.checks import parse

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    up (float[N, 3, 8, 6] x) => (float[N, 4, 16, 12] y, float[N, 3, 16, 12] z, float[N, 8, 6] t)
    <float[4, 3, 3, 3] w, float[4] twice = {1, 1, 2, 2}, int64 third = {2}> {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Resize <mode = "linear", coordinate_transformation_mode = "MODE"> (c, , twice)
        z = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , twice)
        t = Gather <axis = 1> (c, third)
    }"""


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3, 8, 6)).astype(np.float32)


def quantized(mode: str = "half_pixel") -> onnx.ModelProto:
    model = networks.with_weights(TEXT.replace("MODE", mode))
    found = onnxqat.insert_qdq(model, data={"x": images(8)}, overrides=Overrides(integer="resize"))
    return found.model


@pytest.mark.parametrize("mode", resize.COORDINATES)
@pytest.mark.parametrize("sizes", [(14, 4), (3, 12), (1, 1)])
@pytest.mark.parametrize("by_scales", [True, False])
def test_the_reference_is_the_float_operator(mode: str, sizes: tuple[int, int], by_scales: bool) -> None:
    given = [1.0, 1.0, sizes[0] / 7, sizes[1] / 6] if by_scales else [1, 1, *sizes]
    kind = "float[4] s" if by_scales else "int64[4] s"
    text = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[1, 1, 7, 6] x) => (float[1, 1, H, W] y)
        <{kind} = {{{", ".join(map(str, given))}}}> {{
        y = Resize <mode = "linear", coordinate_transformation_mode = "{mode}"> (x, , {"s" if by_scales else ", s"}) }}"""
    model = io.load(parse(text))
    x = images(1)[:, :1, :7]
    call = cases.Call(attributes=attributes_of(model.graph[-1]))
    wanted = Session(model, optimize=False, what="the operator").run({"x": x})["y"]
    found = resize.Function("uint8", "uint8").reference(x.astype(np.float64), call)
    # onnxruntime finds positions in float32, of a few rows: their rounding times the distance of two values.
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_shares_of_an_upsampling_by_two_are_exact() -> None:
    grid = cases.CodeGrid(0.5, 7, "uint8")
    attributes = cases.RESIZED | {"sizes": [16, 16], "scales": [2.0, 2.0]}
    bound = resize.Function("uint8", "uint8").error_bound(grid, grid, cases.Call(attributes=attributes))
    assert bound <= 0.5 * (0.5 + 2.0**-resize.KEPT_BITS)


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
def test_a_network_has_no_float_operator(mode: str) -> None:
    model = quantized(mode)
    assert [n.op_type for n in model.graph.node if "Resize" in n.op_type] == ["Resize_uint8_uint8", "Resize"]
    wanted = networks.session(model, images())
    for engine in ("torch", "numpy"):
        made = onnxqat.to_integer(model, engine=engine)  # type: ignore[arg-type]
        assert made.float_operators() == []
        found = made.run({"x": images()}).outputs
        for name, value in zip(("y", "z", "t"), wanted, strict=True):
            np.testing.assert_array_equal(found[name], value)


def test_it_trains_and_comes_back() -> None:
    torch = pytest.importorskip("torch")
    model = quantized()
    module = onnxqat.to_torch(model).train()
    assert onnxqat.write_back(module, model).SerializeToString() == model.SerializeToString()
    module(torch.from_numpy(images()))[0].square().sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if name.startswith("w")}
    assert all(g is not None and bool(g.abs().sum() > 0) for g in gradients.values())


def test_lint_and_explain_see_the_float_operator(tmp_path: Path) -> None:
    path = tmp_path / "up.onnx"
    onnx.save(quantized(), path)
    assert not [f for f in onnxqat.lint(path).findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("float[N, 3, 8, 6] x", "float[N, 3, H, W] x"), "the size of its image is unknown"),
        (("MODE", "tf_crop_and_resize"), "it has tf_crop_and_resize"),
        (("{1, 1, 2, 2}", "{1, 2, 2, 2}"), "it resizes more than the image"),
    ],
)
def test_what_is_left_in_float(change: tuple[str, str], reason: str) -> None:
    graph = io.load(networks.with_weights(TEXT.replace(*change).replace("MODE", "half_pixel"))).graph
    node = next(n for n in graph if n.op_type == "Resize")
    assert node.inputs[0] is not None
    node.inputs[0].shape = ir.Shape(["N", 4, "H", "W"] if "unknown" in reason else ["N", 4, 8, 6])
    assert attributes_of(node) == reason


def test_attributes_that_say_no_size_are_refused() -> None:
    function = resize.Function("uint8", "uint8")
    grid = cases.CodeGrid(0.5, 7, "uint8")
    for attributes in ({}, cases.RESIZED | {"sizes": [8]}, cases.RESIZED | {"sizes": [0, 8]}):
        with pytest.raises(ValueError, match="resized"):
            function.constants(grid, grid, cases.Call(attributes=attributes))


def test_sizes_that_a_graph_computes_for_its_batch() -> None:
    """Torch's exporter joins the batch of the input with the size that the image shall have."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3, 8, 6] x) => (float[N, 3, 16, 12] y)
        <int64[1] start = {0}, int64[1] end = {2}, int64[2] size = {16, 12}> {
            s = Shape (x) b = Slice (s, start, end) all = Concat <axis = 0> (b, size)
            y = Resize <mode = "linear"> (x, , , all) }"""
    found = attributes_of(io.load(parse(text)).graph[-1])
    assert isinstance(found, dict)
    assert (found["lengths"], found["sizes"], found["scales"]) == ([8, 6], [16, 12], [2.0, 2.0])
