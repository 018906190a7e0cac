"""What every pass must do, checked on one small model, inside an If body and inside a function."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from onnxqat.passes._base import Pass, PassResult

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
Expect = Literal["same", "left", "skip"]


def parse(text: str | onnx.ModelProto) -> onnx.ModelProto:
    """ONNX text with or without its header; a model passes through."""
    if isinstance(text, onnx.ModelProto):
        return text
    model = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)
    onnx.checker.check_model(model)
    return model


def check_pass(
    pass_: Pass,
    before: str | onnx.ModelProto,
    after: str | None,
    *,
    atol: float = 0.0,
    inside_if: Expect = "same",
    inside_function: Expect = "same",
) -> PassResult:
    """Apply `pass_` to `before` and compare with `after`; None: it must leave the model alone.

    Args:
        pass_: the pass.
        before: ONNX text or a model.
        after: ONNX text; names of nodes are compared where it has them.
        atol: largest difference of onnxruntime's outputs, graph optimization off.
        inside_if: whether the graph as an If body gives the same, is left alone, or is not tried.
        inside_function: the same for a model-local function.
    """
    model = parse(before)
    result = run_checked(pass_, model, atol)
    assert result.changed == (after is not None), result.remarks
    if after is not None:
        expected = parse(after)
        compare_graphs(result.model.graph, expected.graph)
        assert imports(result.model) == imports(expected)
    for wrap, expect in ((in_if, inside_if), (in_function, inside_function)):
        if expect != "skip":
            wrapped = wrap(model)
            inner = run_checked(pass_, wrapped, atol)
            assert inner.changed == (expect == "same" and after is not None), (wrap.__name__, inner.remarks)
            if inner.changed and after is not None:
                assert operators(body(inner.model)) == operators(list(parse(after).graph.node)), wrap.__name__
    return result


def run_checked(pass_: Pass, model: onnx.ModelProto, atol: float) -> PassResult:
    """Run; the caller's model is untouched, the result valid, its numbers those of before, a second run idle."""
    bytes_before = model.SerializeToString(deterministic=True)
    result = pass_.run(model)
    assert model.SerializeToString(deterministic=True) == bytes_before
    assert isinstance(result.model, onnx.ModelProto)
    onnx.checker.check_model(result.model, full_check=True)
    for seed in (0, 1):
        compare_outputs(model, result.model, atol, seed)
    again = pass_.run(result.model)
    assert not again.changed, again.remarks
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    return result


