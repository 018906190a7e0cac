"""QDQ files of other people's quantizers, as their tools write them today: does the bridge train and write them back?

    python tools/bench/qdq_producers.py [NAME ...]

Each producer quantizes ResNet-8 (or a net of its own) with its own tool; one that is not installed is named and left
out. For every file: quantizers that the bridge recognised, Q/DQ nodes that it did not, parameters without a gradient,
largest difference to onnxruntime without optimization, and whether write-back without training gives the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from _shared import MODELS

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers

SOURCE = MODELS / "resnet8_cifar10.onnx"


def images(count: int = 16) -> list[np.ndarray]:
    """Random inputs of ResNet-8: the form of the file does not depend on them."""
    shape = onnxruntime.InferenceSession(str(SOURCE)).get_inputs()[0].shape[1:]
    random = np.random.default_rng(0)
    return [random.standard_normal((1, *shape)).astype(np.float32) for _ in range(count)]


class _Reader:
    """onnxruntime's interface of calibration data, which Quark shares."""

    def __init__(self) -> None:
        self._name = onnxruntime.InferenceSession(str(SOURCE)).get_inputs()[0].name
        self._feeds = iter([{self._name: x} for x in images()])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed."""
        return next(self._feeds, None)

    def reset_iter(self) -> None:
        """Start over."""
        self._feeds = iter([{self._name: x} for x in images()])


def onnxruntime_static(folder: Path) -> Iterator[tuple[str, Path]]:
    """quantize_static in all its types."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    reader = type("Reader", (_Reader, CalibrationDataReader), {})
    forms = [
        ("u8s8", QuantType.QUInt8, QuantType.QInt8, False),
        ("u8u8", QuantType.QUInt8, QuantType.QUInt8, False),
        ("s8s8 per channel", QuantType.QInt8, QuantType.QInt8, True),
        ("u16s8 per channel", QuantType.QUInt16, QuantType.QInt8, True),
        ("s16s16", QuantType.QInt16, QuantType.QInt16, False),
        ("s8s4 per channel", QuantType.QInt8, QuantType.QInt4, True),
        ("u8u4", QuantType.QUInt8, QuantType.QUInt4, False),
    ]
    for name, activation, weight, per_channel in forms:
        path = folder / f"ort_{name.replace(' ', '_')}.onnx"
        quantize_static(
            str(SOURCE),
            str(path),
            reader(),
            quant_format=QuantFormat.QDQ,
            activation_type=activation,
            weight_type=weight,
            per_channel=per_channel,
        )
        yield name, path


def onnxruntime_blocked(folder: Path) -> Iterator[tuple[str, Path]]:
    """MatMul weights of 4 bits in blocks, as DequantizeLinear."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
    from onnxruntime.quantization.quant_utils import QuantFormat

    for symmetric in (True, False):
        config = DefaultWeightOnlyQuantConfig(
            block_size=32, is_symmetric=symmetric, quant_format=QuantFormat.QDQ, op_types_to_quantize=("MatMul",)
        )
        quantizer = MatMulNBitsQuantizer(_products(), algo_config=config)
        quantizer.process()
        path = folder / f"ort_blocked_{symmetric}.onnx"
        quantizer.model.save_model_to_file(str(path))
        yield f"4-bit blocks, {'' if symmetric else 'a'}symmetric", path


def _products() -> onnx.ModelProto:
    """Two matrix products with a Relu between them."""
    random = np.random.default_rng(0)
    weights = [(random.standard_normal(s) / 8).astype(np.float32) for s in ((64, 96), (96, 64))]
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="relu"),
            helper.make_node("MatMul", ["b", "w1"], ["y"], name="second"),
        ],
        "products",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 64])],
        [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def modelopt(folder: Path) -> Iterator[tuple[str, Path]]:
    """NVIDIA ModelOpt's ONNX quantizer."""
    from modelopt.onnx import quantization

    products = folder / "products.onnx"
    onnx.save(_products(), products)
    name = onnxruntime.InferenceSession(str(SOURCE)).get_inputs()[0].name
    random = np.random.default_rng(0)
    for mode, source, data in (
        ("int8", SOURCE, {name: np.concatenate(images())}),
        ("fp8", SOURCE, {name: np.concatenate(images())}),
        ("int4", products, {"x": random.standard_normal((16, 64)).astype(np.float32)}),
    ):
        path = folder / f"modelopt_{mode}.onnx"
        quantization.quantize(
            str(source),
            quantize_mode=mode,
            calibration_data=data,
            calibration_method="rtn_dq" if mode == "int4" else "max",
            calibration_eps=["cpu"],
            output_path=str(path),
            high_precision_dtype="fp32",
        )
        yield mode, path


