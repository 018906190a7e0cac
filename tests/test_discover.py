"""A name that does not exist is refused with the names that do."""

import pytest

from onnxqat import discover, extension
from onnxqat.calibration import observers
from onnxqat.cli.main import ELSEWHERE, command_line
from onnxqat.errors import UsageError


@pytest.mark.parametrize(
    ("package", "name", "says", "hint"),
    [
        (
            "onnxqat.calibration.observers",
            "min-max",
            "no observer named 'min-max'",
            "did you mean minmax, ema-minmax, ",
        ),
        ("onnxqat.training.distributed.strategies", "x", "no strategy named 'x'", "one of: ddp, fsdp"),
        ("onnxqat.passes", "place-qd", "no pass named 'place-qd'", "did you mean place-qdq"),
    ],
)
def test_what_is_said(package: str, name: str, says: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        discover.load(package, name)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_case_and_dashes_do_not_count() -> None:
    assert discover.suggestion("conv", ["Conv", "Gemm"]) == "did you mean Conv?"
    assert discover.suggestion("insrt_qdq", ["insert-qdq", "lint"]) == "did you mean insert-qdq?"


def test_a_hint_is_no_list_of_a_thousand_names() -> None:
    assert discover.suggestion("zzz", [f"tensor_{i}" for i in range(1000)]).endswith("tensor_33 and 966 more")
    assert discover.suggestion("zzz", []) == ""


@pytest.mark.parametrize("name", ["_base", "a.b", "", "__pycache__", "minmax.py"])
def test_what_is_no_public_module_is_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        discover.load("onnxqat.calibration.observers", name)


def test_every_name_is_found() -> None:
    for package in ("onnxqat.calibration.observers", "onnxqat.backends", "onnxqat.passes"):
        assert all(discover.load(package, name) is not None for name in discover.names(package))


def test_a_name_of_another_tool_leads_to_the_one_here() -> None:
    for observer, here in (("KL", "entropy"), ("tf_enhanced", "mse"), ("histogram", "mse")):
        with pytest.raises(UsageError) as caught:
            extension.load(observers.KIND, observer)
        assert caught.value.hint == f"that is {here} here"
    with pytest.raises(UsageError) as caught:
        command_line.main(["quantize", "model.onnx"], standalone_mode=False)
    assert caught.value.hint == "that is insert-qdq here"


def test_names_of_other_tools_lead_to_names_that_there_are() -> None:
    assert {name.replace("-", "_") for name in ELSEWHERE.values()} <= set(discover.names("onnxqat.cli.commands"))
    assert not set(ELSEWHERE) & set(discover.names("onnxqat.cli.commands"))
    known = extension.names(observers.KIND)
    assert set(observers.KIND.elsewhere.values()) <= set(known)
    assert not set(observers.KIND.elsewhere) & set(known)
