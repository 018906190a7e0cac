"""Sums of branches on 2-bit grids are compared with the teacher's where the user names no inner tensors."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import onnxqat
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.graph import io
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training.config import DistillationConfig, ScoreConfig
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution.execution import Execution
from onnxqat.training.objective import joined_branches
from onnxqat.training.objective.features import Features
from onnxqat.training.objective.teachers import TeacherSpec
from tests.training.nets import images, later_is_better

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2, 6, 6] image) => (float[N, 3] logits) {
    stem = Conv<pads = [1, 1, 1, 1]>(image, w0)
    begin = Relu(stem)
    branch = Conv<pads = [1, 1, 1, 1]>(begin, w1)
    moved = Add(branch, bias)
    joined = Add(moved, begin)
    end = Relu(joined)
    last = Conv<pads = [1, 1, 1, 1]>(end, w2)
    whole = Add(last, end)
    pooled = GlobalAveragePool(whole)
    flat = Flatten(pooled)
    logits = Gemm<transB = 1>(flat, head)
}"""
ENDS = ["end", "whole"]
SHAPES = {"w0": (4, 2, 3, 3), "w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3), "bias": (1, 4, 1, 1), "head": (3, 4)}


def network() -> onnx.ModelProto:
    """Two residual blocks, in float; the sum of the second goes to a mean and no layer."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for name, shape in SHAPES.items():
        value = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def quantized(bits: int) -> onnx.ModelProto:
    """The network with inputs and weights of its layers in `bits`."""
    found = onnxqat.insert_qdq(
        network(),
        "academic",
        data={"image": images(16)[0]},
        overrides=Overrides(weight_bits=bits, activation_bits=bits),
    )
    assert isinstance(found.model, onnx.ModelProto)
    return found.model


@pytest.mark.parametrize(("bits", "expected"), [(2, ENDS), (4, [])])
def test_sums_of_data_are_found_where_a_grid_of_one_is_narrow(bits: int, expected: list[str]) -> None:
    assert joined_branches.sums(io.load(quantized(bits))) == expected


def tuned(model: onnx.ModelProto, features: Any, **options: Any) -> dict[str, torch.Tensor]:
    """The parameters after a few steps."""
    result = onnxqat.finetune(
        model,
        {"image": images()[0]},
        teacher=DistillationConfig(network(), features),
        max_steps=4,
        batch_size=8,
        device="cpu",
        score=ScoreConfig(evaluate=later_is_better()),
        **options,
    )
    return {key: value.detach() for key, value in result.module.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Check whether two runs ended on the same bits."""
    return all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_without_labels_compares_them() -> None:
    model = quantized(2)
    default = tuned(model, None)
    assert same(default, tuned(model, Features(ENDS)))
    alone = tuned(model, Features(ENDS, weight=0.0))
    assert not same(default, alone)
    labels = images()[1]  # say what is wanted
    with_labels = (tuned(model, f, labels=labels) for f in (None, Features(ENDS, weight=0.0)))
    assert same(*with_labels)


def test_a_tensor_that_means_something_else_in_the_teacher_is_left_out() -> None:
    model, batch = quantized(2), Batch({"image": torch.from_numpy(images(8)[0])})
    scaled = network()
    for value in scaled.graph.initializer:
        if value.name in ("w0", "bias"):  # as a pass does that moves a factor from one layer into another
            value.CopyFrom(numpy_helper.from_array(4 * numpy_helper.to_array(value), value.name))

    def found(teacher: onnx.ModelProto) -> Features | None:
        teachers = [TeacherSpec(to_torch(teacher).eval())]
        return joined_branches.features(ENDS, to_torch(model), teachers, batch, Execution())

    assert found(network()) == Features(ENDS)
    assert found(scaled) is None
