"""A checkpoint or black box whose metadata are damaged is refused, and nothing is changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from onnxqat.errors import QatError
from onnxqat.training.loop import black_box, checkpoint
from onnxqat.training.loop.progress import Progress

Document = dict[str, Any]


def _set(*path: str, to: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def _groups(**values: Any) -> Callable[[Document], None]:
    return lambda document: document["optimizer"]["groups"][0].update(values)


DAMAGE: dict[str, Callable[[Document], object]] = {
    "no progress": lambda d: d.pop("progress"),
    "unknown progress": _set("progress", "evil", to=1),
    "text for a step": _set("progress", "step", to="x"),
    "negative step": _set("progress", "step", to=-5),
    "step behind the end": _set("progress", "step", to=2**62),
    "text for losses": _set("progress", "losses", to="abc"),
    "no settings": lambda d: d.pop("settings"),
    "list of settings": _set("settings", to=[]),
    "no optimizer": lambda d: d.pop("optimizer"),
    "no groups": _set("optimizer", "groups", to=[]),
    "number for groups": _set("optimizer", "groups", to=3),
    "text for a rate": _groups(lr="x"),
    "rate that is NaN": _groups(lr=float("nan")),
    "list for a decay": _groups(weight_decay=[1]),
    "state of no parameter": _set("optimizer", "numbers", to={"0/step": 1, "x": 2, "999/a": 1}),
    "state twice": _set("optimizer", "numbers", to={"0/step": 1}),
    "no states": lambda d: d.pop("states"),
    "list of states": _set("states", to=[]),
    "state of another kind": _set("states", "schedule", to={"factor": {}}),
    "bad random numbers": _set("random", to={"python": [1, 2, 3], "numpy": "x"}),
    "odd random version": _set("random", "python", to=[77, None]),
    "number for random": _set("random", to=5),
    "other format": _set("format", to="x"),
}


class Schedule:
    """Keeps one number."""

    def state_dict(self) -> Document:
        """Return it."""
        return {"factor": 1.0}

    def load_state_dict(self, state: Document) -> None:
        """Take it over."""
        self.factor = float(state["factor"])


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return module, optimizer


def _damage(path: Path, change: Callable[[Document], object]) -> None:
    with safetensors.safe_open(path, "pt") as file:
        document = json.loads(file.metadata()["onnxqat"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    change(document)
    safetensors.torch.save_file(tensors, path, {"onnxqat": json.dumps(document)})


def _load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    return checkpoint.load(path, module, optimizer=optimizer, stateful={"schedule": Schedule()}, random=True)


def _saved(path: Path) -> tuple[nn.Module, torch.optim.Optimizer]:
    module, optimizer = _trained()
    settings, stands = {"total_steps": 4}, Progress(step=2, epoch=1, losses=[float("nan")])
    checkpoint.save(
        path, module, optimizer=optimizer, progress=stands, settings=settings, stateful={"schedule": Schedule()}
    )
    return module, optimizer


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    module, optimizer = _saved(tmp_path / "c")
    _damage(tmp_path / "c", lambda document: document.pop("random"))
    assert _load(tmp_path / "c", module, optimizer).step == 2


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    module, optimizer = _saved(tmp_path / "c")
    _damage(tmp_path / "c", DAMAGE[damage])
    with pytest.raises(QatError) as error:
        _load(tmp_path / "c", module, optimizer)
    assert error.value.code == "checkpoint-mismatch"
    assert "\n" not in error.value.message


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "[" * 20000, "{}", "{", '{"format": "onnxqat-checkpoint-1"}'])
def test_metadata_of_another_structure(text: str, tmp_path: Path) -> None:
    module, optimizer = _saved(tmp_path / "c")
    tensors = safetensors.torch.load_file(tmp_path / "c")
    safetensors.torch.save_file(tensors, tmp_path / "c", {"onnxqat": text})
    with pytest.raises(QatError) as error:
        _load(tmp_path / "c", module, optimizer)
    assert error.value.code == "checkpoint-mismatch"


@pytest.mark.parametrize("text", ["[]", "{}", "[" * 20000, '{"format": "onnxqat-black-box-1"}', "\0"])
def test_a_box_of_another_structure(text: str, tmp_path: Path) -> None:
    (tmp_path / "box.json").write_text(text)
    with pytest.raises(QatError) as error:
        black_box.replay(tmp_path, tmp_path / "no.onnx")
    assert error.value.code == "checkpoint-mismatch"
