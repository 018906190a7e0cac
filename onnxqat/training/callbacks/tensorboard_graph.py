"""The graph of a module for TensorBoard's graph page: operators and fake-quantizers under their ONNX names."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from onnxqat.bridge.quantizers.state import quantizers

_PLAIN = {"placeholder": "Input", "get_attr": "Parameter", "output": "Output"}


def graph_of(module: nn.Module) -> Any:
    """Return the ``GraphDef`` of the graph in `module`, which may be wrapped; None where there is none.

    The parts of a name between slashes become TensorBoard's blocks; a fake-quantizer states its type.
    """
    from tensorboard.compat.proto.attr_value_pb2 import AttrValue
    from tensorboard.compat.proto.graph_pb2 import GraphDef
    from tensorboard.compat.proto.node_def_pb2 import NodeDef
    from tensorboard.compat.proto.versions_pb2 import VersionDef

    graph = next((part for part in module.modules() if isinstance(part, fx.GraphModule)), None)
    if graph is None:
        return None
    known = {id(quantizer): quantizer for _, quantizer in quantizers(graph)}
    names = _names(graph.graph)
    nodes = []
    for node in graph.graph.nodes:
        told: dict[str, str] = {}
        made = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        quantizer = known.get(id(made))
        if quantizer is not None:
            told["type"] = f"{quantizer.qtype.storage} {quantizer.quant_min}..{quantizer.quant_max}"
        nodes.append(
            NodeDef(
                name=names[node],
                op="FakeQuantize" if told else type(made).__name__ if made is not None else _operator(node),
                input=[names[each] for each in node.all_input_nodes],
                attr={key: AttrValue(s=value.encode()) for key, value in told.items()},
            )
        )
    return GraphDef(node=nodes, versions=VersionDef(producer=22))


def _names(graph: fx.Graph) -> dict[fx.Node, str]:
    """Return a name for each node, that of its tensor where it has one, without the slash that exporters begin with."""
    found: dict[fx.Node, str] = {}
    taken: set[str] = set()
    for node in graph.nodes:
        name = str(node.meta.get("onnx_name") or (node.target if node.op == "get_attr" else node.name)).lstrip("/")
        if not name or name in taken:
            name = node.name
        taken.add(name)
        found[node] = name
    return found


def _operator(node: fx.Node) -> str:
    return _PLAIN.get(node.op) or str(getattr(node.target, "__name__", node.target))
