"""The float model made ready for placement: the prepare recipe, and what the user selected in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.errors import BackendError
from onnxqat.graph import edit, shapes, walk
from onnxqat.insertion import kept_batchnorm
from onnxqat.passes._setting import Setting
from onnxqat.passes.convert_to_float32 import OTHERS
from onnxqat.passes.restore_io_types import note_io_types
from onnxqat.pipeline import recipes, run
from onnxqat.pipeline.added import Added
from onnxqat.placement import table_overrides
from onnxqat.placement.table_overrides import NodeSelection, Overrides
from onnxqat.types import Remark, first_opset

BatchNorm = Literal["auto", "fold", "keep"]
PER_CHANNEL_OPSET = 13


def prepare(
    model: ir.Model,
    table: schema.Backend,
    overrides: Overrides,
    remarks: list[Remark],
    *,
    simplify: bool = False,
    batch_norm: BatchNorm = "fold",
    compute: bool = False,
    keep_io_types: bool = True,
    added: Sequence[Added] = (),
) -> NodeSelection:
    """Run the prepare recipe on `model` in place and find the user's selection on the names before it.

    Args:
        model: float model.
        table: backend table, user overrides applied.
        overrides: user choices.
        remarks: what is found is added.
        simplify: run onnxsim first.
        batch_norm: as of :func:`onnxqat.insertion.insert.insert_qdq`.
        compute: where weight scales cannot take up a BatchNormalization that is to be kept, note it at its layer, for
            :func:`onnxqat.insertion.insert.place` to compute the folded weight in the graph. `model` has to stay in memory until then.
        keep_io_types: as of :func:`onnxqat.insertion.insert.insert_qdq`.
        added: passes of the user's, at their places in :data:`onnxqat.pipeline.recipes.PREPARE`.

    Raises:
        UsageError: ``option-invalid`` where a BatchNormalization is to be kept and no weight scale can take it up.
    """
    setting = Setting(table, overrides, simplify=simplify, batch_norm=batch_norm)
    remarks.extend(run.rewrite(model, recipes.NAME, setting, added).remarks)
    remarks.extend(_stale(shapes.mend(model)))
    chosen = table_overrides.select(model, overrides)
    table_overrides.mark(model, chosen)
    opset = max(needed_opset(table, overrides), _function_opset(model, table))
    if keep_io_types:
        note_io_types(model, OTHERS)
    normalizing = dataclasses.replace(setting, opset=opset)
    remarks.extend(run.rewrite(model, recipes.NORMALIZE, normalizing, added).remarks)
    chosen = table_overrides.unmark(model, chosen)
    shapes.infer(model)  # types tell the next passes what is worth folding
    asked = batch_norm == "keep"
    if batch_norm == "auto":
        keeps = not overrides.exact and kept_batchnorm.is_worth_it(model, table, remarks)
        batch_norm = "keep" if keeps else "fold"
    if batch_norm == "keep":
        kept_batchnorm.keep(model, table, chosen, remarks, exact=overrides.exact, compute=compute, asked=asked)
    folding = dataclasses.replace(setting, selection=chosen, batch_norm=batch_norm)
    while (sizes := run.rewrite(model, recipes.SIZES, folding)).changed:
        remarks.extend(sizes.remarks)
        shapes.infer(model)  # a size that is a constant now may tell a Reshape's, and that the next Shape's
    remarks.extend(run.rewrite(model, recipes.FOLD, folding, added).remarks)
    if table.sums == "tie_free":
        from onnxqat.calibration.exact import tie_free_sums

        tie_free_sums.add_biases(model)
    edit.remove_unused(model)
    if any(value.dtype is None or value.shape is None for value in walk.outputs(walk.nodes(model))):
        shapes.infer(model)  # what the passes made states its own, and may tell those of others
    return chosen


def _stale(names: tuple[str, ...]) -> list[Remark]:
    if not names:
        return []
    text = "the file states shapes that contradict its inputs and operators; they were inferred again"
    return [Remark(text, names, "prepare")]


def needed_opset(table: schema.Backend, overrides: Overrides | None = None) -> int:
    """Lowest opset for every type of `table` and of `overrides`; at least 13, where per-channel scales begin.

    Raises:
        BackendError: ``backend-opset`` where the backend cannot read that opset.
    """
    storages = [t.dtype for t in table.types.values() if t.dtype != "float"]
    storages += [s.dtype for row in table.ops.values() for s in (*row.inputs, *row.outputs) if s.dtype is not None]
    widths = [bits for _, *both in (overrides.node_bits if overrides else ()) for bits in both]
    rules = [role for rule in (overrides.rules if overrides else ()) for role in (rule.weights, rule.activations)]
    widths += [16 for role in rules if role.bits == 16 or str(role.type).endswith("int16")]
    storages += ["int16"] if 16 in (table.first_last_bits, *widths) else []
    storages += ["int4"] if any(t.granularity == "block" for t in table.types.values()) else []  # opset of block_size
    needed = max([PER_CHANNEL_OPSET, table.opset[0], *map(first_opset, storages)])
    if needed > table.opset[1]:
        raise BackendError(
            "backend-opset",
            f"{table.backend} reads opset {table.opset[0]} to {table.opset[1]}, but these types need {needed}",
            hint="choose 8-bit types or another backend",
        )
    return needed


def _function_opset(model: ir.Model, table: schema.Backend) -> int:
    """The opset that the model and its functions can have in common, so that the latter can become part of it."""
    bodies = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    versions = [imports[""] for imports in bodies if "" in imports]
    return min(max(versions), table.opset[1]) if model.functions and versions else 0
