"""Ranges by the error at the outputs: outliers are cut where nothing comes of them, and kept where all does."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxqat
from onnxqat.calibration import output_error, range_choice
from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import InsertResult
from onnxqat.placement.table_overrides import Overrides

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 8, 6, 6] x) => (float[N, 8, 6, 6] y) { t = Relu(x) u = Conv(t, w) y = Relu(u) }"""


def network(weight_of_outliers: float) -> onnx.ModelProto:
    """A layer that reads channel 0, where the outliers are, with that weight."""
    weight = np.random.default_rng(1).standard_normal((8, 8, 1, 1)).astype(np.float32)
    weight[:, 0] = weight_of_outliers
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def samples(count: int = 24) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((count, 8, 6, 6)).astype(np.float32)
    x[::8, 0, 0, 0] = 60
    return x


def insert(model: onnx.ModelProto, data: object = None, **options: object) -> InsertResult:
    held = {"x": samples()} if data is None else data
    return onnxqat.insert_qdq(model, data=held, guard=False, **options)


def highest(result: InsertResult) -> float:
    """Largest value of the grid of what the layer reads."""
    found = {q.tensor: q.qparams for q in qdq.quantizers(io.load(result.model))}["t"]
    return float(found.scale * (found.qtype.quant_max - found.zero_point))


def widest(_: output_error.Network, groups: Sequence[range_choice.Group]) -> np.ndarray:
    """Errors by which every tensor alone does best with its widest range."""
    sizes = [len(group.candidates) for group in groups]
    return np.array([[*range(size), *[np.nan] * (max(sizes) - size)] for size in sizes], np.float64)


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt", "qnn-htp"])
def test_outliers_that_nothing_comes_of_are_cut(backend: str) -> None:
    cut, kept = (insert(network(weight), backend=backend) for weight in (0.0, 1.0))
    assert highest(cut) < 10
    assert highest(kept) > 55
    assert any("by the error at the outputs" in remark.message for remark in cut.remarks)
    widest = insert(network(0.0), backend=backend, overrides=Overrides(activation_observer="minmax"))
    assert cut.trial is not None
    assert widest.trial is not None
    assert cut.trial.worst > widest.trial.worst + 10


def test_one_observer_for_all_where_that_is_better_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that were chosen one by one go where all together leave more error than one observer does."""
    monkeypatch.setattr(output_error, "errors", widest)
    assert highest(insert(network(0.0))) < 10
    assert highest(insert(network(1.0))) > 55


def test_one_observer_for_all_but_those_that_a_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A percentile for all cuts outliers that nothing comes of; behind a SiLU its range wastes codes."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 8, 6, 6] x) => (float[N, 8, 6, 6] y) {
        t = Relu(x) u = Conv(t, w) s = Sigmoid(u) v = Mul(u, s) y = Conv(v, w) }""")
    model.graph.initializer.extend(network(0.0).graph.initializer)
    monkeypatch.setattr(output_error, "errors", widest)
    monkeypatch.setattr(range_choice, "RESOLUTION", 1.0)
    remarks = [r.message for r in insert(model, {"x": 4 * samples()}).remarks if "error at the outputs" in r.message]
    assert len(remarks) == 1
    assert "mse behind the function 1" in remarks[0]
    assert "minmax" not in remarks[0]


def test_what_the_first_samples_do_not_reach_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of all tensors together are compared on more samples than each tensor is tried on alone."""
    x = np.random.default_rng(0).standard_normal((32, 8, 6, 6)).astype(np.float32)
    x[[5, 9], 0, 0, 0] = 60
    monkeypatch.setattr(output_error, "errors", lambda network, groups: -widest(network, groups))
    monkeypatch.setattr(output_error, "SAMPLES", (4, 4))
    assert highest(insert(network(1.0), {"x": x})) > 55
    monkeypatch.setattr(output_error, "MORE_SAMPLES", 4)
    assert highest(insert(network(1.0), {"x": x})) < 55


def test_large_outputs_need_as_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What samples behind the first four reach is not cut, though these have many values, and cutting looks far better there."""
    x = np.random.default_rng(0).standard_normal((32, 8, 6, 6)).astype(np.float32)
    x[[5, 9], 0, 0, 0] = 60
    monkeypatch.setattr(range_choice, "_take_one_for_all", lambda groups, network: None)
    assert highest(insert(network(1.0), {"x": x})) > 55
    monkeypatch.setattr(output_error, "SAMPLES", (4, 4))
    assert highest(insert(network(1.0), {"x": x})) < 55


