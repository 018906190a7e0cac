"""Switching quantizers by role and by name."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize, State
from onnxqat.bridge.quantizers.state import quantizers, set_state, state
from onnxqat.errors import UsageError
from onnxqat.types import QParams, QType, Role


def quantizer(tensor: str, role: Role) -> FakeQuantize:
    qparams = QParams(np.float32(0.1), np.int64(0), QType.of(8, signed=True))  # type: ignore[arg-type]
    return FakeQuantize(qparams, tensor=tensor, role=role)


@pytest.fixture
def module() -> torch.nn.Module:
    root = torch.nn.Module()
    root.a = quantizer("/conv1/output", "activation")
    root.b = quantizer("/conv2/output", "activation")
    root.w = quantizer("conv1.weight", "weight")
    root.odd = quantizer("x[0]", "activation")
    root.again = root.a
    return root


def states(module: torch.nn.Module) -> dict[str, State]:
    return {q.tensor: q.state for _, q in quantizers(module)}


def test_each_quantizer_is_listed_once(module: torch.nn.Module) -> None:
    assert [path for path, _ in quantizers(module)] == ["a", "b", "w", "odd"]


def test_all_roles_and_patterns(module: torch.nn.Module) -> None:
    assert set_state(module, "float") == 4
    assert set(states(module).values()) == {"float"}
    assert set_state(module, "quantize", roles=["weight"]) == 1
    assert states(module)["conv1.weight"] == "quantize"
    assert set_state(module, "calibrate", tensors=["/conv*/output"]) == 2
    assert states(module)["/conv2/output"] == "calibrate"
    assert set_state(module, "calibrate", roles=["weight"], tensors=["*conv1*"]) == 1


def test_a_name_with_brackets_matches_itself(module: torch.nn.Module) -> None:
    assert set_state(module, "float", tensors=["x[0]"]) == 1


@pytest.mark.parametrize("pattern", ["conv3*", "CONV1.weight", ""])
def test_a_pattern_that_matches_nothing_is_an_error(module: torch.nn.Module, pattern: str) -> None:
    with pytest.raises(UsageError) as error:
        set_state(module, "float", tensors=["*", pattern])
    assert error.value.code == "pattern-no-match"
    assert set(states(module).values()) == {"quantize"}


def test_an_unknown_state_is_an_error(module: torch.nn.Module) -> None:
    with pytest.raises(UsageError):
        set_state(module, "off")  # type: ignore[arg-type]


def test_the_context_manager_restores_each_state(module: torch.nn.Module) -> None:
    set_state(module, "calibrate", roles=["weight"])
    before = states(module)
    with state(module, "float"):
        assert set(states(module).values()) == {"float"}
    assert states(module) == before
    with pytest.raises(ZeroDivisionError), state(module, "float"):
        1 / 0  # noqa: B018
    assert states(module) == before
