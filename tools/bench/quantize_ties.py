"""QuantizeLinear alone: codes of numpy, torch (CPU, and CUDA where there is one) against onnxruntime.

    python tools/bench/quantize_ties.py [--count 10000000]

Half of the values lie on a rounding tie of their scale or one float beside it; the rest are Gaussian, with
infinities and huge values among them. Per tensor and per channel, int8, uint8 and narrow grids.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxqat import numerics
from onnxqat.types import QParams, QType

CHANNELS = 16


def values(count: int, qparams: QParams, seed: int) -> np.ndarray:
    """float32 (count / 16, 16), channels last."""
    rng = np.random.default_rng(seed)
    shape = (count // CHANNELS, CHANNELS)
    scale = np.broadcast_to(qparams.scale, (CHANNELS,)).astype(np.float32)
    ties = ((rng.integers(-400, 400, shape) + np.float32(0.5)) * scale).astype(np.float32)
    nudge = rng.integers(0, 3, shape)
    ties = np.where(nudge == 1, np.nextafter(ties, np.float32(np.inf)), ties)
    ties = np.where(nudge == 2, np.nextafter(ties, np.float32(-np.inf)), ties)
    other = (rng.standard_normal(shape) * 100).astype(np.float32) * scale
    other.flat[:6] = [np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0]
    return np.asarray(np.where(rng.random(shape) < 0.5, ties, other), np.float32)


def onnxruntime_codes(x: np.ndarray, qparams: QParams) -> np.ndarray:
    """QuantizeLinear, and Clip on a narrow grid, in onnxruntime."""
    import onnxruntime

    dtype = getattr(TensorProto, qparams.qtype.storage.upper())
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    constants = {"scale": qparams.scale, "zero": qparams.zero_point.astype(kind)}
    axis = {} if qparams.axis is None else {"axis": qparams.axis}
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **axis)]
    if qparams.qtype.needs_clip:
        constants |= {
            "low": np.asarray(qparams.qtype.quant_min, kind),
            "high": np.asarray(qparams.qtype.quant_max, kind),
        }
        nodes.append(helper.make_node("Clip", ["q", "low", "high"], ["c"]))
    output = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(output, dtype, x.shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), options)
    return np.asarray(session.run(None, {"x": x})[0]).astype(np.int64)


def torch_codes(x: np.ndarray, qparams: QParams, device: str) -> np.ndarray:
    """Codes behind the bridge's quantizer."""
    import torch

    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

    module = FakeQuantize(qparams, tensor="x", role="activation").to(device)
    with torch.no_grad():
        result = module(torch.from_numpy(x).to(device)).cpu().numpy()
    scale = numerics.along_axis(qparams.scale, qparams.axis, x.ndim)
    zero_point = numerics.along_axis(qparams.zero_point, qparams.axis, x.ndim)
    return np.asarray(np.rint(result / scale) + zero_point).astype(np.int64)


def main() -> None:
    """Command line."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000)
    count = parser.parse_args().count
    rng = np.random.default_rng(0)
    channel = np.asarray(np.exp(rng.uniform(-8, 2, CHANNELS)), np.float32)
    grids = {
        "int8 per tensor": QParams(np.float32(0.0371), np.int64(0), QType.of(8, signed=True)),
        "uint8 asymmetric": QParams(np.float32(0.0173), np.int64(113), QType.of(8, signed=False)),
        "int8 per channel": QParams(channel, np.zeros(CHANNELS, np.int64), QType.of(8, signed=True), 1),
        "4 bit per channel": QParams(channel, np.zeros(CHANNELS, np.int64), QType.of(4, signed=True), 1),
    }
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for seed, (name, qparams) in enumerate(grids.items()):
        x = values(count // len(grids), qparams, seed)
        expected = onnxruntime_codes(x, qparams)
        row = {"grid": name, "values": int(x.size), "numpy": int((numerics.quantize(x, qparams) != expected).sum())}
        row |= {f"torch {d}": int((torch_codes(x, qparams, d) != expected).sum()) for d in devices}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
