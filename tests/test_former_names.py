"""Former names of parameters are taken, and say what they are called today."""

from collections.abc import Callable

import pytest

import onnxqat
from onnxqat.errors import QatError
from onnxqat.former_names import renamed


@renamed(samples="limit")
def used(model: str, *, limit: int = 16) -> int:
    """Return `limit`."""
    return limit


def test_the_value_arrives_under_the_name_of_today() -> None:
    with pytest.warns(FutureWarning, match=r"used\(samples=\) is now limit="):
        assert used("model", samples=3) == 3  # type: ignore[call-arg]
    assert used("model", limit=4) == 4


def test_both_names_are_refused() -> None:
    with pytest.raises(TypeError, match="limit and samples, its former name"):
        used("model", limit=1, samples=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "call",
    [
        lambda: onnxqat.handoff("absent.onnx", "academic", "bundle", samples=0),  # type: ignore[call-arg]
        lambda: onnxqat.reconstruct("absent.onnx", None, output="out.onnx", samples=0),  # type: ignore[call-overload]
    ],
    ids=["handoff", "reconstruct"],
)
def test_samples_is_limit_now(call: Callable[[], object]) -> None:
    with pytest.warns(FutureWarning, match="is now limit="), pytest.raises(QatError, match="limit is 0"):
        call()


@pytest.mark.parametrize(
    ("call", "today"),
    [
        (lambda: onnxqat.insert_qdq("absent.onnx", "academic", calibration=None), "data"),  # type: ignore[call-overload]
        (lambda: onnxqat.mixed_precision("absent.onnx", "academic", calibration=None), "data"),  # type: ignore[call-arg]
        (lambda: onnxqat.validate("absent.onnx", "absent.onnx", min_sqnr_db=1.0), "min_parity_sqnr"),  # type: ignore[call-arg]
    ],
    ids=["insert_qdq", "mixed_precision", "validate"],
)
def test_other_former_names(call: Callable[[], object], today: str) -> None:
    with pytest.warns(FutureWarning, match=rf"is now {today}="), pytest.raises((QatError, TypeError)):
        call()
