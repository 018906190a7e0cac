"""Tensors that a backend's table wants quantized, beside the quantizers that the file has for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext
from onnxqat.types import Edge, Fixed, TensorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """One edge that the table wants quantized, and what the file has there.

    Attributes:
        edge: of the plan.
        spec: what the pair is to be.
        node: the consumer, or what makes the tensor where all consumers are meant; of the file.
        present: the file's quantizers there.
    """

    edge: Edge
    spec: TensorSpec | Fixed
    node: ir.Node | None
    present: tuple[Quantizer, ...]


def compared(file: LintContext) -> Iterator[Compared]:
    """Every edge that the table of `file` wants quantized, biases apart."""
    target = file.target
    for edge in () if target is None else target.plan.edges:
        assert target is not None
        spec = target.spec(edge)
        if spec is None:
            continue
        if edge.consumers is None:
            # a pair behind the tensor's own one converts it for some consumers, which have edges of their own
            present = tuple(q for q in file.named(edge.tensor) if not q.stored and file.making(q.input) is None)
            yield Compared(edge, spec, _maker(file, edge.tensor), present)
            continue
        for name, index in edge.consumers:
            node = target.original(name)
            found = None if node is None else file.reading(node, index)
            yield Compared(edge, spec, node, () if found is None else (found,))


def _maker(file: LintContext, tensor: str) -> ir.Node | None:
    for quantizer in file.named(tensor):
        return quantizer.nodes[0]
    return file.maker(tensor)
