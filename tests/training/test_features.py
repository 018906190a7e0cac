"""Feature losses: the formulas, the views that show inner tensors, and runs that use them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UsageError
from onnxqat.training.config import DistillationConfig
from onnxqat.training.objective.features import FeatureLoss, Features, attention_distance
from onnxqat.training.objective.inner_tensors import expose
from onnxqat.training.objective.losses import Loss
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network


def test_attention_distance() -> None:
    student, teacher = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 5)
    maps = [np.square(t.numpy()).sum(1).reshape(2, -1) for t in (student, teacher)]
    unit = [m / np.linalg.norm(m, axis=1, keepdims=True) for m in maps]
    expected = np.square(unit[0] - unit[1]).sum(1).mean()
    assert attention_distance(student, teacher).item() == pytest.approx(expected, rel=1e-5)
    assert attention_distance(7 * student, student).item() == pytest.approx(0, abs=1e-6)


def test_the_loss_adds_what_lies_behind_the_outputs() -> None:
    student, teacher, labels = torch.randn(5, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    inner = torch.randn(5, 7)
    loss = FeatureLoss(Loss(), Features(["a"], weight=2.0), (("a", "a"),))
    found = loss([student, 1.1 * inner], labels, [teacher, inner])
    assert found.item() == pytest.approx(Loss()([student], labels, [teacher]).item() + 2 * 0.01, rel=1e-4)
    with pytest.raises(UsageError, match=r"\(5, 6\)"):
        loss([student, inner[:, :6]], labels, [teacher, inner])
    attention = FeatureLoss(Loss(), Features(["a"], distance="attention"), (("a", "a"),))
    with pytest.raises(UsageError, match="no map"):
        attention([student, inner], labels, [teacher, inner])


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function:DeprecationWarning")
def test_the_view_shares_everything_and_compiles() -> None:
    x = torch.from_numpy(data(8)[0])
    module = to_torch(network(quantized=True))
    view = expose(module, ["h3_dq", "h1"])
    outputs, h3, h1 = view(x)
    assert torch.equal(outputs, module(x))
    _, found = module.capture(["h3_dq", "h1"])(x)
    assert torch.equal(h3, found["h3_dq"])
    assert torch.equal(h1, found["h1"])
    assert {id(p) for p in view.parameters()} == {id(p) for p in module.parameters()}
    compiled = torch.compile(view, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x)[1], h3)
    with pytest.raises(UsageError, match="h7"):
        expose(module, ["h7"])


def test_the_view_of_any_module() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    x = torch.randn(2, 8)
    outputs, inner = expose(module, ["1"])(x)
    assert torch.equal(outputs, module(x))
    assert torch.equal(inner, module[1](module[0](x)))
    with pytest.raises(UsageError, match="conv"):
        expose(module, ["conv"])


def distance_of(result: nn.Module, tensors: dict[str, str], x: Tensor) -> float:
    """Relative distance of the inner tensors of a tuned module to those of the float network."""
    with torch.no_grad():
        _, student = result.capture(list(tensors))(x)  # type: ignore[operator]
        _, teacher = to_torch(network(quantized=False)).capture(list(tensors.values()))(x)
    pairs = [(student[s], teacher[t]) for s, t in tensors.items()]
    return sum(float((s - t).square().mean() / t.square().mean()) for s, t in pairs)


@pytest.mark.parametrize("names", [["h1", "h3"], ["h[13]"], {"h3_dq": "h3"}], ids=["names", "pattern", "pairs"])
def test_training_brings_inner_tensors_closer(names: object) -> None:
    x, y = data()
    tensors = names if isinstance(names, dict) else {"h1": "h1", "h3": "h3"}
    options = {"epochs": 4, "optimizer": "adam", "learning_rate": 0.01, "device": "cpu", "labels": y}
    runs = [
        finetune(
            network(quantized=True),
            {"x": x},
            teacher=DistillationConfig(network(quantized=False), features=f),
            **options,
        )  # type: ignore[arg-type]
        for f in (None, Features(names, weight=10.0))  # type: ignore[arg-type]
    ]
    without, with_features = (distance_of(run.module, tensors, torch.from_numpy(x)) for run in runs)
    assert with_features < 0.7 * without
    # The module that comes back has the outputs of the file and nothing else.
    assert isinstance(runs[1].module(torch.from_numpy(x)), Tensor)


def test_the_student_with_quantizers_off_has_features_too() -> None:
    x, _ = data()
    result = finetune(
        network(quantized=True), {"x": x}, teacher=DistillationConfig(features=["h1"]), epochs=1, device="cpu"
    )
    assert result.steps > 0


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["h9*"], "h9"),
        ({"h1": "h9"}, "h9"),
        ({"h9": "h1"}, "h9"),
        ([], "no tensor"),
        ({"h1": "logits"}, r"shape \(8, 16\)"),
    ],
)
def test_what_is_refused(features: object, message: str) -> None:
    x, y = data()
    with pytest.raises(UsageError, match=message):
        finetune(
            network(quantized=True),
            {"x": x},
            labels=y,
            teacher=DistillationConfig(network(quantized=False), features=features),
            device="cpu",
        )


def test_features_need_a_teacher() -> None:
    x, y = data()
    with pytest.raises(UsageError, match="no teacher"):
        finetune(network(quantized=True), {"x": x}, labels=y, teacher=DistillationConfig(features=["h1"]), device="cpu")
    for options in ({"distance": "cosine"}, {"weight": -1.0}):
        with pytest.raises(UsageError):
            Features(["h1"], **options)  # type: ignore[arg-type]


def test_a_channel_that_is_dead_in_the_teacher_drowns_nothing() -> None:
    """Behind a Relu some are 0; divided by next to nothing their distance was past float32's range for gradients."""
    teacher = torch.rand(8, 3, 6, 6)
    teacher[:, 1] = 0.0
    student = (teacher + 0.1).requires_grad_()
    loss = FeatureLoss(Loss(), Features(["a"]), (("a", "a"),))
    total = loss([torch.zeros(8, 4), student], torch.zeros(8, dtype=torch.int64), [torch.zeros(8, 4), teacher])
    total.backward()
    assert student.grad is not None
    assert total.item() < 3.0
    assert student.grad.norm().item() < 10.0
