"""Torch bridge against onnxruntime, quantizer by quantizer, in LSB.

Two questions are kept apart. *Given its own input*: the quantizer gets the very float tensor that onnxruntime's got;
not one code may differ. *In the network*: each side computes its own input first; sums taken in another order move a
value that lies next to a rounding tie across it, and then codes differ by one step. The tie rate says how many values
lie that close, so that such differences can be told from wrong arithmetic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.metrics._closeness import Difference
from onnxqat.runtime.session import main_values
from onnxqat.types import QParams, Remark

Array = npt.NDArray[Any]

TIE_STEPS = 1e-4
"""A value lies at a tie when ``x / scale`` is within this many LSB of the middle between two codes of the grid."""

ROUNDED = 2.0**-24
"""Share by which a quotient in float32 is off at most."""


@dataclasses.dataclass(frozen=True)
class QuantizerParity:
    """One activation quantizer.

    Attributes:
        tensor: the float tensor that it quantizes.
        grid: integer type and codes.
        reference: what was compared with onnxruntime: ``torch``, or ``numpy`` (the formula) without torch.
        elements: values compared.
        differing_given_input: codes that differ given onnxruntime's own input.
        largest_given_input: the largest of these differences, in LSB.
        differing_in_network: codes that differ when each side computes its own input; None without torch.
        largest_in_network: the largest of these differences, in LSB; None without torch.
        unexplained: of these, codes further apart than the two inputs are, plus one step; None without torch.
        differing_in_integers: codes that differ between execution in integers and the kernels of the default session; None
            where the one or the other has none.
        tie_rate: share of values within :data:`TIE_STEPS` of a rounding tie.
        saturated: share of values beyond the first or last code.
        non_finite: NaN and infinite values that onnxruntime's quantizer got, and that it hides by saturating.
        noise_db: signal to noise of this quantizer alone: its input against its output.
    """

    tensor: str
    grid: str
    reference: str
    elements: int
    differing_given_input: int
    largest_given_input: int
    differing_in_network: int | None
    largest_in_network: int | None
    unexplained: int | None
    differing_in_integers: int | None
    tie_rate: float
    saturated: float
    non_finite: int
    noise_db: float


class QuantizerMeter:
    """Sums of one quantizer over batches; holds no batch.

    Args:
        quantizer: what the file says.
        apply: the reference implementation, float32 array to float32 array; None for numpy's.
    """

    def __init__(self, quantizer: Quantizer, apply: Callable[[Array], Array] | None) -> None:
        self.source, self.target = str(quantizer.input.name), str(quantizer.outputs[0].name)
        self.qparams = quantizer.qparams
        self.elements = self.differing = self.largest = 0
        self.ties = self.saturated = self.non_finite = 0
        self.network: list[int] | None = None
        self.integers: int | None = None
        self._apply = apply
        self._noise = Difference()

    def update(self, source: Array, target: Array) -> None:
        """Compare given onnxruntime's input: `source` and `target` are its tensors in front of Q and behind DQ."""
        x = np.asarray(source, np.float32)
        own = numerics.fake_quantize(x, self.qparams) if self._apply is None else self._apply(x)
        apart = np.abs(codes_of(own, self.qparams) - codes_of(target, self.qparams))
        apart = np.where(np.isnan(x), 0, apart)  # ONNX gives NaN no code; that there is one is counted below
        self.elements += x.size
        self.differing += int(np.count_nonzero(apart))
        self.largest = max(self.largest, int(apart.max(initial=0)))
        low, high = self.qparams.qtype.quant_min, self.qparams.qtype.quant_max
        position = x / _along(self.qparams.scale, self.qparams, x.ndim) + _along(
            self.qparams.zero_point.astype(np.float32), self.qparams, x.ndim
        )
        self.saturated += int(np.count_nonzero((position < low - 0.5) | (position > high + 0.5)))
        with np.errstate(invalid="ignore"):
            near = np.abs(np.abs(position - np.rint(position)) - 0.5) <= TIE_STEPS
        inside = (position > low) & (position < high)
        self.non_finite += int(np.count_nonzero(~np.isfinite(x)))
        self.ties += int(np.count_nonzero(near & inside))
        self._noise.update(target, x)

    def update_network(self, ort: tuple[Array, Array], torch: tuple[Array, Array]) -> None:
        """Compare in the network: each side's tensors in front of Q and behind DQ."""
        differing, largest, unexplained = self.network or [0, 0, 0]
        apart = np.abs(codes_of(torch[1], self.qparams) - codes_of(ort[1], self.qparams))
        apart = np.where(np.isnan(ort[0]), 0, apart)
        with np.errstate(invalid="ignore"):
            moved = np.abs(np.asarray(torch[0], np.float64) - np.asarray(ort[0], np.float64))
            size = np.abs(np.asarray(torch[0], np.float64)) + np.abs(np.asarray(ort[0], np.float64))
        # Two ties that are n codes apart may round to codes n + 1 apart, and their quotients are not quite n apart: each is
        # rounded to float32, by some thousandths of a code of 16 bits.
        allowed = (moved + ROUNDED * size) / _along(self.qparams.scale, self.qparams, apart.ndim) + 1 + TIE_STEPS
        self.network = [
            differing + int(np.count_nonzero(apart)),
            max(largest, int(apart.max(initial=0))),
            unexplained + int(np.count_nonzero(apart > allowed)),
        ]

    def update_integers(self, mine: Array, kernel: Array) -> None:
        """Compare what execution in integers gives behind DQ with the codes of a kernel, less the zero point."""
        self.integers = (self.integers or 0) + int(np.count_nonzero(codes_of(mine, self.qparams) != kernel))

    def result(self) -> QuantizerParity:
        """Return the parity over all batches so far."""
        grid, count = self.qparams.qtype, max(self.elements, 1)
        network = self.network or (None, None, None)
        return QuantizerParity(
            tensor=self.source,
            grid=f"{grid.storage} {grid.quant_min}..{grid.quant_max}",
            reference="numpy" if self._apply is None else "torch",
            elements=self.elements,
            differing_given_input=self.differing,
            largest_given_input=self.largest,
            differing_in_network=network[0],
            largest_in_network=network[1],
            unexplained=network[2],
            differing_in_integers=self.integers,
            tie_rate=self.ties / count,
            saturated=self.saturated / count,
            non_finite=self.non_finite,
            noise_db=self._noise.sqnr_db,
        )


