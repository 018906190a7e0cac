"""Find channels of very different size in front of a SiLU on calibration data, and equalize them.

It has the purpose of cross-layer equalization (CLE: Nagel et al., "Data-Free Quantization Through Weight Equalization
and Bias Correction", ICCV 2019) and is not it. CLE balances the weight ranges of neighbouring layers, without data,
across functions that commute with positive factors (Relu). Here the ranges are those of activations on data, the
function is a SiLU, and weights keep scales per channel. As in SmoothQuant (Xiao et al., ICML 2023) the range of an
activation's channels moves into the weights behind; unlike there it moves as a whole, with no exponent to choose.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.calibration.runner import calibrate
from onnxqat.data.data import Data
from onnxqat.passes import _base
from onnxqat.passes.equalize_silu import EqualizeSilu, channels
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.runtime import vendor_operators
from onnxqat.types import QType, Remark, TensorSpec

_PER_CHANNEL = TensorSpec(QType.of(8, signed=False), symmetric=False, granularity="channel", axis=1)


def equalize(model: ir.Model, table: Backend, chosen: NodeSelection, data: Data) -> tuple[Remark, ...]:
    """Run :class:`~onnxqat.passes.equalize_silu.EqualizeSilu` on the main graph of `model`, in place.

    Costs a pass over the data where the graph has a place for it. It is left out where weights of convolutions have
    one scale per tensor, whose range the factors could widen, and where the data can be read only once.

    Args:
        model: prepared float model.
        table: backend table, overrides applied.
        chosen: nodes that the user took out; they are left as they are.
        data: calibration data.
    """
    row = table.ops.get("Conv")
    weight = row.input_slot(1) if row is not None else None
    if weight is None or weight.use is None or table.types[weight.use].granularity != "channel":
        return ()
    left_out = [node for node in model.graph if chosen.reason(node)]
    names = list(channels(model.graph, left_out))
    if not names:
        return ()
    if not data.repeatable:
        return (Remark("channels were not equalized: the calibration data can be read only once", (), "calibrate"),)
    observers = calibrate(vendor_operators.runnable_part(model), dict.fromkeys(names, _PER_CHANNEL), data)
    seen = {name: observer for name, observer in observers.items() if observer.count}
    ranges = {name: o.range() for name, o in seen.items()}
    step = EqualizeSilu(ranges, behind=_fuses_product(table), powers=any(c.inner == "pair" for c in table.fused))
    return _base.rewrite(model, [step]).remarks


def _fuses_product(table: Backend) -> bool:
    """Check whether the backend fuses a SiLU and a product by constants into the convolution in front."""
    return any("Conv" in c.chain[0] and ("Silu",) in c.chain and ("Scale",) in c.chain for c in table.fused)
