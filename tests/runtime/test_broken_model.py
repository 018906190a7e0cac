"""What cannot be imported is the model's fault where onnxruntime refuses the model too, and only there."""

import onnx
import pytest

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import ModelError
from onnxqat.runtime.broken_model import blamed, guard
from tests.passes.checks import parse

CONSTANTS = "<int64[1] start = {0}, int64[1] end = {2}, int64[1] axis = {%s}>"
SLICE = "g (float[1,4] x) => (float[1,2] y) " + CONSTANTS + " { r = Relu(x) y = Slice(r, start, end, axis) }"
BROKEN = {
    "axis": (SLICE % 5, "Unexpected axis value: 5"),
    "type": ("g (float[2] x) => (float[2] y) { r = Relu(x) y = Cast<to = -2>(r) }", "does not specify a valid type"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_onnxruntimes_reason_is_the_error(text: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        to_torch(parse(text))
    assert caught.value.code == "model-not-runnable"


def test_commands_blame_the_model_too() -> None:
    @guard("source")
    def command(source: onnx.ModelProto, number: int = 0) -> int:
        return [][number]

    with pytest.raises(ModelError, match="onnxruntime cannot run"):
        command(parse("g (float[N,4] x) => (float[N,5] y) <int64[2] s = {-1, 5}> { y = Reshape(x, s) }"))
    with pytest.raises(IndexError):
        command(parse(SLICE % 1), number=3)


VENDORS = '<ir_version: 8, opset_import: ["" : 17, "some.where" : 1]>'
SOUND = {
    "sizes that it is fed": "g (float[1,2] x, int64[1] i) => (float y) { y = Reshape(x, i) }",
    "a batch that it divides": "g (float[N,4] x) => (float[M,8,4] y) <int64[3] s = {-1, 8, 4}> { y = Reshape(x, s) }",
    "an operator of a vendor": f"{VENDORS} g (float[2] x) => (float[2] y) {{ y = some.where.Mystery(x) }}",
    "a kernel that onnxruntime does not have": "g (int16[2] x) => (int16[2] y) { y = Relu(x) }",
    "its size": "g (float[1] x) => (float y) <int64[2] s = {100000, 100000}> { y = Expand(x, s) }",
}


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_what_says_nothing_about_the_model_hides_no_fault(text: str) -> None:
    with pytest.raises(IndexError, match="ours"), blamed(parse(text)):
        raise IndexError("ours")


def test_with_a_sound_model_the_import_is_at_fault() -> None:
    with pytest.raises(IndexError, match="ours"), blamed(parse(SLICE % 1)):
        raise IndexError("ours")
    with pytest.raises(MemoryError), blamed(parse(SLICE % 5)):
        raise MemoryError
