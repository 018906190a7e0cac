"""Teachers: files with other names and other output kinds, modules, several at once, and losses of one's own."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.training.objective import distillation, teachers
from onnxqat.training.objective.losses import Loss
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network


def renamed() -> onnx.ModelProto:
    """The float network with other names, another order and one more output."""
    model = network(quantized=False)
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["image" if name == "x" else name for name in node.input]
    graph.input[0].name = "image"
    graph.output.insert(0, helper.make_tensor_value_info("h1", onnx.TensorProto.FLOAT, ("N", 16)))
    onnx.checker.check_model(model)
    return model


def test_inputs_by_position_and_outputs_by_name() -> None:
    x = torch.from_numpy(data(8)[0])
    student, teacher = to_torch(network(quantized=True)), to_torch(renamed())
    (logits,) = teachers.TeacherAdapter(teacher, student)(x)
    assert torch.equal(logits, to_torch(network(quantized=False))(x))
    with pytest.raises(UsageError, match="outputs"):
        teachers.TeacherAdapter(student, teacher)


def test_the_kind_of_output_is_seen() -> None:
    kinds = [teachers.output_kind(io.load(network(quantized=False, softmax=s))) for s in (False, True)]
    assert kinds == ["logits", "probabilities"]
    # A student of logits and a teacher of probabilities, the other way round, and both alike: the same loss.
    x, y = data(16)
    inputs = torch.from_numpy(x)
    found = []
    for student_softmax, teacher_softmax in ((False, False), (False, True), (True, False), (True, True)):
        graph = io.load(network(quantized=True, softmax=student_softmax))
        student = distillation.student(graph, "lsq")
        given = teachers.load(network(quantized=False, softmax=teacher_softmax))
        lesson = distillation.lesson(student, given, outputs=teachers.output_kind(graph))
        assert lesson.teacher is not None
        found.append(float(lesson.loss([lesson.forward(inputs)], torch.from_numpy(y), lesson.teacher(inputs)).detach()))
    # The two networks name their outputs differently, so the pair goes by position.
    assert found == pytest.approx([found[0]] * 4, rel=1e-4)


def test_several_teachers_count_alike() -> None:
    x, y = data(16)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    other = nn.Linear(8, 3)
    student = distillation.student(io.load(network(quantized=True)), "lsq")
    alone = []
    for given in (network(quantized=False), other):
        lesson = distillation.lesson(student, teachers.load(given))
        assert lesson.teacher is not None
        result = lesson.teacher(inputs)
        alone.append(lesson.loss([lesson.forward(inputs)], labels, result if isinstance(result, tuple) else [result]))
    both = distillation.lesson(student, teachers.load([network(quantized=False), other]))
    assert both.teacher is not None
    mixed = both.loss([both.forward(inputs)], labels, both.teacher(inputs))
    assert mixed.item() == pytest.approx((alone[0] + alone[1]).item() / 2, rel=1e-5)
    run = finetune(
        network(quantized=True), {"x": x}, labels=y, teacher=[network(quantized=False), other], epochs=1, device="cpu"
    )
    assert run.steps == 1


def test_a_loss_of_your_own() -> None:
    x, y = data(64)
    seen = []

    def loss(outputs: list[Tensor], labels: Tensor, teacher: list[Tensor]) -> Tensor:
        seen.append((outputs[0].shape, labels.shape, teacher[0].shape))
        return (outputs[0] - teacher[0]).abs().mean()

    result = finetune(
        network(quantized=True),
        {"x": x},
        labels=y,
        teacher=network(quantized=False),
        loss=loss,  # type: ignore[arg-type]
        epochs=10,
        optimizer="adam",
        learning_rate=0.003,
        device="cpu",
    )
    assert ((32, 3), (32,), (32, 3)) in seen
    assert result.losses[-1] < result.losses[0]


def test_a_council_keeps_its_losses_apart() -> None:
    outputs = [torch.zeros(2, 3)]
    council = teachers.CouncilLoss([Loss(distance="mse"), Loss(distance="kl", temperature=1.0)])
    teacher = [[torch.ones(2, 3)], [torch.tensor([[0.0, np.log(2.0), 0.0]] * 2)]]
    divergence = 0.25 * np.log(0.75) * 2 + 0.5 * np.log(1.5)
    assert council(outputs, None, teacher).item() == pytest.approx((1.0 + divergence) / 2, rel=1e-5)


def test_a_teacher_of_other_inputs_is_refused() -> None:
    x, y = data(16)
    other = renamed()
    other.graph.input[0].type.tensor_type.shape.dim[1].dim_value += 1
    del other.graph.output[0]
    with pytest.raises(UsageError, match=r"input 'image'.*does not take what the model's input 'x'"):
        finetune(network(quantized=True), x, labels=y, teacher=other)


def test_a_teacher_that_fails_is_named() -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.zeros(1, 4)

    x, y = data(16)
    with pytest.raises(UsageError, match="the teacher cannot compute on the model's inputs, x"):
        finetune(network(quantized=True), x, labels=y, teacher=Narrow())
