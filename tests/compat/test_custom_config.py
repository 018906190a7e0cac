"""MQBench's prepare_custom_config_dict: mapped, or left with a remark, or refused with a close match."""

import logging
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import onnxqat
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.compat.backend_type import BackendType
from onnxqat.errors import BackendError, UsageError
from onnxqat.training.methods import dsq, fixed, lsq, pact
from tests.backends.planning import proto, weight

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,4] logits) <float[4,3,3,3] w = {weight(4, 3, 3, 3)},
 float[4,4,1,1] u = {weight(4, 4, 1, 1)}, float[4,4] v = {weight(4, 4)}, float[4] c = {{1, 2, 3, 4}}> {{
    ["/layer1/layer1.0/conv1/Conv"] t = Conv(image, w) ["/layer1/layer1.0/act/Relu"] a = Relu(t)
    ["/layer2/Conv"] s = Conv(a, u) ["/exp/Exp"] e = Exp(s) ["/pool/GlobalAveragePool"] p = GlobalAveragePool(e)
    ["/Flatten"] f = Flatten(p) ["/head/Gemm"] logits = Gemm(f, v, c) }}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    model = proto(TEXT)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "layer1.0.conv1.weight"  # no name for the parser
    return model


def prepared(model: onnx.ModelProto, config: Any, backend: Any = BackendType.TSQAT) -> Any:
    return onnxqat.prepare_by_platform(model, backend, prepare_custom_config_dict=config)


def tensors(module: nn.Module) -> set[str]:
    return {q.tensor for _, q in quantizers(module)}


def test_methods_and_observers(model: onnx.ModelProto) -> None:
    qconfig = {
        "w_observer": "MSEObserver",
        "a_observer": "EMAMinMaxObserver",
        "w_fakequantize": "FixedFakeQuantize",
        "a_fakequantize": "PACTFakeQuantize",
        "w_fakeq_params": {"a": 1},
    }
    module = prepared(model, {"extra_qconfig_dict": qconfig})
    kinds = {(q.role, type(q)) for _, q in quantizers(module) if q.role != "bias"}
    assert kinds == {("weight", fixed.Method), ("activation", pact.Method)}
    types = module.prepared.calibration.table.types
    assert (types["wt"].observer, types["act"].observer) == ("mse", "ema_minmax")
    assert any("w_fakeq_params" in r.message for r in module.prepared.remarks)
    module = prepared(model, {"extra_qconfig_dict": {"w_fakequantize": "dsq"}})
    assert {type(q) for _, q in quantizers(module) if q.role == "weight"} == {dsq.Method}
    assert {type(q) for _, q in quantizers(module) if q.role == "activation"} == {lsq.Method}


def test_schemes(model: onnx.ModelProto) -> None:
    scheme = {"bit": 4, "symmetry": True, "per_channel": False, "pot_scale": True, "symmetric_range": True}
    other = {"bit": 5, "symmetry": False, "per_channel": False, "pot_scale": False}
    module = prepared(model, {"extra_qconfig_dict": {"w_qscheme": scheme, "a_qscheme": other}})
    found = {q.tensor: q for _, q in quantizers(module)}
    weight, image = found["layer1.0.conv1.weight"], found["image"]
    assert (weight.quant_min, weight.quant_max, weight.axis) == (-7, 7, None)
    assert float(torch.log2(weight.scale.detach())) % 1 == 0
    assert (image.quant_min, image.quant_max, image.qtype.storage) == (0, 31, "uint8")
    wide = prepared(model, {"extra_qconfig_dict": {"a_qscheme": {"bit": 16}}}, "onnxruntime-cpu")
    assert {q.qtype.storage for _, q in quantizers(wide) if q.role == "activation"} == {"uint16"}
    pot = prepared(model, {"extra_qconfig_dict": {"w_observer": "MinMaxFloorObserver"}})
    assert {q.scale_bits for _, q in quantizers(pot) if q.role == "weight"} == {1}
    with pytest.raises(BackendError, match="opset"):
        prepared(model, {"extra_qconfig_dict": {"a_qscheme": {"bit": 16}}})  # TSQAT reads opset 13 to 18


