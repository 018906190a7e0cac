"""Models of one node, for comparing a lowering with onnxruntime or with the reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


def value_info(name: str, array: np.ndarray, shape: Shape | None = None) -> onnx.ValueInfoProto:
    """Description of a value of the array's type."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape if shape is None else shape)


def make(
    op_type: str,
    inputs: Mapping[str, np.ndarray | None],
    *,
    constants: Sequence[str] = (),
    outputs: Mapping[str, int] | None = None,
    domain: str = "",
    opset: int = 21,
    rank: int | None = None,
    shapes: Mapping[str, Shape] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model with one node.

    Args:
        op_type: its operator.
        inputs: arrays by name, in the order of the node's inputs; None leaves one out.
        constants: names that become initializers.
        outputs: element types by name, by default one float ``y``; an empty name leaves one out.
        domain: the operator's domain.
        opset: version of ai.onnx.
        rank: of the outputs; shape inference finds those of ai.onnx, others have that of the first input by default.
        shapes: shapes of graph inputs that are not those of the arrays.
        attributes: of the node; those that are None are left out.
    """
    wanted = {"y": TensorProto.FLOAT} if outputs is None else outputs
    given = {name: array for name, array in inputs.items() if array is not None}
    names = [name if name in given else "" for name in inputs]
    while names and not names[-1]:
        names.pop()
    if domain and rank is None:
        rank = next(iter(given.values())).ndim
    shape = None if rank is None else [None] * rank
    kept = {key: value for key, value in attributes.items() if value is not None}
    node = helper.make_node(op_type, names, list(wanted), domain=domain, **kept)
    graph = helper.make_graph(
        [node],
        "g",
        [value_info(name, a, (shapes or {}).get(name)) for name, a in given.items() if name not in constants],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind in wanted.items() if name],
        [numpy_helper.from_array(given[name], name) for name in constants if name in given],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def feeds(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """The arrays that the model takes as inputs."""
    return {value.name: array for value in model.graph.input if (array := inputs[value.name]) is not None}
