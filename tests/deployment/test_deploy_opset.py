"""The opset of the deploy form is one that every later step reads."""

import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment.deploy import deploy_form
from onnxqat.graph import io, query


@pytest.mark.parametrize("node", ["LeakyRelu(x)", "HardSigmoid(x)", "Relu(x)"])
def test_a_model_of_old_operators_alone_is_written_for_the_target(node: str) -> None:
    """Of opset 6 by their operators, with nothing quantized: the target's oldest opset is what it gets."""
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[2,3] x) => (float[2,3] y) {{ y = {node} }}"""
    model = io.load(onnx.parser.parse_model(text))
    table = schema.load("openvino-cpu")
    assert query.opset(deploy_form(model, table, [])) == table.opset[0]
