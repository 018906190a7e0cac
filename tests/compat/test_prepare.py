"""Knight's way with MQBench's names: prepare, calibrate, quantize, train, save, export; the same as insert_qdq."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import onnxqat
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.compat import gather, qparams
from onnxqat.compat.backend_type import TABLES, BackendType
from onnxqat.compat.prepared import prepared_modules
from onnxqat.errors import BackendError, DataError, QatError, UsageError
from onnxqat.graph import io
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,4] logits) <float[4,3,3,3] w = {weight(4, 3, 3, 3)}, float[4] b = {{0.25, -0.5, 0.1, 0.3}},
 float[4,4] v = {weight(4, 4)}, float[4] c = {{1, 2, 3, 4}}> {{
    ["stem"] t = Conv<pads = [1,1,1,1]>(image, w, b) ["act"] a = Relu(t) ["side"] s = Tanh(a) ["sum"] d = Add(a, s)
    ["pool"] p = GlobalAveragePool(d) ["flat"] f = Flatten(p) ["head"] logits = Gemm(f, v, c) }}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return proto(TEXT)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32))


def calibrated(model: Any, backend: BackendType | str, images: torch.Tensor, config: Any = None) -> Any:
    module = onnxqat.prepare_by_platform(model, backend, None, config)
    onnxqat.enable_calibration(module)
    with torch.no_grad():
        module(images)
    onnxqat.enable_quantization(module)
    return module


@pytest.mark.parametrize("backend", sorted(set(TABLES.values()) - {"nnie"}))
def test_calibrating_gives_what_insert_qdq_gives(
    backend: str, model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path
) -> None:
    module = calibrated(model, backend, images)
    file = onnxqat.convert_export(module, tmp_path / "m.onnx")
    overrides = Overrides(activation_observer="minmax")  # what a module has that the user calibrates
    held = {"image": images.numpy()}
    reference = onnxqat.insert_qdq(model, backend, data=held, overrides=overrides, equalize=False, fast=True).model
    ours = onnx.load(file)
    assert ours.graph.node == reference.graph.node
    found, wanted = ({i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in (ours, reference))
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        # torch and onnxruntime sum in another order; ranges differ in the last bits, and codes of biases with them
        np.testing.assert_allclose(found[name].astype(float), value.astype(float), rtol=2e-6, atol=1e-6, err_msg=name)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(ours.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        logits = module(images).numpy()
    step = max(float(q.qparams().scale) for _, q in quantizers(module) if q.role == "activation")
    assert np.abs(session.run(None, {"image": images.numpy()})[0] - logits).max() <= 1.001 * step
    clean, document = qparams.split(reference)
    again = qparams.join(io.to_proto(clean), json.loads(json.dumps(document)))
    assert io.to_proto(again).SerializeToString(deterministic=True) == reference.SerializeToString(deterministic=True)


def test_without_a_scale_running_and_exporting_are_refused(
    model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path
) -> None:
    module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
    for refused in (
        lambda: module(images),
        lambda: onnxqat.convert_export(module, tmp_path / "m.onnx"),
        lambda: onnxqat.save_checkpoint(module, tmp_path / "m.pth", tmp_path / "m.json"),
    ):
        with pytest.raises(DataError, match="'image'") as caught:
            refused()
        assert caught.value.code == "quantizer-uncalibrated"
    onnxqat.enable_calibration(module)
    onnxqat.enable_quantization(module)  # no batch ran
    with pytest.raises(DataError, match="'image'"):
        module(images)
    onnxqat.disable_all(module)
    assert torch.isfinite(module(images)).all()
    # The weights alone have scales from the start: they need no data.
    onnxqat.enable_calibration_quantization(module, "weight_fake_quant")
    assert torch.isfinite(module(images)).all()


def test_the_float_state_is_the_float_model_bit_for_bit(model: onnx.ModelProto, images: torch.Tensor) -> None:
    plain = onnxqat.to_torch(model)
    module = calibrated(model, "onnxruntime-cpu", images)
    quantized = module(images)
    onnxqat.disable_all(module)
    assert torch.equal(module(images), plain(images))
    onnxqat.enable_quantization(module)
    assert torch.equal(module(images), quantized)
    assert not torch.equal(quantized, plain(images))


def test_switches_go_by_role(model: onnx.ModelProto, images: torch.Tensor) -> None:
    module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)

    def states() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, quantizer in quantizers(nn.Sequential(module)):
            found.setdefault(quantizer.role, set()).add(quantizer.state)
        return found

    onnxqat.enable_calibration_woquantization(module, "act_fake_quant")
    assert states() == {"activation": {"calibrate"}, "weight": {"float"}, "bias": {"float"}}
    module(images)
    onnxqat.enable_calibration_woquantization(module, "weight_fake_quant")
    assert states() == {"activation": {"float"}, "weight": {"calibrate"}, "bias": {"float"}}
    onnxqat.enable_quantization(nn.Sequential(module))  # a wrapper is seen through
    assert states() == {role: {"quantize"} for role in ("activation", "weight", "bias")}
    module(images)
    onnxqat.enable_quantization(module, act_cali_on=True)
    assert states()["activation"] == {"calibrate_quantized"}
    before = {q.tensor: float(q.qparams().scale) for _, q in quantizers(module) if q.role == "activation"}
    module(4 * images)
    assert {q.tensor: float(q.qparams().scale) for _, q in quantizers(module) if q.role == "activation"} != before
    onnxqat.enable_quantization(module, weight_cali_on=True)
    assert states() == {"activation": {"quantize"}, "weight": {"calibrate_quantized"}, "bias": {"quantize"}}
    weight_scale = next(q for _, q in quantizers(module) if q.tensor == "w").scale
    with torch.no_grad():
        module.get_parameter("w").mul_(2)
    scale = weight_scale.clone()
    module(images)
    torch.testing.assert_close(weight_scale, 2 * scale)
    onnxqat.enable_all(module)
    assert states()["weight"] == {"calibrate_quantized"}
    with pytest.raises(UsageError, match="weight_fake_qant") as caught:
        onnxqat.enable_calibration_woquantization(module, "weight_fake_qant")
    assert "weight_fake_quant" in caught.value.hint


def test_calibrating_quantized_sees_what_the_quantizers_in_front_do(
    model: onnx.ModelProto, images: torch.Tensor
) -> None:
    config = {"extra_qconfig_dict": {"a_qscheme": {"bit": 2, "symmetry": False}}}
    module = onnxqat.prepare_by_platform(model, "onnxruntime-cpu", None, config)
    onnxqat.enable_calibration_quantization(module)
    module(images)
    first = {q.tensor: q.qparams().scale for _, q in quantizers(module) if q.role == "activation"}
    plain = calibrated(model, "onnxruntime-cpu", images, config)
    other = {q.tensor: q.qparams().scale for _, q in quantizers(plain) if q.role == "activation"}
    assert first["image"] == other["image"]
    assert first != other


def test_observers_of_the_table_are_used(model: onnx.ModelProto, images: torch.Tensor) -> None:
    wide = images.clone()
    wide[0, 0, 0, 0] = 50.0
    scales = {
        name: next(
            q for _, q in quantizers(calibrated(model, "tsqat", wide, config)) if q.tensor == "image"
        ).scale.item()
        for name, config in {
            "minmax": None,
            "clip_std": {"extra_qconfig_dict": {"a_observer": "ClipStdObserver"}},
            "mse": {"extra_qconfig_dict": {"a_observer": "MSEObserver"}},
        }.items()
    }
    assert scales["minmax"] == pytest.approx(50 / 127)
    assert scales["clip_std"] < scales["minmax"]
    assert scales["mse"] < scales["minmax"]


def test_a_batch_in_parts_is_the_same_as_whole(model: onnx.ModelProto, images: torch.Tensor) -> None:
    module = onnxqat.prepare_by_platform(model, "onnxruntime-cpu")
    onnxqat.enable_calibration(module)
    for part in images.split(3):
        module(part)
    onnxqat.enable_quantization(module)
    whole = calibrated(model, "onnxruntime-cpu", images)
    assert torch.equal(module(images), whole(images))


def test_a_tensor_that_is_always_empty_has_the_range_zero() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image, float[K,4] empty) => (float[M,4] y) <float[4,192] w = {weight(4, 192)}> {{
    ["flat"] f = Flatten(image) ["head"] h = Gemm<transB = 1>(f, w) ["join"] y = Concat<axis = 0>(h, empty) }}"""
    for enable in (onnxqat.enable_calibration, onnxqat.enable_all):
        module = onnxqat.prepare_by_platform(proto(text), "qnn-htp")
        enable(module)
        module(torch.ones(2, 3, 8, 8), torch.zeros(0, 4))
        onnxqat.enable_quantization(module)
        assert module(torch.ones(2, 3, 8, 8), torch.zeros(0, 4)).shape == (2, 4)


