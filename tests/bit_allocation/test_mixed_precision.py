"""From a float model and a budget to a file with several widths."""

import csv
import io as streams
import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.bit_allocation.candidates import Layer, Widths
from onnxqat.bit_allocation.costs import LayerCosts
from onnxqat.bit_allocation.mixed_precision import _all_on_integers
from onnxqat.bit_allocation.result import MixedPrecision
from onnxqat.bit_allocation.solver import Front
from onnxqat.cli import main
from onnxqat.errors import QatError
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.report import build_mixed_precision
from onnxqat.report import json as as_json
from onnxqat.types import QType, TensorSpec
from tests.validation import tiny

NODES = ["Conv_conv1", "Conv_conv2", "Gemm_logits"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mixed")
    onnx.save(tiny.write(None), made / "model.onnx")
    np.savez(made / "data.npz", image=tiny.images(16), labels=np.arange(16) % tiny.CLASSES)
    return made


def choose(folder: Path, budget: dict[str, Any], backend: str = "onnxruntime-cpu", **options: Any) -> MixedPrecision:
    options = {"output": folder / "mixed.onnx", "samples": 4, "rounding": "nearest"} | options
    limit = onnxqat.Budget(**budget)
    return onnxqat.mixed_precision(folder / "model.onnx", backend, folder / "data.npz", limit, **options)


@pytest.fixture(scope="module")
def half(folder: Path) -> MixedPrecision:
    return choose(folder, {"weight_bytes": "55%"}, output=folder / "half.onnx")


def widths_in(path: Any) -> dict[str, int]:
    """Width of the weight that each layer reads."""
    return {
        str(q.outputs[0].consumers()[0].name): q.qparams.qtype.bits
        for q in qdq.quantizers(io.load(path))
        if q.role == "weight"
    }


def test_the_file_has_the_widths_and_keeps_the_budget(half: MixedPrecision) -> None:
    assert [layer.node for layer in half.layers] == NODES
    assert widths_in(half.model) == {layer.node: layer.weight_bits for layer in half.layers}
    weights = {layer.node: layer.weights for layer in half.layers}
    assert weights == {"Conv_conv1": 216, "Conv_conv2": 576, "Gemm_logits": 56}
    assert half.total == sum(weights[node] * bits / 8 for node, bits in widths_in(half.model).items())
    assert half.whole == sum(weights.values())
    assert half.budget == pytest.approx(0.55 * half.whole)
    assert 0.4 * half.whole < half.total <= half.budget
    assert any("store a byte" in remark.message for remark in half.remarks)


def test_the_front_is_monotone_and_has_the_choice(half: MixedPrecision) -> None:
    costs = [point.cost for point in half.front]
    decibels = [point.predicted_db for point in half.front]
    assert (np.diff(costs) > 0).all()
    assert (np.diff(decibels) > 0).all()
    (chosen,) = (point for point in half.front if point.chosen)
    assert (chosen.cost, chosen.predicted_db) == (half.total, half.predicted_db)
    assert chosen.bits == tuple(layer.weight_bits for layer in half.layers)


def test_the_command_writes_the_same_file(half: MixedPrecision, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path(half.model).read_bytes()
    monkeypatch.chdir(folder)
    assert main.run(shlex.split(half.following)[1:]) == 0
    assert Path(half.model).read_bytes() == before


def test_measured_is_that_of_the_file(half: MixedPrecision, folder: Path) -> None:
    checked = onnxqat.validate(folder / "model.onnx", half.model, folder / "data.npz")
    found = min(c.sqnr_db for c in checked.outputs if c.against == "float" and c.run == "ort-plain")
    assert half.measured_db == pytest.approx(found, abs=1e-3)  # float32 sums of batches of another size
    assert half.samples == 16


def test_both_ways_to_noise_agree(folder: Path) -> None:
    """Gradients hold for small errors: at 6 bits and more they are within 3 dB of what a pass measures."""
    found = [choose(folder, {"weight_bytes": "90%"}, method=m, samples=16) for m in ("measured", "gradient")]
    assert [one.method for one in found] == ["measured", "gradient"]
    for measured, derived in zip(found[0].layers, found[1].layers, strict=True):
        for one, other in zip(measured.options, derived.options, strict=True):
            if one.weight_bits >= 6:
                assert abs(10 * math.log10(one.noise / other.noise)) < 3


def test_the_cheapest_within_a_limit_of_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the points between both ends, each is tried in turn: the first that keeps the limit is what the search finds."""
    monkeypatch.setattr("onnxqat.bit_allocation.mixed_precision.POINTS", 3)
    found = choose(folder, {"min_sqnr": 24.0}, widths=(4, 8))
    assert found.reached
    assert found.measured_db >= 24.0
    (place,) = (i for i, point in enumerate(found.front) if point.chosen)
    cheaper = choose(folder, {"weight_bytes": found.front[place - 1].cost}, widths=(4, 8))
    assert place > 0
    assert cheaper.total < found.total
    assert cheaper.measured_db < 24.0


def test_a_limit_that_no_choice_keeps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxqat.bit_allocation.mixed_precision.POINTS", 2)
    found = choose(folder, {"min_sqnr": 90.0}, widths=(4, 8))
    assert not found.reached
    assert found.total == found.whole
    assert build_mixed_precision.from_mixed_precision(found).passed is False


def test_largest_drop_of_a_score(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxqat.bit_allocation.mixed_precision.POINTS", 2)
    found = choose(folder, {"max_drop": 100.0}, score="top1", widths=(4, 8))
    assert found.score is not None
    assert found.total == found.front[0].cost
    with pytest.raises(QatError, match="drop is one of a score"):
        choose(folder, {"max_drop": 1.0})


def test_what_the_user_fixed_is_not_chosen_for(folder: Path) -> None:
    overrides = Overrides(exclude=("Conv_conv1",), node_bits=(("Gemm_logits", 8, 8),))
    found = choose(folder, {"weight_bytes": "60%"}, overrides=overrides, widths=(4, 6, 8))
    assert [layer.node for layer in found.layers] == ["Conv_conv2"]
    assert widths_in(found.model) == {"Conv_conv2": 4, "Gemm_logits": 8}
    assert "--exclude Conv_conv1" in found.following


def test_layers_that_share_a_weight_keep_its_width(folder: Path, tmp_path: Path) -> None:
    shared = tiny.write(None)
    added = onnx.helper.make_node("Conv", ["relu2", "conv2_w"], ["again"], "Conv_again", pads=[1, 1, 1, 1])
    shared.graph.node.insert([n.name for n in shared.graph.node].index("Relu_relu2") + 1, added)
    next(n for n in shared.graph.node if n.op_type == "GlobalAveragePool").input[0] = "again"
    onnx.save(shared, tmp_path / "model.onnx")
    budget = onnxqat.Budget(weight_bytes="60%")
    found = onnxqat.mixed_precision(
        tmp_path / "model.onnx", "qnn-htp", folder / "data.npz", budget, samples=2, rounding="nearest"
    )
    assert [layer.node for layer in found.layers] == ["Conv_conv1", "Gemm_logits"]
    assert any({"Conv_conv2", "Conv_again"} == set(remark.nodes) for remark in found.remarks)


def test_activations_count_where_multiplications_do(folder: Path) -> None:
    found = choose(folder, {"multiply_bits": "150%"}, "qnn-htp", widths=(4, 8))
    assert {layer.activation_bits for layer in found.layers} == {8, 16}
    assert found.total <= 1.5 * found.whole
    bytes_only = choose(folder, {"weight_bytes": "100%"}, "qnn-htp", widths=(4, 8))
    assert {layer.activation_bits for layer in bytes_only.layers} == {8}
    assert bytes_only.node_bits == ()


def test_float_is_a_choice_where_it_is_allowed(folder: Path) -> None:
    found = choose(folder, {"weight_bytes": "250%"}, allow_float=True, widths=(4, 8))
    assert found.exclude
    assert found.integer_share < 1.0
    assert set(widths_in(found.model)) == set(NODES) - set(found.exclude)


def test_refusals(folder: Path) -> None:
    for budget, options, code in (
        ({"weight_bytes": "10%"}, {}, "budget-too-small"),
        ({"weight_bytes": "50%"}, {"backend": "tensorrt-fp8"}, "backend-one-width"),
        ({"weight_bytes": "50%"}, {"method": "guessed"}, "option-invalid"),
        ({"weight_bytes": "50%"}, {"overrides": Overrides(exclude=("*",))}, "model-not-quantized"),
    ):
        with pytest.raises(QatError) as failed:
            choose(folder, budget, **options)
        assert failed.value.code == code
    once = (batch for batch in [{"image": tiny.images(4)}])
    with pytest.raises(QatError, match="read only once"):
        onnxqat.mixed_precision(folder / "model.onnx", "qnn-htp", once, onnxqat.Budget(weight_bytes=9000))


def test_views(half: MixedPrecision) -> None:
    found = as_json.to_dict(build_mixed_precision.from_mixed_precision(half))
    assert [row["node"] for row in found["tables"]["layers"]] == NODES
    assert found["details"]["front"][0]["bits"] == list(half.front[0].bits)
    heading, *rows = csv.reader(streams.StringIO(build_mixed_precision.to_csv(half)))
    assert heading[-3:] == NODES
    assert [float(row[0]) for row in rows] == [point.cost for point in half.front]


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ["mixed-precision", "model.onnx", "--data", "data.npz", "--rounding", "nearest", "--samples", "2"]
    assert main.run([*words, "--weight-bytes", "60%", "-o", "c.onnx", "--csv", "front.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["c.onnx", "front.csv"]
    assert found["next_command"].startswith("onnxqat validate model.onnx c.onnx")
    monkeypatch.setattr("onnxqat.bit_allocation.mixed_precision.POINTS", 2)
    assert main.run([*words, "--min-sqnr", "90", "--widths", "4,8", "-o", "c.onnx"]) == 1
    assert main.run([*words, "-o", "c.onnx"]) == 2
    assert main.run([*words, "--widths", "four", "--weight-bytes", "60%"]) == 2


def test_a_share_on_integers_leaves_the_noisiest_layers_in_float(folder: Path) -> None:
    found = choose(folder, {"integer_share": "60%"}, output=folder / "share.onnx")
    assert found.cost == "float-multiplications"
    assert 0.6 <= found.integer_share < 1.0
    assert found.exclude
    assert {layer.weight_bits for layer in found.layers} == {8, 32}
    assert set(widths_in(found.model)) == {layer.node for layer in found.layers if layer.weight_bits == 8}


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu"])
def test_a_file_that_may_take_its_time_stays_in_float(folder: Path, backend: str) -> None:
    if backend == "openvino-cpu":
        pytest.importorskip("openvino")
    found = choose(folder, {"latency": "1000s"}, backend, output=folder / "slow.onnx")
    assert found.reached
    assert found.latency_ms is not None
    assert found.latency_ms > 0
    assert found.predicted_db == math.inf
    assert found.integer_share == 0.0


def test_the_choice_on_integers_has_the_widest_of_them() -> None:
    sizes = ("conv", "conv", "Conv", "w", 0, 100, 1000, Widths(8, 8))
    weight = TensorSpec(QType("int8", -128, 127))
    layers = tuple(Layer(*sizes, specs, (8,), allow_float=True) for specs in ({4: weight, 8: weight}, {4: weight}))
    cost = LayerCosts("float-multiplications", layers)
    front = Front([[cost.units(layer, w) for w in layer.options] for layer in layers], [[0.3, 0.2, 0.0], [0.1, 0.0]])
    found = _all_on_integers(front, cost)
    assert (found.options, found.cost, found.noise) == ((1, 0), 0, pytest.approx(0.3))


def test_no_file_takes_a_picosecond(folder: Path) -> None:
    with pytest.raises(QatError, match="no choice of widths has at most 1e-09 ms a sample") as failed:
        choose(folder, {"latency": 1e-9}, output=folder / "fast.onnx")
    assert failed.value.code == "budget-too-small"


def test_a_compiler_without_a_profiler_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(QatError, match="no latency of rknn can be measured: rknn-toolkit2 tells no times"):
        choose(folder, {"latency": "1ms"}, "rknn", output=folder / "none.onnx")