def ort_run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name, graph optimization off, one thread."""
    session = ort_session(model)
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))


def ort_session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def random_feeds(model: onnx.ModelProto, seed: int, size: int = 2) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dimensions get `size`."""
    rng = np.random.default_rng(seed)
    constants = {i.name for i in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.dim_value > 0 else size for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype == np.bool_:
            feeds[value.name] = np.full(shape, seed % 2 == 0)
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[value.name] = np.asarray(rng.normal(size=shape) * 2).astype(dtype)
    return feeds


def compare_outputs(a: onnx.ModelProto, b: onnx.ModelProto, atol: float, seed: int = 0, size: int = 2) -> None:
    """onnxruntime gives the same outputs by name, to within `atol`."""
    feeds = random_feeds(a, seed, size)
    left = ort_run(a, feeds)
    taken = {i.name for i in b.graph.input}
    right = ort_run(b, {name: array for name, array in feeds.items() if name in taken})
    assert list(left) == list(right)
    for name in left:
        assert left[name].dtype == right[name].dtype
        np.testing.assert_allclose(left[name], right[name], rtol=0, atol=atol, err_msg=name)


def imports(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def compare_graphs(left: onnx.GraphProto, right: onnx.GraphProto) -> None:
    """Same inputs, outputs, constants and nodes in the same order."""
    assert [v.name for v in left.input] == [v.name for v in right.input]
    assert [v.name for v in left.output] == [v.name for v in right.output]
    mine, theirs = constants(left), constants(right)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert (mine[name].dtype, mine[name].shape) == (theirs[name].dtype, theirs[name].shape), name
        np.testing.assert_allclose(
            mine[name].astype(np.float64), theirs[name].astype(np.float64), rtol=1e-6, atol=1e-6, err_msg=name
        )
    assert [node_text(n) for n in left.node] == [node_text(n) for n in right.node]
    for a, b in zip(left.node, right.node, strict=True):
        assert not b.name or a.name == b.name
        for x, y in zip(a.attribute, b.attribute, strict=True):
            if x.HasField("g"):
                compare_graphs(x.g, y.g)


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in graph.initializer}


def node_text(node: onnx.NodeProto) -> str:
    attributes = sorted(f"{a.name}={helper.get_attribute_value(a)}" for a in node.attribute if not a.HasField("g"))
    inputs = list(node.input)
    while inputs and not inputs[-1]:
        inputs.pop()
    return f"{', '.join(node.output)} = {node.domain}{node.op_type}<{', '.join(attributes)}>({', '.join(inputs)})"


def operators(nodes: list[onnx.NodeProto]) -> list[str]:
    return [n.op_type for n in nodes if n.op_type != "Constant"]


def body(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the function, or of the first branch of the If."""
    if model.functions:
        return list(model.functions[0].node)
    return list(next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch").node)


def in_if(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph as both bodies of an If that reads the graph's inputs from outside."""
    wrapped = onnx.ModelProto()
    wrapped.CopyFrom(model)
    graph = wrapped.graph
    constant = {i.name for i in graph.initializer}
    outer = [v for v in graph.input if v.name not in constant]
    branches = []
    for branch in ("then_", "else_"):
        inner = onnx.GraphProto()
        inner.CopyFrom(graph)
        inner.name = branch + graph.name
        del inner.input[:]
        kept = {v.name for v in outer}
        rename(inner, {name: branch + name for name in names_of(inner) if name and name not in kept})
        branches.append(inner)
    outputs = [v.name for v in graph.output]
    choose = helper.make_node(
        "If", ["choose"], outputs, name="choose_If", then_branch=branches[0], else_branch=branches[1]
    )
    flag = helper.make_tensor_value_info("choose", onnx.TensorProto.BOOL, [])
    new = helper.make_graph([choose], graph.name, [flag, *outer], list(graph.output))
    wrapped.graph.CopyFrom(new)
    wrapped.ir_version = max(wrapped.ir_version, 4)
    onnx.checker.check_model(wrapped)
    return wrapped


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph as a model-local function, its initializers as Constant nodes."""
    wrapped = onnx.ModelProto()
    wrapped.CopyFrom(model)
    graph = wrapped.graph
    constant = {i.name for i in graph.initializer}
    outer = [v for v in graph.input if v.name not in constant]
    nodes = [helper.make_node("Constant", [], [i.name], name=f"{i.name}_node", value=i) for i in graph.initializer]
    function = helper.make_function(
        "local",
        "body",
        [v.name for v in outer],
        [v.name for v in graph.output],
        [*nodes, *graph.node],
        [helper.make_opsetid(e.domain, e.version) for e in model.opset_import],
    )
    call = helper.make_node(
        "body", [v.name for v in outer], [v.name for v in graph.output], name="call", domain="local"
    )
    wrapped.graph.CopyFrom(helper.make_graph([call], graph.name, outer, list(graph.output)))
    wrapped.functions.append(function)
    wrapped.opset_import.append(helper.make_opsetid("local", 1))
    wrapped.ir_version = max(wrapped.ir_version, 8)
    onnx.checker.check_model(wrapped)
    return wrapped


def names_of(graph: onnx.GraphProto) -> set[str]:
    found = {i.name for i in graph.initializer} | {v.name for v in graph.output}
    for node in graph.node:
        found.update(node.input)
        found.update(node.output)
    return found


def rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for item in (*graph.initializer, *graph.output, *graph.value_info):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        if node.name:
            node.name = graph.name + node.name