def codes_of(dequantized: Array, qparams: QParams) -> npt.NDArray[np.int64]:
    """The integer codes, less the zero point, behind `dequantized`, which lies on the grid of `qparams`."""
    value = np.asarray(dequantized, np.float64)
    with np.errstate(invalid="ignore"):
        steps = np.rint(value / _along(qparams.scale, qparams, value.ndim))
    steps = np.nan_to_num(steps, nan=2.0**40, posinf=2.0**40, neginf=-(2.0**40))
    return np.asarray(steps.astype(np.int64))


def _along(values: Array, qparams: QParams, ndim: int) -> Array:
    return numerics.along_axis(values, qparams.axis, ndim).astype(np.float64)


def activation_quantizers(model: ir.Model, remarks: list[Remark]) -> list[Quantizer]:
    """Activation quantizers of the main graph, in graph order; those of inner scopes are left out with a remark."""
    main = {id(node) for node in model.graph}
    fed = {str(v.name) for v in model.graph.inputs if v.name not in model.graph.initializers}
    seen = fed | main_values(model.graph).keys()
    found = [q for q in qdq.quantizers(model) if q.role == "activation" and not q.stored]
    whole = [q for q in found if id(q.nodes[0]) in main and str(q.input.name) in seen]
    hidden = [q.tensor for q in found if q not in whole]
    if hidden:
        text = f"{len(hidden)} quantizers inside control flow or functions are compared through the outputs only"
        remarks.append(Remark(f"{text}: {', '.join(hidden[:3])}", source="validate"))
    return whole


def tensors_of(model: ir.Model, meters: list[QuantizerMeter]) -> list[str]:
    """Tensors that onnxruntime must return for `meters`: made by nodes, each once."""
    made = main_values(model.graph)
    names = [name for meter in meters for name in (meter.source, meter.target)]
    return [name for name in dict.fromkeys(names) if name in made]


def pieces(feeds: Mapping[str, Array], size: int | None) -> Iterator[dict[str, Array]]:
    """`feeds` in pieces of `size` samples, so that inner tensors fit into memory; whole where `size` is None."""
    samples = next(iter(feeds.values())).shape[0] if size is not None else 0
    if size is None or samples <= size:
        yield dict(feeds)
        return
    for start in range(0, samples, size):
        yield {name: array[start : start + size] for name, array in feeds.items()}
