"""Pairs that break ONNX's rules in the user's file are the file's fault, whichever command reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.errors import ModelError
from onnxqat.graph import io, quantizer_checks
from tests.linting.qdq_files import changed, model

F = np.float32
DATA = [{"x": x} for x in np.random.default_rng(0).standard_normal((4, 1, 2, 4, 4)).astype(F)]
BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "double scale": (lambda: changed(ws=np.full(2, 0.01)), "the scale 'ws' is DOUBLE, which QuantizeLinear lacks"),
    "no elements": (lambda: changed(rs=np.zeros(0, F), rz=np.zeros(0, np.uint8)), "the scale 'rs' has no elements"),
    "int8 scale": (lambda: changed(bs=np.ones(2, np.int8)), "the scale 'bs' is INT8, which DequantizeLinear lacks"),
    "float zero point": (lambda: changed(z=np.zeros((), np.float16)), "the zero point 'z' is FLOAT16"),
    "two types": (lambda: changed(bz=np.zeros(2, np.int8)), "the zero point 'bz' is INT8, the codes are INT32"),
    "two lengths": (lambda: changed(wz=np.zeros(3, np.int8)), r"the scale has shape \[2\], the zero point \[3\]"),
    "axis": (lambda: changed(("wq = QuantizeLinear<axis=0>", "wq = QuantizeLinear<axis=4>")), "axis 4 lies outside"),
    "int32 zero point": (lambda: changed(bz=np.ones(2, np.int32)), "its int32 zero point is not 0"),
}


def commands(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Everything that reads a quantized model, as a function of the model."""
    return {
        "to_torch": onnxqat.to_torch,
        "insert": lambda m: onnxqat.insert_qdq(m, "onnxruntime-cpu", data=DATA, keep=True),
        "validate": lambda m: onnxqat.validate(model("y = Relu(x)"), m, DATA),
        "handoff": lambda m: onnxqat.handoff(m, "onnxruntime-cpu", folder / "bundle"),
    }


@pytest.mark.parametrize("name", commands(Path()))
@pytest.mark.parametrize(("make", "message"), BROKEN.values(), ids=BROKEN)
def test_the_file_is_at_fault_everywhere(
    make: Callable[[], onnx.ModelProto], message: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        commands(tmp_path)[name](make())
    assert caught.value.code == "model-invalid"


def test_negative_scales_of_blocks_are_in_use() -> None:
    blocked = model(
        "wd = DequantizeLinear<axis=0, block_size=2>(c, cs) y = MatMul(x, wd)",
        {"c": np.ones((4, 2), np.int8), "cs": np.full((2, 2), -0.5, F)},
        inputs="float[1,4] x",
        outputs="float[1,2] y",
    )
    loaded = io.load(blocked)
    quantizer_checks.check(loaded)
    assert all(quantizer_checks.problem(node) is None for node in loaded.graph)


def test_stale_sizes_of_computed_tensors_count_for_nothing() -> None:
    stale = model(
        "r = Relu(x) rq = QuantizeLinear<axis=1>(r, ws, wz) y = DequantizeLinear<axis=1>(rq, ws, wz)",
    )
    stale.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, [1, 9, 4, 4]))
    quantizer_checks.check(io.load(stale))
