"""A name that does not exist is refused with the names that do."""

import pytest

from onnxqat import discover
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
