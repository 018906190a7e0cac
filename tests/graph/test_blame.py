"""Values that are not finite are blamed on the tensor that they come from, not on masks of -inf."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxqat.calibration.runner import calibrate
from onnxqat.errors import DataError, QatError
from onnxqat.graph import io
from onnxqat.graph.blame import Blame
from onnxqat.insertion.insert import insert_qdq
from onnxqat.runtime.non_finite_origin import AT_ONCE, find_origin
from onnxqat.training.finetune import finetune
from onnxqat.types import QType, TensorSpec

MASKED = """
<ir_version: 8, opset_import: ["" : 17]>
attend (float[N, 4, 4] x) => (float[N, 4, 4] y)
<float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float ninf = {-1}, float one = {1}, bool[4, 4] keep>
{
    h = MatMul(x, w)
    grown = Exp(h)
    shifted = Add(grown, one)
    scores = Log(shifted)
    zero = Sub(scores, scores)
    hidden = Where(keep, zero, ninf)
    y = Softmax(hidden)
}
"""


def attention() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MASKED.replace(", bool[4, 4] keep", ""))
    for name, value in (("ninf", np.float32(-np.inf)), ("keep", np.tril(np.ones((4, 4), bool)))):
        kept = [t for t in model.graph.initializer if t.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(np.asarray(value), name)])
    onnx.checker.check_model(model)
    return model


def test_a_mask_is_blamed_only_where_nothing_else_is() -> None:
    blame = Blame()
    blame.look("mask", broken=False, minus_infinity=True, masked=True)
    assert (blame.name, blame.settled) == ("mask", False)
    blame.look("logarithm", broken=False, minus_infinity=True, masked=False)
    blame.look("later", broken=True, minus_infinity=False, masked=True)
    assert (blame.name, blame.settled) == ("logarithm", True)


def test_origin_in_front_of_a_mask() -> None:
    model = io.load(attention())
    fine, large = np.ones((1, 4, 4), np.float32), np.full((1, 4, 4), 200, np.float32)
    assert find_origin(model, {"x": large}) == "grown"
    assert find_origin(model, {"x": fine}) == "hidden"  # the mask, as nothing else is infinite


def test_origin_past_the_first_session() -> None:
    lines = "\n".join(f"    t{i + 1} = Neg(t{i})" for i in range(AT_ONCE + 3 + AT_ONCE % 2))
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x) => (float[2] y)
    {{
        t0 = Relu(x)
    {lines}
        root = Sqrt(t{AT_ONCE + 3 + AT_ONCE % 2})
        y = Relu(root)
    }}
    """
    for expected, turn in (("root", "Neg"), (None, "Abs")):
        graph = io.load(onnx.parser.parse_model(text.replace("Neg", turn)))
        assert find_origin(graph, {"x": np.float32([1, 2])}) == expected


def test_calibration_names_the_origin() -> None:
    data = [np.full((1, 4, 4), 200, np.float32)]
    with pytest.raises(DataError, match=r"tensor 'zero' has NaN or infinity.*comes from tensor 'grown'"):
        calibrate(attention(), {"zero": TensorSpec(QType.of(8, signed=True))}, data)


def test_training_names_the_origin_and_not_the_mask() -> None:
    model, random = attention(), np.random.default_rng(0)
    data = random.standard_normal((4, 4, 4)).astype(np.float32)
    quantized = insert_qdq(model, data=data).model

    class Broken:
        """Cross entropy with a gradient that is not finite."""

        def __call__(self, outputs: Any, labels: Any, teacher: Any) -> torch.Tensor:
            return torch.sqrt(outputs[0] - outputs[0].detach()).sum()

    with pytest.raises(QatError, match=r"the gradient of .* is the first"):
        finetune(quantized, data, loss=Broken(), max_steps=2, device="cpu")
