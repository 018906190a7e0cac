"""Records in a quantized file: what it was made from, by what, and on which data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxqat import extension
from onnxqat._version import __version__
from onnxqat.backends import schema
from onnxqat.graph import io, provenance, qdq
from onnxqat.graph.provenance import Provenance
from onnxqat.placement import table_overrides

if TYPE_CHECKING:
    from onnxqat.data.data import Data


def origin(source: io.ModelSource, model: ir.Model) -> Provenance:
    """The float model: the file given, or for one that is quantized already what it records."""
    if qdq.is_quantized(model):
        recorded = provenance.of(model)
        return Provenance(float_model=recorded.float_model, float_sha256=recorded.float_sha256)
    name, sha256 = provenance.float_model(source, model)
    return Provenance(float_model=name, float_sha256=sha256)


def with_data(origin: Provenance, data: Data) -> Provenance:
    """`origin` with the identity of the calibration data."""
    found = data.identity()
    return dataclasses.replace(origin, data=found.name, data_sha256=found.sha256, preprocess=found.preprocess)


def describe(
    model: ir.Model, table: schema.Backend, *, calibration: str, exact: bool = False, passes: Sequence[str] = ()
) -> None:
    """Write into the metadata of `model` what made it: version, backend, types, and what it was calibrated on.

    `exact` stands for ``--exact``; `passes` are the names of the user's own.
    """
    activations, weights = table_overrides.type_roles(table)
    model.metadata_props.update(
        {
            "onnxqat.version": __version__,
            "onnxqat.backend": table.backend,
            "onnxqat.activations": "; ".join(_type_text(table.types[t]) for t in sorted(activations)),
            "onnxqat.weights": "; ".join(_type_text(table.types[t]) for t in sorted(weights)),
            "onnxqat.calibration": calibration,
            **({"onnxqat.exact": "yes"} if exact else {}),
            **({"onnxqat.passes": ", ".join(passes)} if passes else {}),
        }
    )


def _type_text(row: schema.TypeRow) -> str:
    grid = row.qtype()
    kind = "symmetric" if row.symmetric else "asymmetric"
    return f"{grid.storage} {grid.bits} bit {kind} per {row.granularity}, {extension.key_of(row.observer)}"
