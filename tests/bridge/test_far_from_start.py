"""write_back without a score says where training has ruined a model."""

import copy
import pickle
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onnxqat
from onnxqat.bridge.export import far_from_start, seen_samples
from onnxqat.bridge.export.far_from_start import TrainedFarAwayWarning

X = np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)


def start(path: Path, classes: bool) -> Path:
    """A calibrated linear layer of four classes, or of four values in a row."""
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"])]
    nodes += [] if classes else [helper.make_node("Reshape", ["t", "s"], ["y"])]
    given, made = (
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("x", ["n", 6]), ("t" if classes else "y", ["n", 4] if classes else ["n", 4, 1]))
    )
    constants = [weight] if classes else [weight, numpy_helper.from_array(np.int64([-1, 4, 1]), "s")]
    graph = helper.make_graph(nodes, "g", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inserted: Path = onnxqat.insert_qdq(onnx.ModelProto.FromString(model.SerializeToString()), data=[{"x": X}]).model
    onnx.save(inserted, path)
    return path


def trained(path: Path, factor: float) -> torch.nn.Module:
    """The module of the file, after one pass over 48 samples and a step that multiplied its weight."""
    module = onnxqat.to_torch(path).train()
    for batch in torch.from_numpy(X).split(16):
        module(batch).square().mean().backward()
    with torch.no_grad():
        module.get_parameter(next(k for k, n in module.parameter_names.items() if n == "w")).mul_(factor)
    return module


@pytest.mark.parametrize("classes", [True, False])
def test_a_ruined_model_is_remarked_on(tmp_path: Path, classes: bool) -> None:
    path = start(tmp_path / "m.onnx", classes)
    with pytest.warns(TrainedFarAwayWarning, match="of 48 samples that it was trained on"):
        onnxqat.write_back(trained(path, -1.0), path, path)


def test_a_model_that_learned_is_not(tmp_path: Path) -> None:
    path = start(tmp_path / "m.onnx", classes=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnxqat.write_back(trained(path, 1.05), path, path)


@pytest.mark.parametrize(("others", "is_far"), [(14, True), (4, False)])
def test_how_many_may_get_another_class(others: int, is_far: bool) -> None:
    """Of 100 samples: a ResNet-20 that lost 22 points of top-1 has 14, a network that learned a few."""
    wanted = np.eye(3, dtype=np.float32)[np.arange(100) % 3]
    after = wanted.copy()
    after[:others] = np.roll(after[:others], 1, axis=1)
    assert (far_from_start._distance_text([wanted], [wanted], [after]) is not None) == is_far


def test_what_is_kept_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_samples, "MOST_SAMPLES", 64)
    module = onnxqat.to_torch(start(tmp_path / "m.onnx", classes=True))
    with torch.no_grad():
        module(torch.from_numpy(X))
    assert not seen_samples.seen_by(module)  # no training
    average = copy.deepcopy(module)
    for batch in torch.from_numpy(X).split(20):
        module(batch)
    assert [len(batch[0]) for batch in seen_samples.seen_by(average)] == [20, 20, 8]
    module(torch.from_numpy(X))
    assert [len(batch[0]) for batch in seen_samples.seen_by(module)] == [20, 20, 8, 16]
    assert not seen_samples.seen_by(pickle.loads(pickle.dumps(module)))