def nncf(folder: Path) -> Iterator[tuple[str, Path]]:
    """NNCF on an ONNX model."""
    import nncf as tool

    session = onnxruntime.InferenceSession(str(SOURCE))
    data = tool.Dataset(images(), lambda x: {session.get_inputs()[0].name: x})
    for preset in (tool.QuantizationPreset.PERFORMANCE, tool.QuantizationPreset.MIXED):
        made = tool.quantize(onnx.load(SOURCE), data, preset=preset, subset_size=16)
        path = folder / f"nncf_{preset.value}.onnx"
        onnx.save(made, path)
        yield preset.value, path


def quark(folder: Path) -> Iterator[tuple[str, Path]]:
    """AMD Quark on an ONNX model."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config.config import Config
    from quark.onnx.quantization.config.custom_config import get_default_config

    for name in ("XINT8", "A8W8", "A16W8"):
        path = folder / f"quark_{name}.onnx"
        config = Config(global_quant_config=get_default_config(name))
        ModelQuantizer(config).quantize_model(str(SOURCE), str(path), _Reader())
        yield name, path


def aimet(folder: Path) -> Iterator[tuple[str, Path]]:
    """AIMET's simulation of an ONNX model, exported as QDQ."""
    import aimet_onnx
    from aimet_onnx.quantsim import QuantizationSimModel

    name = onnxruntime.InferenceSession(str(SOURCE)).get_inputs()[0].name
    for form in ("int8", "int4"):
        weights = getattr(aimet_onnx, form)
        simulated = QuantizationSimModel(onnx.load(SOURCE), param_type=weights, activation_type=aimet_onnx.int8)
        simulated.compute_encodings([{name: x} for x in images()])
        path = folder / f"aimet_{form}.onnx"
        onnx.save(simulated.to_onnx_qdq(), path)
        yield f"{form} weights", path


def ppq(folder: Path) -> Iterator[tuple[str, Path]]:
    """PPQ (esp-ppq, which is kept up), exported for onnxruntime."""
    from esp_ppq import QuantizationSettingFactory, TargetPlatform
    from esp_ppq.api import export_ppq_graph, quantize_onnx_model

    batches = [torch.from_numpy(x) for x in images()]
    for name in ("TRT_INT8", "OPENVINO_INT8", "PPL_CUDA_INT8"):
        made = quantize_onnx_model(
            onnx_import_file=str(SOURCE),
            calib_dataloader=batches,
            calib_steps=8,
            input_shape=list(batches[0].shape),
            platform=getattr(TargetPlatform, name),
            setting=QuantizationSettingFactory.default_setting(),
            device="cpu",
            verbose=0,
        )
        path = folder / f"ppq_{name}.onnx"
        export_ppq_graph(made, platform=TargetPlatform.ONNXRUNTIME, graph_save_to=str(path))
        yield name, path


def brevitas(folder: Path) -> Iterator[tuple[str, Path]]:
    """brevitas' QCDQ export of layers of 8, 4 and 3 bits."""
    from brevitas import nn as layers
    from brevitas.export import export_onnx_qcdq

    for bits in (8, 4, 3):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            layers.QuantIdentity(bit_width=8),
            layers.QuantConv2d(3, 8, 3, padding=1, weight_bit_width=bits),
            layers.QuantReLU(bit_width=bits),
            layers.QuantConv2d(8, 4, 3, weight_bit_width=bits, weight_scaling_per_output_channel=True),
        ).train()
        net(torch.randn(4, 3, 8, 8))
        path = folder / f"brevitas_{bits}.onnx"
        export_onnx_qcdq(net.eval(), torch.randn(1, 3, 8, 8), export_path=str(path), opset_version=17, dynamo=False)
        yield f"{bits} bits", path


class _Decomposed(torch.nn.Module):
    """A layer with the operators that torch's quantization in graph mode leaves in an exported program."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        x = ops.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        w = ops.quantize_per_tensor(self.layer.weight, 0.003, 0, -127, 127, torch.int8)
        w = ops.dequantize_per_tensor(w, 0.003, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(x, w, self.layer.bias)


def torch_exporter(folder: Path) -> Iterator[tuple[str, Path]]:
    """torch.onnx's exporter on what graph mode quantization leaves."""
    import torch.ao.quantization.fx._decomposed

    path = folder / "torch.onnx"
    torch.onnx.export(_Decomposed().eval(), (torch.randn(2, 8),), str(path), dynamo=True, external_data=False)
    yield "decomposed", path


PRODUCERS: dict[str, Callable[[Path], Iterator[tuple[str, Path]]]] = {
    "onnxruntime": onnxruntime_static,
    "onnxruntime-blocked": onnxruntime_blocked,
    "modelopt": modelopt,
    "nncf": nncf,
    "quark": quark,
    "aimet": aimet,
    "ppq": ppq,
    "brevitas": brevitas,
    "torch": torch_exporter,
}


def examine(path: Path) -> str:
    """What the bridge makes of one file."""
    module = to_torch(path)
    model = ir.load(path)
    nodes = [n for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    left = sum(
        n.op == "call_function" and "lowering.quantization" in str(n.target.__module__) for n in module.graph.nodes
    )
    session = _session(path)
    random = np.random.default_rng(1)
    feeds = {
        i.name: random.standard_normal([d if isinstance(d, int) else 2 for d in i.shape]).astype(
            np.float16 if "16" in i.type else np.float32
        )
        for i in session.get_inputs()
    }
    result = module(*[torch.from_numpy(feeds[n]) for n in module.input_names])
    (first, *_) = result if isinstance(result, tuple) else (result,)
    wanted = session.run(None, feeds)[0]
    difference = np.abs(values.array(first, ir.DataType[module.output_types[0]]).astype(np.float64) - wanted).max()
    first.float().square().sum().backward()
    without = [n for n, p in module.named_parameters() if p.grad is None]
    out = path.with_suffix(".out.onnx")
    write_back(module, path, out)
    same = out.read_bytes() == path.read_bytes()
    return (
        f"{len(list(quantizers(module))):4d} quantizers of {len(nodes):4d} nodes, {left} left, "
        f"{len(without)} without gradient, difference {difference:.2g} of {np.abs(wanted).max():.2g}, "
        f"{'same bytes' if same else 'OTHER BYTES'}"
    )


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _files(name: str, folder: Path) -> Iterator[tuple[str, Path | Exception]]:
    made: Any = PRODUCERS[name](folder)
    while True:
        try:
            with _quiet():
                form, path = next(made)
        except StopIteration:
            return
        except Exception as error:
            yield "", error
            return
        yield form, path


def main() -> None:
    """Run the producers that are named, or all."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # some tools leave files in the working folder
        for name in sys.argv[1:] or PRODUCERS:
            for form, found in _files(name, Path(folder)):
                if isinstance(found, Exception):
                    print(f"{name:20} not made: {type(found).__name__}: {str(found)[:150]}", flush=True)
                    continue
                try:
                    said = examine(found)
                except Exception as error:  # the answer of this bench
                    said = f"{type(error).__name__}: {str(error)[:200]}"
                print(f"{name:20} {form:24} {said}", flush=True)


if __name__ == "__main__":
    main()
