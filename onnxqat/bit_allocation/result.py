"""Result of :func:`onnxqat.bit_allocation.mixed_precision.mixed_precision`."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from onnxqat import metrics
from onnxqat.bit_allocation.costs import Cost
from onnxqat.displayed import Displayed
from onnxqat.types import Remark


@dataclasses.dataclass(frozen=True)
class Option:
    """One width of a layer.

    Attributes:
        weight_bits: of its weight; 32 is float.
        activation_bits: of its inputs and output.
        weight_bytes: bytes of its weight, packed.
        multiply_bits: multiplications of a sample times both widths.
        noise: share of the output's signal that is noise with this layer alone quantized so.
    """

    weight_bits: int
    activation_bits: int
    weight_bytes: float
    multiply_bits: int
    noise: float


@dataclasses.dataclass(frozen=True)
class ChosenLayer:
    """One layer and what was chosen for it.

    Attributes:
        node: name by which ``--bits-of`` finds it.
        op_type: its operator.
        weights: number of weights.
        chosen: what it has in the file.
        options: all that it could have.
    """

    node: str
    op_type: str
    weights: int
    chosen: Option
    options: tuple[Option, ...]

    weight_bits = property(lambda self: self.chosen.weight_bits, doc="Width of its weight.")
    activation_bits = property(lambda self: self.chosen.activation_bits, doc="Width of its activations.")
    weight_bytes = property(lambda self: self.chosen.weight_bytes, doc="Bytes of its weight.")
    multiply_bits = property(lambda self: self.chosen.multiply_bits, doc="Multiplications times both widths.")


@dataclasses.dataclass(frozen=True)
class FrontPoint:
    """A choice that no other one beats in both cost and predicted noise.

    Attributes:
        cost: of all layers that are chosen for, in the unit of the budget.
        share: of :attr:`MixedPrecision.whole`.
        predicted_db: signal to noise that the noises of the layers, added up, leave.
        chosen: whether it is the one that was written.
        bits: width of the weights of each layer, in the order of the layers.
    """

    cost: float
    share: float
    predicted_db: float
    chosen: bool
    bits: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MixedPrecision(Displayed):
    """A file of several widths, and the choices behind it.

    Attributes:
        model: the quantized model, of the kind that was given; for a path, the path of the file written.
        layers: in graph order, with their widths.
        front: the Pareto front, the cheapest first.
        cost: the cost that counts.
        budget: its limit, in :data:`onnxqat.bit_allocation.costs.UNITS`; None where the loss was limited.
        total: the cost of the file's layers; for ``latency`` of all kernels, by the times of single ones.
        whole: the same at 8 bits; for ``latency`` and ``float-multiplications`` of the float model.
        latency_ms: milliseconds of the written file's kernels for one sample, measured; None without a limit of them.
        integer_share: share of the multiplications that are on integers, of the layers that are chosen for.
        predicted_db: signal to noise that the layers' noises leave.
        measured_db: signal to noise of the worst output of the file, on `samples` samples.
        samples: their number.
        method: how noise was found.
        score: of the float model and of the file; None where none was asked for.
        reached: False where no choice keeps the asked signal to noise or drop; the best one was written.
        node_bits: widths that differ from the table's, as of ``--bits-of``.
        exclude: layers that stay in float.
        following: the ``insert-qdq`` command that writes the same file.
        remarks: what is worth knowing.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_mixed_precision:from_mixed_precision"

    model: Any
    layers: tuple[ChosenLayer, ...]
    front: tuple[FrontPoint, ...]
    cost: Cost
    budget: float | None
    total: float
    whole: float
    latency_ms: float | None
    integer_share: float
    predicted_db: float
    measured_db: float
    samples: int
    method: Literal["measured", "gradient"]
    score: metrics.Scored | None
    reached: bool
    node_bits: tuple[tuple[str, int, int], ...]
    exclude: tuple[str, ...]
    following: str
    remarks: tuple[Remark, ...]
