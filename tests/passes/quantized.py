"""Small quantized models, made with the package's own quantizer writer."""

from __future__ import annotations

import numpy as np
import onnx

from onnxqat import numerics
from onnxqat.graph import build, edit, io, qdq
from onnxqat.types import QParams, QType

FLOAT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,2,4,4] x) => (float[N,3,4,4] y)
<float[3,2,1,1] w = {0.5, -1.25, 0.75, 2, -0.3, 0.1}, float[3] b = {0.25, -0.5, 1}> {
    [conv] c = Conv(x, w, b)
    [relu] y = Relu(c)
}"""


FULL = QType("int8", -128, 127)


def float_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(FLOAT)


def quantized(weight: QType = FULL, *, snap: bool = False, per_channel: bool = True) -> onnx.ModelProto:
    """FLOAT with quantizers on x, w, the output and, as int32, on b; with `snap` the weights lie on their grid."""
    model = io.load(float_model())
    names, stamp = build.Names(model), {build.CREATED_BY: "test"}
    graph = model.graph
    conv, relu = graph[0], graph[1]
    activation = QParams(np.float32(0.05), np.int64(3), QType("int8", -128, 127))
    scale = np.asarray([0.02, 0.3, 0.1] if per_channel else 0.1, np.float32)
    if weight.bits < 8:
        scale = scale * np.float32(8)
    weights = QParams(scale, np.zeros(scale.shape, np.int64), weight, 0 if per_channel else None)
    w, b = graph.initializers["w"], graph.initializers["b"]
    if snap:
        w.const_value = build.tensor(numerics.fake_quantize(w.const_value.numpy(), weights), name="w")
    for place, (value, qparams) in enumerate(((graph.inputs[0], activation), (w, weights))):
        parameters = qdq.make_parameters(graph, names, str(value.name), qparams)
        made = qdq.insert_pair(value, parameters, qparams, names, stamp, scope=graph, before=conv)
        conv.replace_input_with(place, made)
    accumulator = QParams(
        np.asarray(np.broadcast_to(scale * np.float32(0.05), (3,))),
        np.zeros(3, np.int64),
        QType("int32", -(2**31), 2**31 - 1),
        0,
    )
    parameters = qdq.make_parameters(graph, names, "b", accumulator)
    codes = numerics.quantize(b.const_value.numpy(), accumulator)
    bias = qdq.insert_stored(b, codes, parameters, accumulator, names, stamp, scope=graph, before=conv)
    conv.replace_input_with(2, bias)
    output = relu.outputs[0]
    parameters = qdq.make_parameters(graph, names, "y", activation)
    made = qdq.insert_pair(output, parameters, activation, names, stamp, scope=graph, after=relu)
    edit.replace_output(graph, output, made)
    edit.take_over_name(names, output, made, "unquantized")
    edit.remove_unused(model)
    model.metadata_props["onnxqat.backend"] = "test"
    proto = io.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto
