"""Real models and structure probes, bridge against onnxruntime."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import parity

MODELS = [
    "autoencoder_ad",
    "basic_pitch",
    "dscnn_kws",
    "dscnn_kws_bn",
    "efficientnet_lite0_imagenet",
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_resnet50",
    "light_shufflenet",
    "light_squeezenet",
    "light_vgg19",
    "light_zfnet512",
    "mobilenetv1_025_vww",
    "mobilenetv2_imagenet_bn",
    "mtcnn_onet",
    "mtcnn_pnet",
    "mtcnn_rnet",
    "nanodet_coco_320",
    "ppocr_v2_cls",
    "resnet20_cifar10",
    "resnet20_cifar10_bn",
    "resnet20_cifar10_dynamo",
    "resnet20_cifar10_slim",
    "resnet56_cifar10_bn",
    "resnet8_cifar10",
    "resnet8_cifar10_bn",
    "silero_vad",
    "swift_f0",
    "ultraface_rfb_320",
    "yolox_nano_coco_416",
]
SPECIAL: dict[str, dict[str, np.ndarray]] = {
    "silero_vad": {
        "input": np.random.default_rng(0).standard_normal((1, 512)).astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000, np.int64),
    },
    "swift_f0": {
        "audio": np.random.default_rng(0).standard_normal((1, 8000)).astype(np.float32),
        "fmin": np.array(50, np.float32),
        "fmax": np.array(1000, np.float32),
    },
}
# onnxruntime refuses these two: node names that are not unique, an output of TopK that is named "".
REFUSED_BY_RUNTIME = {"dup_node_names", "topk_values_only"}


@pytest.mark.parametrize("name", MODELS)
def test_model_equals_onnxruntime(name: str, shared: Path) -> None:
    path = str(shared / "data" / "models" / f"{name}.onnx")
    module, runner = to_torch(path), parity.session(path)
    for batch in (1, 3):
        given = SPECIAL.get(name) or parity.feeds(runner, {"batch": batch, "any": 48}, seed=batch)
        parity.assert_close(parity.run_module(module, given), runner.run(None, given), name)
        fixed = isinstance(runner.get_inputs()[0].shape[0], int) and runner.get_inputs()[0].shape[0] > 0
        if name in SPECIAL or fixed:
            break


def test_every_model_is_listed(shared: Path) -> None:
    assert {p.stem for p in (shared / "data" / "models").glob("*.onnx")} <= set(MODELS)


def test_structure_probes_equal_onnxruntime(shared: Path) -> None:
    found = {}
    for path in sorted((shared / "suites" / "probes").glob("*.onnx")):
        if path.stem in REFUSED_BY_RUNTIME:
            continue
        try:
            runner = parity.session(str(path))
            # Some probes state no output shapes, which onnxruntime accepts; read them without the checker.
            module = to_torch(ir.load(path))
            given = parity.feeds(runner, {"batch": 3, "any": 3})
            parity.assert_close(parity.run_module(module, given), runner.run(None, given), path.stem)
        except Exception as error:
            found[path.stem] = f"{type(error).__name__}: {error}"[:200]
    assert found == {}
