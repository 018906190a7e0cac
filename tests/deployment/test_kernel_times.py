"""Times of kernels go to the layers that they compute."""

from onnx import helper

from onnxqat.deployment import kernel_times


def test_the_layer_of_a_fused_kernel_has_its_fastest_time() -> None:
    relu, conv = (helper.make_node(kind, ["x"], ["y"], name=name) for kind, name in (("Relu", "r"), ("Conv", "c")))
    runs = {"fused": [3.0, 2.0], "alone": [0.5], "reorder": [1.0, 4.0]}
    times, total = kernel_times.by_node(runs, {"fused": [relu, conv], "alone": [relu], "reorder": []})
    assert times == {"c": 2.0, "r": 0.5}
    assert total == 3.5


def test_kernels_of_one_node_add_up() -> None:
    conv = helper.make_node("Conv", ["x"], ["y"], name="c")
    assert kernel_times.by_node({"a": [1.0], "b": [2.0]}, {"a": [conv], "b": [conv]}) == ({"c": 3.0}, 3.0)