def test_outputs_that_drown_in_noise_do_not_compare_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two nearly equal branches is noise on every grid: that some have less of it tells nothing."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 8, 6, 6] x, float[N, 8, 6, 6] z) => (float[N, 8, 6, 6] y) {
        t = Relu(x) s = Relu(z) u = Conv(t, w) v = Conv(s, w) y = Sub(u, v) }""")
    model.graph.initializer.extend(network(0.0).graph.initializer)
    data = {"x": samples(), "z": 1.003 * np.minimum(samples(), 50)}
    monkeypatch.setattr(output_error, "errors", widest)
    assert highest(insert(model, data)) > 55
    monkeypatch.setattr(range_choice, "DROWNED", np.inf)
    assert highest(insert(model, data)) < 10


def test_what_leaves_the_model_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest box is as rare as an outlier; a bit of resolution is given for it, and no more."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 8, 12, 12] x) => (float[N, 144, 8] y) {
        shape = Constant<value_ints = [0, 8, 144]>() t = Conv(x, w) u = Reshape(t, shape) y = Transpose<perm = [0, 2, 1]>(u) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32)[:, :, None, None], "w"))
    x = np.random.default_rng(0).standard_normal((128, 8, 12, 12)).astype(np.float32)
    assert highest(insert(model, {"x": x})) > x.max() - 0.05
    with monkeypatch.context() as patched:
        patched.setattr(range_choice, "RESOLUTION", 1.0)
        assert highest(insert(model, {"x": x})) < x.max() - 0.2
    x[0, 0, 0, 0] = 60
    monkeypatch.setattr(output_error, "errors", lambda network, groups: -widest(network, groups))
    monkeypatch.setattr(range_choice, "_take_one_for_all", lambda groups, network: None)
    assert highest(insert(model, {"x": x})) < 10


def test_values_that_a_silu_makes_zero_get_no_codes() -> None:
    """Without a comparison too, but not where something else reads the convolution's result."""
    body = "t = Conv(x, w) s = Sigmoid(t) u = Mul(t, s) y = Conv(u, w)"
    lowest = {}
    for more in ("", " z = Conv(t, w)"):
        outputs = "(float[N, 8, 6, 6] y" + (", float[N, 8, 6, 6] z)" if more else ")")
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 8, 6, 6] x) => {outputs} {{ {body}{more} }}'
        )
        model.graph.initializer.extend(network(1.0).graph.initializer)
        data = {"x": 2.0 * np.random.default_rng(2).standard_normal((16, 8, 6, 6)).astype(np.float32)}
        compared = onnxqat.insert_qdq(model, data=data, guard=False)
        assert any("mse behind the function" in remark.message for remark in compared.remarks) == (not more)
        result = onnxqat.insert_qdq(model, data=data, guard=False, fast=True)
        grid = {q.tensor: q.qparams for q in qdq.quantizers(io.load(result.model))}["t"]
        lowest[more] = float(grid.scale * (grid.qtype.quant_min - grid.zero_point))
    assert lowest[""] > -7  # a SiLU saturates to less than a step at -8
    assert lowest[" z = Conv(t, w)"] < -20


def test_what_nothing_can_be_compared_on() -> None:
    fast = insert(network(0.0), fast=True)
    assert not any("ranges" in remark.message for remark in fast.remarks)

    def once() -> Iterator[np.ndarray]:
        yield samples()

    single = insert(network(0.0), once())
    assert any(
        "can be read only once" in remark.message and "squared error" in remark.message for remark in single.remarks
    )
    assert highest(single) == highest(fast)


def test_observers_of_activations_and_weights() -> None:
    overrides = Overrides(activation_observer="percentile 99", weight_observer="mse", weight_bits=4, per_channel=False)
    ranges = {
        name: {
            q.tensor: q.qparams.scale.max() for q in qdq.quantizers(io.load(insert(network(1.0), overrides=o).model))
        }
        for name, o in (
            ("both", overrides),
            (
                "activations",
                Overrides(
                    activation_observer="percentile 99", weight_observer="minmax", weight_bits=4, per_channel=False
                ),
            ),
            ("widest", Overrides(observer="minmax", weight_bits=4, per_channel=False)),
        )
    }
    assert ranges["both"]["t"] == ranges["activations"]["t"] < ranges["widest"]["t"]
    assert ranges["both"]["w"] < ranges["activations"]["w"] == ranges["widest"]["w"]


def test_a_percentile_that_is_none() -> None:
    for name in ("percentile 20", "percentile x", "minmax 3"):
        with pytest.raises(onnxqat.errors.UsageError, match=name) as error:
            insert(network(1.0), overrides=Overrides(observer=name))
        assert error.value.code == "option-invalid"


def test_an_output_whose_size_depends_on_the_values() -> None:
    """A value next to 0 is selected or not: both outputs are compared, none stops calibration."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 8, 6, 6] x) => (float[M] y, float[N, 8, 6, 6] u) <float zero = {0}, int64[1] flat = {-1}> {
        t = Relu(x) u = Conv(t, w) m = Greater(u, zero) v = Reshape(u, flat) b = Reshape(m, flat) y = Compress(v, b) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(network(1.0).graph.initializer)
    result = insert(model, {"x": samples(64)})
    assert any("by the error at the outputs" in remark.message for remark in result.remarks)
