"""The first tensor, in graph order, at which torch and onnxruntime differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import qdq, query
from onnxqat.runtime.session import Session, main_values
from onnxqat.validation.compare import FLOAT_ROUNDING, parts
from onnxqat.validation.torch_run import TorchRun

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Parting:
    """Place where two runs differ by more than float rounding.

    Attributes:
        tensor: the first tensor in graph order.
        node: the node that makes it.
        op_type: its operator.
        relative: largest difference, relative to the tensor's largest magnitude.
        sample: number in the data of the sample that is furthest apart there.
        rounding_tie: whether the operator quantizes an activation, so that a value next to a rounding tie is the likely cause.
    """

    tensor: str
    node: str
    op_type: str
    relative: float
    sample: int
    rounding_tie: bool


def worst(torch: Mapping[str, Array], ort: Mapping[str, Array], names: Iterable[str]) -> float:
    """Largest relative difference of the tensors that both runs have."""
    both = [name for name in names if name in torch and name in ort]
    return max((parts(torch[name], ort[name]) for name in both), default=0.0)


def locate(model: ir.Model, torch: TorchRun, feeds: Mapping[str, Array], first: int) -> Parting | None:
    """Compare every float tensor of the main graph that both runs have; None where none differs.

    The whole batch that differed is run: a kernel may sum a single sample in another order.

    Args:
        model: the QDQ model.
        torch: its import.
        feeds: the batch.
        first: number in the data of its first sample.
    """
    made = main_values(model.graph)
    floats = [n for n, v in made.items() if n in torch.known and (query.is_float(v) or v.dtype is None)]
    names = [n for n in floats if not qdq.is_quantize(made[n].producer())]
    ort = Session(model, optimize=False, tensors=names).run(feeds, names)
    own = torch.run(feeds, names)
    found = [q for q in qdq.quantizers(model) if q.role == "activation"]
    roundings = {id(node) for q in found for node in q.dequantize}
    samples = next(iter(feeds.values())).shape[:1]
    for name in names:
        if name not in ort or name not in own or ort[name].dtype.kind != "f":
            continue
        relative = parts(own[name], ort[name])
        node = made[name].producer()
        if relative > FLOAT_ROUNDING and node is not None:
            sample = first + _worst_sample(own[name], ort[name], samples)
            return Parting(name, query.label(node), node.op_type, relative, sample, id(node) in roundings)
    return None


def _worst_sample(own: Array, ort: Array, samples: tuple[int, ...]) -> int:
    """Position in the batch of the sample that is furthest apart; 0 where samples cannot be told apart."""
    if not samples or own.shape != ort.shape or own.shape[:1] != samples:
        return 0
    difference = np.abs(np.asarray(own, np.float64) - np.asarray(ort, np.float64)).reshape(samples[0], -1)
    return int(np.nan_to_num(difference, nan=np.inf).max(axis=1, initial=0.0).argmax())
