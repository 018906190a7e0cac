"""The runner: what it observes, in constant memory, and what it refuses."""

import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.calibration.runner import calibrate
from onnxqat.data.inputs import InputInfo, of_graph
from onnxqat.errors import DataError, ModelError, UsageError
from onnxqat.runtime import isolated_session
from onnxqat.runtime.session import Session
from onnxqat.types import QType, TensorSpec

SPEC = TensorSpec(QType.of(8, signed=True))
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 3] x) => (float[N, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[1] two = {2}>
{
    doubled = Mul(x, two)
    hidden = MatMul(doubled, w)
    y = Relu(hidden)
}
"""


def model(text: str = MODEL) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def specs(*names: str, observer: str = "minmax") -> dict[str, TensorSpec]:
    return dict.fromkeys(names, TensorSpec(QType.of(8, signed=True), observer=observer))


def batches(*sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((size, 3)).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("kind", ["proto", "ir", "path"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_inputs_outputs_and_tensors(
    kind: str, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.setattr(isolated_session, "_IN_MEMORY", 0)
    proto = model()
    before = proto.SerializeToString(deterministic=True)
    onnx.save(proto, tmp_path / "model.onnx")
    source: Any = {"proto": proto, "ir": ir.from_proto(proto), "path": tmp_path / "model.onnx"}[kind]
    data = batches(2, 5, 1)
    calls: list[tuple[int, int | None]] = []
    found = calibrate(source, specs("x", "doubled", "hidden", "y", "w"), data, progress=lambda *a: calls.append(a))
    x = np.concatenate(data)
    hidden = 2 * x @ np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    for name, values in {"x": x, "doubled": 2 * x, "hidden": hidden, "y": np.maximum(hidden, 0), "w": [1, 6]}.items():
        np.testing.assert_allclose(found[name].range(), (np.min(values), np.max(values)), rtol=1e-5)
    assert list(found) == ["x", "doubled", "hidden", "y", "w"]
    assert (calls, found.batches, found.remarks) == ([(1, 3), (2, 3), (3, 3)], 3, ())
    assert proto.SerializeToString(deterministic=True) == before
    if kind == "ir":
        assert [value.name for value in source.graph.outputs] == ["y"]


def test_external_data(tmp_path: Path) -> None:
    onnx.save_model(model(), tmp_path / "model.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    found = calibrate(tmp_path / "model.onnx", specs("hidden"), batches(3))
    assert found["hidden"].count == 6


def test_only_the_input() -> None:
    assert calibrate(model(), specs("x"), batches(4))["x"].count == 12


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy", "mse"])
def test_group_is_observed_as_one(observer: str) -> None:
    data = batches(10, 20)
    tied = calibrate(model(), specs("doubled", observer=observer), data, groups={"hidden": "doubled", "x": "hidden"})
    assert tied["hidden"] is tied["doubled"] is tied["x"]
    alone = calibrate(model(), specs("x", "hidden", "doubled", observer=observer), data)
    merged = alone["doubled"]
    merged.merge(alone["x"])
    merged.merge(alone["hidden"])
    assert tied["x"].qparams().same(merged.qparams())


def test_group_takes_the_spec_of_its_root_or_first_member() -> None:
    four = TensorSpec(QType.of(4, signed=True))
    found = calibrate(model(), {"hidden": SPEC, "doubled": four}, batches(2), groups={"hidden": "doubled"})
    assert found["hidden"].spec is four
    found = calibrate(model(), {"hidden": four}, batches(2), groups={"hidden": "root", "x": "root"})
    assert list(found) == ["hidden", "x"]
    for groups in ({"x": "hidden", "hidden": "x"}, {"x": "root"}):
        with pytest.raises(UsageError, match=r"circle|no tensor of the group"):
            calibrate(model(), specs("y"), batches(2), groups=groups)


class Tracked(np.ndarray[Any, Any]):
    """An array that can be watched."""


def test_batches_are_let_go() -> None:
    alive: list[weakref.ref[Tracked]] = []
    most = 0

    def generate() -> Iterator[np.ndarray]:
        nonlocal most
        for batch in batches(*[4] * 50):
            most = max(most, sum(ref() is not None for ref in alive))
            tracked = batch.view(Tracked)
            alive.append(weakref.ref(tracked))
            yield tracked

    calibrate(model(), specs("x", "hidden"), generate)
    assert len(alive) == 50
    assert most <= 3


def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    def peak(count: int) -> int:
        def generate() -> Iterator[np.ndarray]:
            for index in range(count):
                yield np.full((20_000, 3), index, np.float32)

        tracemalloc.start()
        try:
            calibrate(model(), specs("x", "doubled", "y", observer="percentile"), generate)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(40) < 1.2 * peak(4)


def test_shapes_differ_and_some_tensors_are_empty() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 3] x, int64[1] n) => (float[M, 3] y)
    <int64[1] zero = {0}>
    {
        part = Slice(x, zero, n)
        y = Relu(part)
    }
    """
    feeds = [{"x": x, "n": np.array([n], np.int64)} for x, n in zip(batches(4, 2, 7), (0, 1, 0), strict=True)]
    found = calibrate(model(text), specs("part", "x", observer="entropy"), feeds)
    assert (found["part"].count, found["x"].count) == (3, 39)
    found = calibrate(model(text), {"part": SPEC}, feeds[::2])
    assert found["part"].range() == (0, 0)
    assert found["part"].qparams().scale == 1
    assert "'part' never held a value" in found.remarks[0].message


def test_per_channel() -> None:
    by_channel = TensorSpec(QType.of(8, signed=True), granularity="channel", axis=1)
    data = batches(5, 6)
    found = calibrate(model(), {"x": by_channel}, data)
    np.testing.assert_array_equal(found["x"].range()[0], np.concatenate(data).min(axis=0))
    with pytest.raises(UsageError, match=r"'x' cannot be observed: .* no channel axis 2"):
        calibrate(model(), {"x": TensorSpec(SPEC.qtype, granularity="channel", axis=2)}, data)


def test_remarks_of_the_data() -> None:
    found = calibrate(model(), specs("x"), [np.ones((3, 3), np.float32)])
    assert "identical" in found.remarks[0].message


def test_ranges_of_few_samples_are_told() -> None:
    for count, told in ((1, True), (7, True), (8, False)):
        found = calibrate(model(), specs("x"), batches(count))
        assert any(f"ranges are those of {count} sample" in remark.message for remark in found.remarks) == told


def test_non_finite() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 3] x) => (float[N, 3] y)
    {
        root = Log(x)
        y = Relu(root)
    }
    """
    good, bad = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
    bad[2, 1] = 0
    with pytest.raises(DataError, match=r"batch 1 of .*tensor 'root' has NaN or infinity in sample 2") as caught:
        calibrate(model(text), specs("root"), [good, bad])
    assert caught.value.code == "data-non-finite"
    bad[2, 1] = np.nan
    with pytest.raises(DataError, match="input 'x' has NaN or infinity in sample 2"):
        calibrate(model(text), specs("root"), [good, bad])


def test_unknown_tensor_and_wrong_type() -> None:
    with pytest.raises(UsageError, match="'hiden'") as caught:
        calibrate(model(), specs("hiden"), batches(1))
    assert "hidden" in caught.value.hint
    integer = MODEL.replace("y = Relu(hidden)", "y = Relu(hidden)\n    s = Shape(y)")
    with pytest.raises(UsageError, match="'s' is INT64"):
        calibrate(onnx.shape_inference.infer_shapes(model(integer)), specs("s"), batches(1))


def test_model_that_cannot_run() -> None:
    custom = """
    <ir_version: 8, opset_import: ["" : 17, "vendor" : 1]>
    main (float[N, 3] x) => (float[N, 3] y) { y = vendor.Magic(x) }
    """
    with pytest.raises(ModelError, match="onnxruntime cannot run the model") as caught:
        calibrate(model(custom), specs("x"), batches(1))
    assert caught.value.code == "model-not-runnable"
    assert "\n" not in caught.value.message
    reshape = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 3] x) => (float[A, B] y) <int64[2] s = {-1, 7}> { y = Reshape(x, s) }
    """
    with pytest.raises(ModelError, match="on batch 1 of the list"):
        calibrate(model(reshape), specs("y"), batches(7, 2))


