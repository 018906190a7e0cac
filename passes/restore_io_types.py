"""Inputs and outputs get back the types that they had before the model was converted to float32."""

from __future__ import annotations

import json

import onnx_ir as ir

from onnxqat.errors import UnsupportedError
from onnxqat.graph import build
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._io_casts import made_by_cast, read_through_cast

NOTE = "onnxqat.io_types"  # in the model's metadata between note_io_types and this pass


class RestoreIoTypes(Pass):
    """Restore the types of :func:`note_io_types`: inputs are read through a Cast, outputs are made by one.

    Passes between the two see a float32 model: a tensor that leaves the graph is an output to them, and not the input
    of a Cast.

    1. An input of another type than float32 is read as ``<input>_float32``; an output is made from
       ``<output>_float32``. The note goes.
    2. Left alone: a model without a note.

    Tolerance: rounding to the types of the outputs. ::

        (float[N,3] x) => (float[N,2] y) { y = MatMul(x, w) }                      # x, y noted as float16
        (float16[N,3] x) => (float16[N,2] y) {
            x_float32 = Cast <to = 1> (x)   y_float32 = MatMul(x_float32, w)   y = Cast <to = 10> (y_float32) }
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Insert the Casts; see the class."""
        log, graph, stamp = Log(), model.graph, {build.CREATED_BY: self.name}
        noted = model.metadata_props.pop(NOTE, None)
        if noted is None:
            return Rewrite(False)
        kinds = {name: ir.DataType[kind] for name, kind in json.loads(noted).items()}
        changing = [v for v in dict.fromkeys([*graph.inputs, *graph.outputs]) if v.name in kinds]
        outputs = [v for v in changing if not v.is_graph_input()]
        names = [str(v.name) for v in changing]
        for value in reversed([v for v in changing if v.is_graph_input()]):
            readers = list(value.uses())
            if readers:
                read_through_cast(graph, value, readers, context.names, stamp)
            value.type = ir.TensorType(kinds[str(value.name)])
        for value in outputs:
            made_by_cast(graph, value, kinds[str(value.name)], context.names, stamp)
        log.did("inputs and outputs have their types back, with a Cast beside them", *names)
        return log.result()


def note_io_types(model: ir.Model, types: frozenset[ir.DataType]) -> None:
    """Note the inputs and outputs whose element type is one of `types`, for :class:`RestoreIoTypes`; changes `model`.

    Raises:
        UnsupportedError: ``operator-unsupported`` for sequences of them, which no Cast takes.
    """
    noted = {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        check_castable(value, types)
        if value.dtype in types:
            noted[str(value.name)] = value.dtype.name
    if noted:
        model.metadata_props[NOTE] = json.dumps(noted)


def check_castable(value: ir.Value, types: frozenset[ir.DataType]) -> None:
    """Refuse an input or output that holds one of `types` in a sequence."""
    if value.dtype in types and isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
        raise UnsupportedError(
            "operator-unsupported",
            f"{value.name!r} is no tensor but a {value.type}: there is no Cast for it",
            hint="let inputs and outputs become float32, too: --float32-io, keep_io_types=False",
        )
