"""``extensions check`` of losses names the promise that one breaks, and each of them can be broken."""

from pathlib import Path

import pytest
import torch

from onnxqat import kinds
from onnxqat.errors import UsageError
from onnxqat.training.objective import _found
from onnxqat.training.objective.losses import Loss

HEAD = """
import torch

def squared(outputs, teacher):
    return (outputs[0] - teacher[0]).square().mean()
"""
KEPT = "def loss(outputs, labels, teacher):\n    return squared(outputs, teacher)\n"
BROKEN = {
    "learns": "def loss(outputs, labels, teacher):\n    return -squared(outputs, teacher)\n",
    "learns ": "def loss(outputs, labels, teacher):\n    return outputs.undefined\n",
    "learns  ": "def loss(outputs, labels, teacher):\n    return (outputs[0] - teacher[0]).square()\n",
    "gradient": "def loss(outputs, labels, teacher):\n    return squared([outputs[0].detach()], teacher)\n",
    "order": """
def loss(outputs, labels, teacher):
    return squared([outputs[0][:3]], [teacher[0][:3]])
""",
    "input": """
def loss(outputs, labels, teacher):
    found = squared(outputs, teacher)
    teacher[0].add_(1.0)
    return found
""",
    "second run": """
CALLS = [0]

def loss(outputs, labels, teacher):
    CALLS[0] += 1
    return squared(outputs, teacher) + CALLS[0] * 1e-6
""",
}


def failed(path: Path) -> list[str]:
    return [finding.name for finding in kinds.check_extension(str(path)).findings if not finding.passed]


@pytest.mark.parametrize("text", [KEPT, "from onnxqat import Loss\nloss = Loss(alpha=0.7)\n"])
def test_losses_that_keep_all(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + text, encoding="utf-8")
    assert kinds.kind_of(str(tmp_path / "mine.py")) == "loss"
    assert failed(tmp_path / "mine.py") == []


@pytest.mark.parametrize("promise", BROKEN)
def test_each_promise_can_be_broken(promise: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + BROKEN[promise], encoding="utf-8")
    assert promise.strip() in failed(tmp_path / "mine.py")


def test_what_a_loss_is_made_of(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    assert _found.made(None) is None
    path.write_text("from onnxqat import Loss\nloss = Loss(alpha=0.7)\n", encoding="utf-8")
    assert _found.made(str(path)) == Loss(alpha=0.7)  # which is told what outputs are
    path.write_text("loss = 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no function loss"):
        _found.made(str(path))
    with pytest.raises(UsageError, match="is no loss"):
        _found.made(3)  # type: ignore[arg-type]
    (tmp_path / "other.py").write_text("def loss(outputs, labels, teacher):\n    return 1.0\n", encoding="utf-8")
    made = _found.made(str(tmp_path / "other.py"))
    assert made is not None
    with pytest.raises(UsageError, match="gave float"):
        made([torch.zeros(2)], None, None)