def test_left_out_and_added(model: onnx.ModelProto) -> None:
    def asked(**entries: Any) -> set[str]:
        return tensors(prepared(model, {"extra_quantizer_dict": entries}))

    everything = asked()
    assert {"image", "layer1.0.conv1.weight", "u", "v"} <= everything
    for entry in (
        {"exclude_module_name": ["layer1"]},
        {"exclude_module_name": ["layer1.0.conv1"]},
        {"exclude_node_name": ["layer1_0_conv1"]},
        {"exclude_node_name": ["/layer1/layer1.0/conv1/Conv"]},
        {"exclude_node_name": ["t"]},
    ):
        assert everything - asked(**entry) >= {"layer1.0.conv1.weight"}, entry
        assert "u" in asked(**entry)
    assert not {"u", "layer1.0.conv1.weight"} & asked(exclude_function_type=[nn.functional.conv2d])
    assert "s" not in asked(exclude_module_name=["layer2", "exp"])
    only = asked(exclude_function_type=["conv2d"], additional_node_name=["/layer2/Conv"])
    assert "u" in only
    assert "layer1.0.conv1.weight" not in only
    # Exp has no row in TensorRT's table, which quantizes inputs alone.
    plain = tensors(prepared(model, None, BackendType.Tensorrt))
    for added in ({"additional_function_type": [torch.exp]}, {"additional_node_name": ["exp"]}):
        module = prepared(model, {"extra_quantizer_dict": added}, BackendType.Tensorrt)
        assert tensors(module) - plain == {"s"}
        assert any("no row for Exp" in r.message for r in module.prepared.remarks)


def test_what_onnx_does_not_need_is_said(model: onnx.ModelProto, caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "preserve_attr": {"": ["loss"]},
        "concrete_args": {"x": None},
        "leaf_module": [nn.Conv2d],
        "extra_fuse_dict": {"additional_fusion_pattern": {}},
    }
    with caplog.at_level(logging.WARNING, "onnxqat"):
        # MQBench has the dict where onnxqat has the example inputs, and the tracer last.
        onnxqat.prepare_by_platform(model, "TSQAT", config, custom_tracer=object())
    for key in ("preserve_attr", "concrete_args", "leaf_module", "additional_fusion_pattern", "custom_tracer"):
        assert sum(f"{key} is not needed: " in record.message for record in caplog.records) == 1, key


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"extra_qconfig_dic": {}}, "extra_qconfig_dict"),
        ({"extra_qconfig_dict": {"w_observr": "x"}}, "w_observer"),
        ({"extra_qconfig_dict": {"w_observer": "MinMaxObserve"}}, "MinMaxObserver"),
        ({"extra_qconfig_dict": {"w_fakequantize": "LearnableFakeQuantise"}}, "LearnableFakeQuantize"),
        ({"extra_qconfig_dict": {"a_fakequantize": "NNIEFakeQuantize"}}, "logarithmic"),
        ({"extra_qconfig_dict": {"w_qscheme": {"bits": 4}}}, "bit"),
        ({"extra_qconfig_dict": {"a_qscheme": {"per_channel": True}}}, "one scale a tensor"),
        ({"extra_qconfig_dict": {"w_qscheme": {"bit": 9}}}, "9 bits"),
        ({"extra_qconfig_dict": {"w_qscheme": {"bit": "four"}}}, "four bits"),
        ({"extra_qconfig_dict": ["w_qscheme"]}, "extra_qconfig_dict is a list"),
        (["extra_qconfig_dict"], "prepare_custom_config_dict is a list"),
        ({"extra_quantizer_dict": {"exclude_module": []}}, "exclude_module_name"),
        ({"extra_quantizer_dict": {"exclude_module_name": ["layer3"]}}, "layer3"),
        ({"extra_quantizer_dict": {"exclude_function_type": [torch.sin]}}, "sin"),
        ({"extra_quantizer_dict": {"exclude_function_type": [nn.GELU]}}, "GELU"),
        ({"extra_fuse_dict": {"fusion": 1}}, "additional_fusion_pattern"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_wrong_is_refused(model: onnx.ModelProto, config: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        prepared(model, config)
    assert text in f"{caught.value.message} {caught.value.hint}"
