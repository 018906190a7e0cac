"""Raise the model's ai.onnx opset to the one that a later step needs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.graph import build, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred
from onnxqat.passes._opset_steps import STEPS, Step, is_compatible
from onnxqat.passes._setting import Setting
from onnxqat.types import Placement, first_opset

OLDEST = 7


class RaiseOpset(Pass):
    """A model below opset `minimum` is converted to exactly `minimum`, node by node.

    1. Attributes that became inputs (Clip, Pad, Slice, Squeeze, Unsqueeze, Split, TopK, ReduceX, Dropout, Upsample)
       become constants ``<node>_<attribute>``.
    2. Softmax, LogSoftmax and Hardmax of opset 12 flatten their input: where the normalized axes are more than one,
       Shape, Flatten and Reshape are put around the node.
    3. Upsample becomes Resize, Scatter ScatterElements; Resize gets the coordinates of its first version; training
       outputs of BatchNormalization that nothing reads go.
    4. Model-local functions are converted by their own imports; the IR version is raised to the one of the opset.
    5. Names, metadata and weights, external ones included, stay as they are, which onnx.version_converter does not
       warrant. A model at `minimum` or above, and other domains, are left alone.
    6. Refused with ``operator-unsupported``: opsets below 7, and nodes whose meaning cannot be kept.

    Tolerance: none. ::

        <opset_import: ["" : 11]>   y = Squeeze <axes = [1]> (x)
        <opset_import: ["" : 13]>   y = Squeeze(x, node_axes) <int64[1] node_axes = {1}>

    Args:
        minimum: the ai.onnx opset that the model has at least afterwards.
    """

    def __init__(self, minimum: int = 13) -> None:
        newest = onnx.defs.onnx_opset_version()
        if not OLDEST <= minimum <= newest:
            raise UsageError("option-invalid", f"opset {minimum}: the installed onnx knows {OLDEST} to {newest}")
        self.minimum = minimum

    @classmethod
    def for_codes(cls, placements: Iterable[Placement]) -> RaiseOpset:
        """Raise to the first opset whose QuantizeLinear writes the codes of all `placements`."""
        return cls(max((first_opset(p.qparams.qtype.storage) for p in placements), default=OLDEST))

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Raise to the opset of `setting`, where it asks for one."""
        return cls(setting.opset) if setting.opset > OLDEST else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Convert; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        imported = [model.opset_imports, *(f.opset_imports for f in model.functions.values())]
        if all(i.get("", i.get("ai.onnx", self.minimum)) >= self.minimum for i in imported):
            return Rewrite(False)
        inferred = Inferred(model)
        for imports, scopes in _bodies(model):
            key = "" if "" in imports or "ai.onnx" not in imports else "ai.onnx"
            version = imports.get(key)
            if version is None or version >= self.minimum:
                continue
            if version < OLDEST:
                raise UnsupportedError(
                    "operator-unsupported",
                    f"opset {version} is older than {OLDEST}",
                    hint="export the model again, or convert it with onnx.version_converter",
                )
            for scope in scopes:
                for node in list(scope):
                    if node.domain in ("", "ai.onnx"):
                        self._convert(Step(scope, node, context.names, inferred, stamp), version)
            imports[key] = self.minimum
            log.did(f"opset raised from {version} to {self.minimum}")
        needed = ir_version_of(self.minimum)
        if log.changed and model.ir_version < needed:
            model.ir_version = needed
        return log.result()

    def _convert(self, step: Step, version: int) -> None:
        while True:
            op = step.node.op_type
            current = _schema(op, version)
            following = None if current is None else _next_version(op, current.since_version, self.minimum)
            if current is None:
                raise step.refuse(f"opset {version} has no such operator")
            if following is None:
                return
            rewriting = STEPS.get((op, following))
            if rewriting is not None:
                rewriting(step)
            target = _schema(step.node.op_type, following)
            problem = "it has no successor" if target is None else is_compatible(step.node, current, target)
            if problem is not None and not (
                rewriting is not None and target is not None and _accepts(step.node, target)
            ):
                raise step.refuse(problem)
            version = following


def _bodies(model: ir.Model) -> Iterator[tuple[dict[str, int], list[walk.Scope]]]:
    """Each set of opset imports with the scopes that it holds for."""
    yield model.opset_imports, [model.graph, *model.graph.subgraphs()]
    for function in model.functions.values():
        yield function.opset_imports, [function, *function.subgraphs()]


def ir_version_of(opset: int) -> int:
    """The IR version that was current when ai.onnx `opset` came out; a model with that opset needs it at least."""
    return int(onnx.helper.OP_SET_ID_VERSION_MAP.get(("ai.onnx", opset), onnx.IR_VERSION))


def _accepts(node: ir.Node, schema: onnx.defs.OpSchema) -> bool:
    return (
        all(name in schema.attributes for name in node.attributes)
        and schema.min_input <= len(node.inputs) <= schema.max_input
        and schema.min_output <= len(node.outputs) <= schema.max_output
    )


@functools.cache
def _versions() -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    schemas: Iterable[onnx.defs.OpSchema] = onnx.defs.get_all_schemas_with_history()
    for schema in schemas:
        if schema.domain == "":
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {name: tuple(sorted(versions)) for name, versions in found.items()}


def _next_version(op: str, since: int, limit: int) -> int | None:
    return next((v for v in _versions().get(op, ()) if since < v <= limit), None)


def _schema(op: str, version: int) -> onnx.defs.OpSchema | None:
    versions = [v for v in _versions().get(op, ()) if v <= version]
    return onnx.defs.get_schema(op, versions[-1], "") if versions else None
