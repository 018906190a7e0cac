"""restore-io-types: noted types of inputs and outputs come back, with a Cast beside them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import TensorProto

from onnxqat.errors import UnsupportedError
from onnxqat.graph import io
from onnxqat.passes.convert_to_float32 import OTHERS, ConvertToFloat32
from onnxqat.passes.restore_io_types import NOTE, RestoreIoTypes, note_io_types
from tests.passes.checks import check_pass, compare_outputs, parse, run_checked

HALF = """g (float16[N,2] x, int64[2] i, float[N,2] s) => (float16[N,2] y, float16[N,2] z, float[N,2] t) {
    y = Neg(x) z = Add(y, x) t = Exp(s) }"""


def converted(text: str) -> ir.Model:
    model = io.load(parse(text))
    note_io_types(model, OTHERS)
    result: ir.Model = ConvertToFloat32(keep_io_types=False).run(model).model
    return result


def test_it_is_what_keeping_them_gives() -> None:
    made = RestoreIoTypes().run(io.to_proto(converted(HALF))).model
    assert [n.op_type for n in made.graph.node] == ["Cast", "Neg", "Add", "Exp", "Cast", "Cast"]
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)}
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    assert kinds == {"x": half, "i": TensorProto.INT64, "s": single, "y": half, "z": half, "t": single}
    assert not any(entry.key == NOTE for entry in made.metadata_props)
    compare_outputs(parse(HALF), made, 2.0**-9)  # to 11 bits
    run_checked(RestoreIoTypes(), made, 0)


def test_an_input_that_is_an_output_and_one_that_nothing_reads() -> None:
    text = "g (float16[2] x, float16[2] u) => (float16[2] x, float[2] y) { y = Cast <to = 1> (x) }"
    made = RestoreIoTypes().run(io.to_proto(converted(text))).model
    assert [v.type.tensor_type.elem_type for v in made.graph.input] == [TensorProto.FLOAT16] * 2
    compare_outputs(parse(text), made, 0)


def test_without_a_note_nothing_happens() -> None:
    check_pass(RestoreIoTypes(), "g (float[2] x) => (float[2] y) { y = Neg(x) }", None)


def test_sequences_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'y' is no tensor"):
        note_io_types(io.load(parse("g (float16[2] x) => (seq(float16[2]) y) { y = SequenceConstruct(x) }")), OTHERS)
