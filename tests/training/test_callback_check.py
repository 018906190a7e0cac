"""``extensions check`` of callbacks names the promise that one breaks, and each of them can be broken."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from onnxqat import kinds
from onnxqat.errors import UsageError
from onnxqat.training.callbacks import _found
from onnxqat.training.callbacks.callback import Callback

HEAD = """
import torch
from onnxqat.extend import Callback

class Mine(Callback):
    name = "mine"

    def start(self, run):
        self.module = run.module
"""
KEPT = """
    count = 0

    def after_backward(self, step):
        self.count += 1
        for parameter in self.module.parameters():
            if parameter.grad is not None and self.count > 3:
                parameter.grad.mul_(0.5)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
"""
BROKEN = {
    "runs": """
    def after_step(self, step):
        raise ZeroDivisionError("by hand")
""",
    "runs ": """
    @torch.no_grad()
    def before_score(self):
        next(self.module.parameters()).fill_(torch.inf)
""",
    "second run": """
    runs = [0.0]

    def penalty(self, step):
        self.runs[0] += 1
        return self.runs[0] * sum(p.square().sum() for p in self.module.parameters())
""",
    "resume": KEPT.replace("state_dict", "other"),
    "alone": """
    def start(self, run):
        torch.nn.modules.module.register_module_forward_hook(self.larger)

    @staticmethod
    def larger(module, inputs, output):
        return output * 1.01 if isinstance(output, torch.Tensor) else output
""",
    "file": """
    def finish(self):
        for module in self.module.modules():
            if not list(module.children()) and any(True for _ in module.parameters()):
                module.register_forward_hook(lambda module, inputs, output: output * 1.5)
""",
}


def failed(path: Path) -> list[str]:
    return [finding.name for finding in kinds.check_extension(str(path)).findings if not finding.passed]


def test_a_callback_that_keeps_all(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + KEPT, encoding="utf-8")
    assert kinds.kind_of(str(tmp_path / "mine.py")) == "callback"
    assert failed(tmp_path / "mine.py") == []


@pytest.mark.parametrize("promise", BROKEN)
def test_each_promise_can_be_broken(promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.modules.module, "_global_forward_hooks", OrderedDict())
    (tmp_path / "mine.py").write_text(HEAD + BROKEN[promise], encoding="utf-8")
    assert promise.strip() in failed(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from onnxqat.extend import Callback\n", "no subclass of Callback"),
        (HEAD + "    def __init__(self, factor):\n        pass\n", "cannot be made without arguments"),
        (HEAD + "class Other(Callback):\n    pass\n", "several callbacks"),
        (HEAD + "    def __init__(self):\n        1 / 0\n", "line 11: ZeroDivisionError"),
    ],
)
def test_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        _found.made([str(tmp_path / "file.py")])


def test_the_callback_of_the_file_s_name(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(HEAD + "class Other(Callback):\n    pass\n", encoding="utf-8")
    (made,) = _found.made([str(tmp_path / "other.py")])
    assert type(made).__name__ == "Other"
    with pytest.raises(UsageError, match="is no callback"):
        _found.made([3])  # type: ignore[list-item]


def test_an_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        HEAD + "    def before_step(self, step):\n        return [][1]\n", encoding="utf-8"
    )
    (made,) = _found.made([str(tmp_path / "mine.py")])
    with pytest.raises(UsageError, match=r"mine\.py, line 11: IndexError") as caught:
        made.before_step(0)
    assert caught.value.code == "extension-failed"
    assert isinstance(made, Callback)
    assert torch.is_grad_enabled()