def test_wrong_shape_in_the_file_does_not_matter() -> None:
    proto = model()
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, ["N", 99]))
    graph = ir.from_proto(proto)
    assert calibrate(graph, specs("doubled"), batches(2))["doubled"].count == 6


def test_input_infos_of_graph_and_session() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float16[N, 3] a, int64 b, bool[2] c) => (float16[N, 3] y, int64 z, bool[2] t)
    <float16[1] default = {1}>
    {
        y = Neg(a)
        z = Neg(b)
        t = Not(c)
    }
    """
    graph_model = ir.from_proto(model(text))
    expected = [
        InputInfo("a", "float16", ("N", 3)),
        InputInfo("b", "int64", ()),
        InputInfo("c", "bool", (2,)),
    ]
    assert of_graph(graph_model.graph) == expected
    assert Session(graph_model, optimize=True).inputs == expected


def test_real_model(shared: Path) -> None:
    path = shared / "data" / "models" / "resnet8_cifar10.onnx"
    graph = ir.load(path).graph
    names = [value.name for node in graph for value in node.outputs if value.dtype == ir.DataType.FLOAT and value.name]
    x = np.random.default_rng(0).standard_normal((24, 3, 32, 32)).astype(np.float32)
    exact = calibrate(path, specs(*names), x)
    clipped = calibrate(path, specs(*names, observer="mse"), x)
    assert len(names) > 15
    for name in names:
        assert exact[name].count > 0
        assert exact[name].range()[0] <= clipped[name].range()[0] <= clipped[name].range()[1] <= exact[name].range()[1]


def test_nodes_of_one_name_run() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) { ["same"] t = Relu(x) ["same"] y = Neg(t) }""")
    found = Session(ir.from_proto(model), optimize=False).run({"x": np.array([-1, 2], np.float32)})
    np.testing.assert_array_equal(found["y"], [0, -2])
