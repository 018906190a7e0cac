"""divide-averages: pools that multiply by a rounded 1/N lose ties; one window is divided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxqat.deployment import base_compiler
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.divide_averages import DivideAverages, loses_ties
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import check_pass, parse, run_checked

POOL = "g (float[1,2,15,2] x) => (float[1,2,A,B] y) { y = AveragePool<kernel_shape=[7,2], ATTRIBUTES>(x) }"
CUT = """g (float[1,2,15,2] x) => (float[1,2,A,B] y) <int64[2] y_window_starts = {0, 0}, int64[2] y_window_ends = {14, 1},
    int64[2] y_window_axes = {2, 3}> {
    y_window = Slice(x, y_window_starts, y_window_ends, y_window_axes) y = GlobalAveragePool(y_window) }"""


def test_one_window_is_cut_out_and_divided() -> None:
    before = POOL.replace("[7,2]", "[14,1]").replace("ATTRIBUTES", "strides=[2,2]")
    check_pass(DivideAverages(), before, CUT, atol=1e-6, inside_function="left")


def test_a_window_of_the_whole_map() -> None:
    before = POOL.replace("[7,2]", "[15,2]").replace("ATTRIBUTES", "strides=[1,1]")
    after = "g (float[1,2,15,2] x) => (float[1,2,A,B] y) { y = GlobalAveragePool(x) }"
    check_pass(DivideAverages(), before, after, atol=1e-6, inside_function="left")


@pytest.mark.parametrize(
    ("kernel", "attributes", "told"),
    [
        ("7,2", "strides=[7,2]", True),  # two windows
        ("15,1", "strides=[1,1]", True),  # two beside one another
        ("14,2", "strides=[8,8], pads=[1,0,0,0]", True),
        ("14,2", "strides=[8,8], ceil_mode=1", True),
        ("14,2", 'strides=[14,2], auto_pad="SAME_UPPER"', True),
        ("3,2", "strides=[3,2], pads=[0,0,1,0]", False),  # windows of 6, 4 and 2
        ("7,1", "strides=[9,2], pads=[1,0,0,0]", True),
        ("8,2", "strides=[8,2]", False),
        ("12,1", "strides=[8,2]", False),
    ],
)
def test_left_alone(kernel: str, attributes: str, told: bool) -> None:
    text = POOL.replace("7,2", kernel, 1).replace("ATTRIBUTES", attributes)
    found = check_pass(DivideAverages(), text, None)
    assert bool(found.remarks) == told, found.remarks


def test_sizes_that_are_not_known() -> None:
    text = POOL.replace("15,2] x", "H,W] x").replace("ATTRIBUTES", "strides=[7,2]")
    assert check_pass(DivideAverages(), text, None).remarks


def test_dilated_windows() -> None:
    text = '<ir_version: 9, opset_import: ["" : 19]>\n' + POOL.replace("ATTRIBUTES", "dilations=[2,1], strides=[8,8]")
    assert check_pass(DivideAverages(), text, None).remarks


def test_a_target_whose_other_pool_loses_ties_too() -> None:
    both = DivideAverages(("AveragePool", "GlobalAveragePool"), mends=False)
    for text in (
        POOL.replace("7,2", "15,2").replace("ATTRIBUTES", "strides=[1,1]"),
        "g (float[1,2,15,2] x) => (float[1,2,A,B] y) { y = GlobalAveragePool(x) }",
        "g (float[1,2,H,W] x) => (float[1,2,A,B] y) { y = GlobalAveragePool(x) }",
    ):
        found = run_checked(both, parse(text), 0)
        assert found.remarks
        assert not found.changed
    kept = parse("g (float[1,2,7,7] x) => (float[1,2,A,B] y) { y = GlobalAveragePool(x) }")
    assert not run_checked(both, kept, 0).remarks


def test_counts_that_lose_ties() -> None:
    assert [n for n in range(1, 64) if loses_ties(n)] == [7, 13, 14, 15, 26, 28, 30, 41, 47, 51, 52, 55, 56, 60, 61, 63]


TIES = """g (float[1,256,C,1] x) => (float[1,256,1,1] y) { r = Relu(x) y = AveragePool<kernel_shape=[C,1]>(r) }"""


def sums(count: int) -> np.ndarray:
    """Maps of codes whose means are half-way between two codes."""
    wanted = np.minimum((np.arange(256) + 0.5) * count, 255 * count).astype(int)
    return np.stack([np.arange(count) < total % count for total in wanted]) + (wanted // count)[:, None]


@pytest.mark.parametrize("count", [14, 30])
def test_openvino_gives_the_bits_of_the_file(count: int, tmp_path: Path) -> None:
    compiler = base_compiler.load("openvino-cpu")
    if compiler.version() is None:
        pytest.skip("OpenVINO is not installed")
    x = (sums(count) / 16).astype(np.float32).reshape(1, 256, count, 1)
    path = tmp_path / "model.onnx"
    insert_qdq(
        parse(TIES.replace("C", str(count))),
        "openvino-cpu",
        data={"x": x},
        overrides=Overrides(exact=True),
        output=path,
    )
    assert "GlobalAveragePool" in {node.op_type for node in onnx.load(path).graph.node}
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(path, plain).run(None, {"x": x})[0]
    (found,) = compile_in_process(compiler, path, [{"x": x}]).outputs
    assert np.array_equal(found["y"], expected)


@pytest.mark.parametrize(("exact", "count", "told"), [(True, 30, True), (False, 30, False), (True, 12, False)])
def test_onnxruntime_says_where_the_promise_does_not_hold(exact: bool, count: int, told: bool) -> None:
    found = insert_qdq(
        parse(TIES.replace("C", str(count))), "onnxruntime-cpu", random_data=True, overrides=Overrides(exact=exact)
    )
    assert any("half-way between two codes" in remark.message for remark in found.remarks) == told


def test_nothing_is_said_of_a_pool_in_float() -> None:
    source = parse(TIES.replace("C", "30"))
    found = insert_qdq(
        source, "onnxruntime-cpu", random_data=True, overrides=Overrides(exact=True, exclude_ops=("AveragePool",))
    )
    assert not any("half-way between two codes" in remark.message for remark in found.remarks)