def test_an_optimizer_made_before_calibration_keeps_its_parameters(
    model: onnx.ModelProto, images: torch.Tensor
) -> None:
    module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
    held = {id(p) for p in module.parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    onnxqat.enable_calibration(module)
    module(images)
    onnxqat.enable_quantization(module)
    assert {id(p) for p in module.parameters()} == held
    before = {key: p.detach().clone() for key, p in module.named_parameters()}
    nn.functional.cross_entropy(module(images), torch.arange(16) % 4).backward()
    optimizer.step()
    moved = {key for key, p in module.named_parameters() if not torch.equal(p, before[key])}
    assert {"w", "v", "image_quantizer.scale"} <= moved


def test_data_may_change_the_graph(images: torch.Tensor) -> None:
    """Inputs of a Concat with unlike ranges lose their common scale, as with insert_qdq; weights stay the Parameters."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,8,8,8] y) <float[4,3,1,1] w = {weight(4, 3, 1, 1)}, float big = {{5000}},
 float[8,8,1,1] u = {weight(8, 8, 1, 1)}> {{
    ["one"] a = Conv(image, w) ["two"] b = Mul(a, big) ["cat"] c = Concat<axis = 1>(a, b) ["last"] y = Conv(c, u) }}"""
    model = proto(text)
    module = onnxqat.prepare_by_platform(model, "onnxruntime-cpu")
    weights = {id(p) for key, p in module.named_parameters() if key in ("w", "u")}
    reference = onnxqat.insert_qdq(model, "onnxruntime-cpu", data={"image": images.numpy()}, equalize=False)
    onnxqat.enable_calibration(module)
    module(images)
    onnxqat.enable_quantization(module)
    _, prepared = next(prepared_modules(module))
    assert prepared.qdq_model.graph.node == reference.model.graph.node
    assert {id(p) for key, p in module.named_parameters() if key in ("w", "u")} == weights
    assert torch.isfinite(module(images)).all()


def test_batch_normalization_may_stay(images: torch.Tensor) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,4,6,6] y) <float[4,3,3,3] w = {weight(4, 3, 3, 3)}, float[4] g = {{1, 2, 0.5, 1}},
 float[4] b = {{0, 1, 0, 1}}, float[4] m = {{0, 0.1, 0, 0.1}}, float[4] s = {{1, 1, 2, 1}}> {{
    ["one"] a = Conv(image, w) ["norm"] n = BatchNormalization(a, g, b, m, s) ["act"] y = Relu(n) }}"""
    module = onnxqat.prepare_by_platform(proto(text), "onnxruntime-cpu", batch_norm="keep")
    onnxqat.enable_calibration(module)
    module.eval()
    module(images)
    onnxqat.enable_quantization(module)
    data = {"image": images.numpy()}
    reference = onnxqat.insert_qdq(proto(text), "onnxruntime-cpu", data=data, batch_norm="keep").model
    assert module.prepared.qdq_model.graph.node == reference.graph.node
    assert "BatchNormalization" in {node.op_type for node in reference.graph.node}


def test_weights_trained_before_calibration_are_the_ones_quantized(
    model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path
) -> None:
    module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
    onnxqat.disable_all(module)
    with torch.no_grad():
        module.get_parameter("w").mul_(3.0)
    onnxqat.enable_calibration(module)
    module(images)
    onnxqat.enable_quantization(module)
    scale = next(q for _, q in quantizers(module) if q.tensor == "w").scale
    largest = module.get_parameter("w").abs().amax((1, 2, 3))
    torch.testing.assert_close(scale.detach(), largest / 127, rtol=1e-6, atol=0)


def test_checkpoints(model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path) -> None:
    module = calibrated(model, BackendType.TSQAT, images)
    with torch.no_grad():
        module.get_parameter("w").add_(0.01)
    wanted = module(images)
    for name in ("m.pth", "m.onnx"):
        files = onnxqat.save_checkpoint(module, tmp_path / name, tmp_path / "m.json")
        other = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
        onnxqat.load_checkpoint(other, *files)
        assert torch.equal(other(images), wanted)
        files = [onnxqat.convert_export(m, tmp_path / f"{i}.onnx") for i, m in enumerate((module, other))]
        first, second = (
            {i.name: onnx.numpy_helper.to_array(i).tobytes() for i in onnx.load(f).graph.initializer} for f in files
        )
        assert first == second
    held = torch.load(tmp_path / "m.pth", weights_only=True)["state_dict"]
    assert set(held) >= {"w", "v", "b", "c"}
    assert not [key for key in held if "scale" in key or key.startswith("module.")]
    clean = onnx.load(tmp_path / "m.onnx")
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in clean.graph.node}
    # A strict state dict works as well, before the first forward.
    other = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(images), wanted)
    torch.save({"state_dict": {"module.w": torch.zeros(1)}}, tmp_path / "bad.pth")
    with pytest.raises(QatError, match="'w' is"):
        onnxqat.load_checkpoint(other, tmp_path / "bad.pth", tmp_path / "m.json")


def test_checkpoints_hold_the_statistics_of_a_kept_normalization(images: torch.Tensor, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(images.shape[1], 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model = onnxqat.export(network, (images,), batch_norm="keep")
    made = [onnxqat.prepare_by_platform(model, "academic", batch_norm="keep") for _ in range(2)]
    onnxqat.enable_calibration(made[0])
    made[0](images)
    onnxqat.enable_quantization(made[0])
    made[0].train()(images)
    files = onnxqat.save_checkpoint(made[0], tmp_path / "m.pth", tmp_path / "m.json")
    onnxqat.load_checkpoint(made[1], *files)
    assert torch.equal(made[1].eval()(images), made[0].eval()(images))


@pytest.mark.parametrize("method", ["AdaRoundFakeQuantize", "DoReFaFakeQuantize"])
def test_a_method_that_rewrites_weights_does_it_once(
    method: str, model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path
) -> None:
    config = {"extra_qconfig_dict": {"w_fakequantize": method}}
    module = calibrated(model, "academic", images, config).eval()
    wanted = module(images)
    file = onnxqat.convert_export(module, tmp_path / "m.onnx")
    assert torch.equal(onnxqat.to_torch(file)(images), wanted)
    files = onnxqat.save_checkpoint(module, tmp_path / "m.pth", tmp_path / "m.json")
    plain = onnxqat.prepare_by_platform(model, "academic")
    onnxqat.load_checkpoint(plain, *files)
    assert torch.equal(plain(images), wanted)
    other = onnxqat.prepare_by_platform(model, "academic", None, config).eval()
    if method == "DoReFaFakeQuantize":
        with pytest.raises(UsageError, match="changed already"):
            onnxqat.load_checkpoint(other, *files)
        other.load_state_dict(module.state_dict())
    else:
        onnxqat.load_checkpoint(other, *files)
    assert torch.equal(other.eval()(images), wanted)


def test_observations_of_processes_are_those_of_one(model: onnx.ModelProto, images: torch.Tensor) -> None:
    parts = []
    for part in images.split(8):
        module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
        onnxqat.enable_calibration(module)
        module(part)
        observing = module.prepared.calibration.observing
        parts.append((observing.observers, observing.sizes))
    gather.merge(observing, parts)
    onnxqat.enable_quantization(module)
    assert torch.equal(module(images), calibrated(model, BackendType.TSQAT, images)(images))


def test_deploy_files(model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path) -> None:
    module = calibrated(model, BackendType.Tensorrt, images)
    files = onnxqat.convert_deploy(
        module, BackendType.Tensorrt, {"image": [2, 3, 8, 8]}, model_name=str(tmp_path / "net")
    )
    assert [f.name for f in files] == ["net.onnx", "net_deploy_model.onnx", "net_clip_ranges.json"]
    assert [d.dim_value for d in onnx.load(files[0]).graph.input[0].type.tensor_type.shape.dim] == [2, 3, 8, 8]
    assert {q["tensor"] for q in json.loads(files[2].read_text())["quantizers"]} >= {"image", "w", "v"}
    with pytest.raises(UsageError, match="prepared for tensorrt, not tsqat"):
        onnxqat.convert_deploy(module, BackendType.TSQAT, model_name=str(tmp_path / "net"))
    with pytest.raises(UsageError, match="QLinear"):
        onnxqat.convert_deploy(module, BackendType.Tensorrt, deploy_to_qlinear=True)
    with pytest.raises(UsageError, match="it needs 17"):
        onnxqat.convert_export(module, tmp_path / "m.onnx", opset_version=13)
    raised = onnx.load(onnxqat.convert_export(module, tmp_path / "m.onnx", opset_version=18, onnx_batch=4))
    assert raised.opset_import[0].version == 18
    assert [v.type.tensor_type.shape.dim[0].dim_value for v in (*raised.graph.input, *raised.graph.output)] == [4, 4]


def test_copies_and_pickles_calibrate_on_their_own(model: onnx.ModelProto, images: torch.Tensor) -> None:
    module = onnxqat.prepare_by_platform(model, BackendType.TSQAT)
    onnxqat.enable_calibration(module)
    module(images)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        onnxqat.enable_calibration(other)
        other(4 * images)
        onnxqat.enable_quantization(other)
        assert torch.isfinite(other(images)).all()
    onnxqat.enable_quantization(module)
    assert torch.equal(module(images), calibrated(model, BackendType.TSQAT, images)(images))


def test_a_quantized_file_keeps_its_quantizers(model: onnx.ModelProto, images: torch.Tensor, tmp_path: Path) -> None:
    file = onnxqat.convert_export(calibrated(model, BackendType.TSQAT, images), tmp_path / "m.onnx")
    module = onnxqat.prepare_by_platform(file, BackendType.TSQAT)
    scales = {q.tensor: q.scale.clone() for _, q in quantizers(module) if not q.derived}
    onnxqat.enable_quantization(module)
    assert torch.isfinite(module(images)).all()
    assert onnx.load(onnxqat.convert_export(module, tmp_path / "n.onnx")).graph == onnx.load(file).graph
    onnxqat.enable_calibration_woquantization(module, "act_fake_quant")
    module(4 * images)
    onnxqat.enable_quantization(module)
    image = next(q for _, q in quantizers(module) if q.tensor == "image")
    torch.testing.assert_close(image.scale.detach(), 4 * scales["image"].detach(), rtol=1e-5, atol=0)


def test_backends() -> None:
    with pytest.raises(BackendError, match="logarithmic"):
        onnxqat.prepare_by_platform("none.onnx", BackendType.NNIE)
    with pytest.raises(BackendError, match="TSQUAT") as caught:
        onnxqat.prepare_by_platform("none.onnx", "TSQUAT")
    assert caught.value.code == "backend-unknown"
    assert set(TABLES) == set(BackendType)
