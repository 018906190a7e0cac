"""graphsurgeon graphs go in and come out with everything that they say."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from onnx import helper

from onnxqat.errors import ModelError
from onnxqat.graph import build, graphsurgeon, io, verify
from onnxqat.passes._base import Context, Pass, Rewrite, run_passes
from onnxqat.passes._graphsurgeon import GsPass
from onnxqat.passes.unique_names import UniqueNames
from tests.passes.checks import compare_graphs, compare_outputs, in_function, in_if, node_text, ort_run, parse

SMALL = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    [a] t = MatMul(x, w) [b] u = LeakyRelu <alpha = 0.2> (t) [c] y = Concat <axis = 1> (u) }"""


def round_trip(model: onnx.ModelProto) -> onnx.ModelProto:
    result = graphsurgeon.from_gs(gs.import_onnx(model))
    verify.verify(result)
    proto = io.to_proto(result)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_is_graph() -> None:
    assert graphsurgeon.is_graph(gs.Graph())
    assert not graphsurgeon.is_graph(onnx.ModelProto())
    assert not graphsurgeon.is_graph("model.onnx")


def test_asking_does_not_import_graphsurgeon() -> None:
    code = "import sys; from onnxqat.graph import graphsurgeon; graphsurgeon.is_graph(3); sys.exit('onnx_graphsurgeon' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("wrap", [lambda m: m, in_if, in_function], ids=["main", "if", "function"])
def test_round_trip(wrap) -> None:
    model = wrap(parse(SMALL))
    result = round_trip(model)
    compare_graphs(result.graph, model.graph)
    compare_outputs(model, result, 0.0)


@pytest.mark.parametrize("name", ["resnet20_cifar10", "silero_vad", "nanodet_coco_320", "basic_pitch", "swift_f0"])
def test_round_trip_of_real_models(shared, name: str) -> None:
    model = onnx.load(shared / "data" / "models" / f"{name}.onnx")
    result = io.to_proto(graphsurgeon.from_gs(gs.import_onnx(model)))
    onnx.checker.check_model(result)
    assert [node_text(n) for n in result.graph.node] == [node_text(n) for n in model.graph.node]
    assert list(result.graph.input) == list(model.graph.input)
    assert {i.name: i.raw_data for i in result.graph.initializer} == {
        i.name: i.raw_data for i in model.graph.initializer if any(i.name in n.input for n in model.graph.node)
    }


@pytest.mark.parametrize("name", ["resnet20_cifar10", "dscnn_kws"])
def test_to_gs_and_back(shared, name: str) -> None:
    model = io.load(shared / "data" / "models" / f"{name}.onnx")
    back = graphsurgeon.from_gs(graphsurgeon.to_gs(model))
    compare_graphs(io.to_proto(back).graph, io.to_proto(model).graph)


@pytest.mark.parametrize("how", ["dtype", "export_dtype"])
def test_int4_constants_made_in_graphsurgeon(how: str) -> None:
    codes = np.asarray([[1, -2], [3, -8]])
    if how == "dtype":
        weight = gs.Constant("w", codes.astype(ml_dtypes.int4))
    else:
        weight = gs.Constant("w", codes.astype(np.int8), export_dtype=onnx.TensorProto.INT4)
    x, y = gs.Variable("x", np.float32, ["N", 2]), gs.Variable("y", np.float32, ["N", 2])
    d = gs.Variable("d")
    scale = gs.Constant("s", np.asarray(0.5, np.float32))
    nodes = [
        gs.Node("DequantizeLinear", inputs=[weight, scale], outputs=[d]),
        gs.Node("MatMul", inputs=[x, d], outputs=[y]),
    ]
    graph = gs.Graph(nodes, [x], [y], opset=21)
    with pytest.raises(Exception):  # noqa: B017, PT011 - that graphsurgeon's own exporter cannot is why there is another
        gs.export_onnx(graph)
    model = io.to_proto(graphsurgeon.from_gs(graph))
    onnx.checker.check_model(model, full_check=True)
    result = ort_run(model, {"x": np.eye(2, dtype=np.float32)})["y"]
    np.testing.assert_array_equal(result, codes * np.float32(0.5))


