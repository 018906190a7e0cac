"""The backends of MQBench and Knight by their names there, and the table that each one is here."""

from __future__ import annotations

import enum

from onnxqat.backends import schema
from onnxqat.placement import table_overrides
from onnxqat.placement.table_overrides import Overrides


class BackendType(enum.Enum):
    """A backend by MQBench's or Knight's name; the value is that name.

    ``NNIE`` is there to be refused with its reason: its grid is logarithmic, which no Q/DQ pair can express.
    """

    Academic = "Academic"
    Academic_NLP = "Academic_NLP"
    Tensorrt = "Tensorrt"
    Tensorrt_NLP = "Tensorrt_NLP"
    OPENVINO = "OPENVINO"
    SNPE = "SNPE"
    PPLW8A16 = "PPLW8A16"
    PPLCUDA = "PPLCUDA"
    NNIE = "NNIE"
    Vitis = "Vitis"
    ONNX_QNN = "ONNX_QNN"
    Tengine_u8 = "Tengine_u8"
    QDQ = "QDQ"
    STPU = "STPU"
    TSQAT = "TSQAT"
    Experimental = "Experimental"


TABLES = {
    BackendType.Academic: "academic",
    BackendType.Academic_NLP: "academic",
    BackendType.Tensorrt: "tensorrt",
    BackendType.Tensorrt_NLP: "tensorrt-nlp",
    BackendType.OPENVINO: "openvino-cpu",
    BackendType.SNPE: "snpe",
    BackendType.PPLW8A16: "ppl-w8a16",
    BackendType.PPLCUDA: "ppl-cuda",
    BackendType.NNIE: "nnie",
    BackendType.Vitis: "vitis-dpu",
    BackendType.ONNX_QNN: "onnxruntime-cpu",
    BackendType.Tengine_u8: "tengine-u8",
    BackendType.QDQ: "tensorrt",
    BackendType.STPU: "onnxruntime-cpu-s8",
    BackendType.TSQAT: "tsqat",
    BackendType.Experimental: "experimental",
}

NOTES = {
    BackendType.ONNX_QNN: "ONNX_QNN made QLinear operators for TVM; onnxruntime's table has the same uint8 activations",
    BackendType.QDQ: "QDQ had TensorRT's types and places",
    BackendType.STPU: "STPU has no public table of its own: onnxruntime-cpu-s8 with symmetric types per tensor, as in MQBench",
}

CHOICES = {BackendType.STPU: Overrides(activation_type="int8-symmetric", per_channel=False)}
"""Differences of MQBench's backend from the table."""


def find(backend: BackendType | str) -> BackendType | None:
    """The member that `backend` is or names; None for the name or path of a table."""
    if isinstance(backend, str):
        return BackendType.__members__.get(backend)
    return backend


def table_name(backend: BackendType | str) -> str:
    """Name of the table for `backend`: a BackendType, its name, or the name or path of a table."""
    found = find(backend)
    return str(backend) if found is None else TABLES[found]


def table(backend: BackendType | str) -> schema.Backend:
    """The table for `backend`, with observers that need no second look at the data.

    Modules are calibrated in the user's own loop: there is nothing to compare candidate ranges on (``auto``), so that
    ``minmax`` stands in for it.

    Raises:
        BackendError: ``backend-unknown`` with the reason where there can be none (``NNIE``), or with close matches;
            ``backend-table``.
    """
    found = schema.load(table_name(backend))
    activations, _ = table_overrides.type_roles(found)
    types = {
        name: row.model_copy(update={"observer": "minmax"}) if name in activations and row.observer == "auto" else row
        for name, row in found.types.items()
    }
    first_last = "minmax" if found.first_last_observer == "auto" else found.first_last_observer
    return found.model_copy(update={"types": types, "first_last_observer": first_last})
