"""Numbers of things in sentences."""

from onnxqat.counts import counted


def test_one_and_others() -> None:
    assert [counted(n, "layer") for n in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
    assert counted(2, "axis", "axes") == "2 axes"