def test_unsorted_nodes_are_sorted() -> None:
    graph = gs.import_onnx(parse(SMALL))
    graph.nodes.reverse()
    assert [n.op_type for n in graphsurgeon.from_gs(graph).graph] == ["MatMul", "LeakyRelu", "Concat"]


def test_untouched_weights_stay_lazy() -> None:
    graph = gs.import_onnx(parse(SMALL))
    graphsurgeon.from_gs(graph)
    weight = graph.tensors()["w"]
    assert type(weight._values).__name__ == "LazyValues"


def test_dangling_tensor() -> None:
    graph = gs.import_onnx(parse(SMALL))
    graph.nodes[0].inputs[0] = gs.Variable("ghost")
    with pytest.raises(ModelError, match="ghost") as caught:
        graphsurgeon.from_gs(graph)
    assert caught.value.code == "model-graphsurgeon"


def test_empty_lists_take_their_type_from_the_schema() -> None:
    graph = gs.import_onnx(
        parse('<ir_version: 7, opset_import: ["" : 11]> g (float[2] x) => (float y) { y = ReduceSum(x) }')
    )
    graph.nodes[0].attrs["axes"] = []
    model = graphsurgeon.from_gs(graph)
    assert model.graph[0].attributes["axes"].type == ir.AttributeType.INTS
    graph.nodes[0].attrs["strange"] = object()
    with pytest.raises(ModelError, match="strange"):
        graphsurgeon.from_gs(graph)


def test_external_data_is_refused() -> None:
    model = parse(SMALL)
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(ModelError) as caught:
        graphsurgeon.from_gs(gs.import_onnx(model))
    assert caught.value.code == "model-external-data"


def test_what_graphsurgeon_cannot_hold_is_named() -> None:
    model = parse(SMALL)
    model.graph.node[1].domain = "my"
    model.opset_import.append(helper.make_opsetid("my", 1))
    tensor = helper.make_tensor("", onnx.TensorProto.FLOAT, [1], [1.0])
    model.graph.node[1].attribute.append(helper.make_attribute("many", [tensor]))
    model.graph.node[1].overload = "second"
    with pytest.raises(ModelError, match=r"second.*list of tensors.*many") as caught:
        graphsurgeon.to_gs(io.load(model))
    assert caught.value.code == "model-graphsurgeon"


def rename_relu(graph: gs.Graph) -> None:
    for node in graph.nodes:
        if node.op == "LeakyRelu":
            node.op, node.attrs = "Relu", {}


class RenameRelu(Pass):
    """The same edit on onnx_ir."""

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        found = [n for n in model.graph if n.op_type == "LeakyRelu"]
        for node in found:
            node.op_type = "Relu"
            node.attributes.clear()
        return Rewrite(bool(found))


def test_gs_pass_equals_the_same_edit_in_onnx_ir() -> None:
    model = parse(SMALL)
    left, right = GsPass(rename_relu).run(model), RenameRelu().run(model)
    assert left.changed
    compare_graphs(left.model.graph, right.model.graph)
    assert GsPass(rename_relu).name == "rename-relu"
    assert not GsPass(rename_relu).run(left.model).changed


def test_gs_pass_puts_metadata_back() -> None:
    model = io.load(parse(SMALL))
    model.metadata_props["k"] = "model"
    model.graph[0].metadata_props[build.RULE] = "node"
    model.graph[0].outputs[0].metadata_props["k"] = "value"
    result = GsPass(rename_relu).run(model).model
    assert result.metadata_props == {"k": "model"}
    assert result.graph[0].metadata_props == {build.RULE: "node"}
    assert result.graph[0].outputs[0].metadata_props == {"k": "value"}


def test_passes_take_and_give_graphs() -> None:
    graph = gs.import_onnx(parse(SMALL))
    graph.nodes[0].name = ""
    result = run_passes(graph, [UniqueNames(), GsPass(lambda g: g.copy())])
    assert isinstance(result.model, gs.Graph)
    assert result.model.nodes[0].name == "t_MatMul"
    assert graph.nodes[0].name == ""
