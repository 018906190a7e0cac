"""MQBench's names of observers, fake quantizers, modules and functions, with their counterparts in ONNX or here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxqat import discover

OBSERVERS: Mapping[str, Sequence[str]] = {
    # Of several names the first that there is an observer of.
    "MinMaxObserver": ("minmax",),
    "EMAMinMaxObserver": ("ema_minmax", "minmax"),
    "MinMaxFloorObserver": ("minmax_floor", "minmax"),
    "EMAMinMaxFloorObserver": ("ema_minmax", "minmax"),
    "PoTModeObserver": ("mode_minmax_floor", "mse"),
    "ModeMinMaxFloorObserver": ("mode_minmax_floor", "mse"),
    "EMAQuantileObserver": ("ema_quantile", "percentile"),
    "ClipStdObserver": ("clip_std", "percentile"),
    "LSQObserver": ("lsq", "mse"),
    "LSQPlusObserver": ("lsq_plus", "mse"),
    "MSEObserver": ("mse",),
    "EMAMSEObserver": ("ema_mse", "mse"),
}

POWERS_OF_TWO = frozenset(
    {"MinMaxFloorObserver", "EMAMinMaxFloorObserver", "PoTModeObserver", "ModeMinMaxFloorObserver"}
)
"""Observers that round the scale to a power of two; here the type says so (``pot_scale``)."""

METHODS = {
    "FixedFakeQuantize": "fixed",
    "LearnableFakeQuantize": "lsq",
    "LSQPlusFakeQuantize": "lsq_plus",
    "DoReFaFakeQuantize": "dorefa",
    "DSQFakeQuantize": "dsq",
    "PACTFakeQuantize": "pact",
    "TqtFakeQuantize": "tqt",
    "AdaRoundFakeQuantize": "adaround",
    "QDropFakeQuantize": "qdrop",
}

LOGARITHMIC = "NNIEFakeQuantize"

OPERATORS: Mapping[str, Sequence[str]] = {
    # Lower case name of a torch module or function, without a trailing 1d, 2d, 3d or _: ONNX operators.
    "abs": ("Abs",),
    "adaptive_avg_pool": ("GlobalAveragePool", "AveragePool"),
    "adaptiveavgpool": ("GlobalAveragePool", "AveragePool"),
    "add": ("Add",),
    "avg_pool": ("AveragePool",),
    "avgpool": ("AveragePool",),
    "batchnorm": ("BatchNormalization",),
    "bmm": ("MatMul",),
    "cat": ("Concat",),
    "celu": ("Celu",),
    "chunk": ("Split",),
    "clamp": ("Clip",),
    "conv": ("Conv",),
    "convtranspose": ("ConvTranspose",),
    "conv_transpose": ("ConvTranspose",),
    "div": ("Div",),
    "elu": ("Elu",),
    "embedding": ("Gather",),
    "exp": ("Exp",),
    "flatten": ("Flatten", "Reshape"),
    "gelu": ("Gelu",),
    "groupnorm": ("GroupNormalization",),
    "gru": ("GRU",),
    "hardsigmoid": ("HardSigmoid",),
    "hardswish": ("HardSwish",),
    "iadd": ("Add",),
    "imul": ("Mul",),
    "instancenorm": ("InstanceNormalization",),
    "interpolate": ("Resize",),
    "layer_norm": ("LayerNormalization",),
    "layernorm": ("LayerNormalization",),
    "leaky_relu": ("LeakyRelu",),
    "leakyrelu": ("LeakyRelu",),
    "linear": ("Gemm", "MatMul"),
    "log": ("Log",),
    "lstm": ("LSTM",),
    "matmul": ("MatMul",),
    "max_pool": ("MaxPool",),
    "maxpool": ("MaxPool",),
    "mean": ("ReduceMean",),
    "mul": ("Mul",),
    "permute": ("Transpose",),
    "pixelshuffle": ("DepthToSpace",),
    "pow": ("Pow",),
    "prelu": ("PRelu",),
    "relu": ("Relu",),
    "relu6": ("Clip",),
    "reshape": ("Reshape",),
    "rnn": ("RNN",),
    "selu": ("Selu",),
    "sigmoid": ("Sigmoid",),
    "softmax": ("Softmax",),
    "split": ("Split",),
    "sqrt": ("Sqrt",),
    "sub": ("Sub",),
    "sum": ("ReduceSum",),
    "tanh": ("Tanh",),
    "transpose": ("Transpose",),
    "truediv": ("Div",),
    "upsample": ("Resize",),
    "view": ("Reshape",),
}


def observer(name: str, known: Sequence[str]) -> tuple[str, bool]:
    """Our observer for MQBench's `name`, or for our own name, and whether it is the very same rule.

    Args:
        name: such as ``"MSEObserver"`` or ``"mse"``.
        known: the observers that there are.

    Raises:
        UsageError: ``name-unknown``, with close matches.
    """
    if name.replace("-", "_") in known:
        return name.replace("-", "_"), True
    if name not in OBSERVERS:
        raise discover.unknown("observer", name, [*OBSERVERS, *known])
    found = next(candidate for candidate in OBSERVERS[name] if candidate in known)
    return found, found == OBSERVERS[name][0]


def operators(kind: Any) -> tuple[str, ...]:
    """ONNX operators for a torch module class, a function, a method's name, or an ONNX operator's own name.

    Raises:
        UsageError: ``name-unknown``, with close matches.
    """
    name = kind if isinstance(kind, str) else str(getattr(kind, "__name__", type(kind).__name__))
    key = name.lower().strip("_").removesuffix("1d").removesuffix("2d").removesuffix("3d")
    if key in OPERATORS:
        return tuple(OPERATORS[key])
    if name[:1].isupper() and isinstance(kind, str):
        return (name,)
    raise discover.unknown("module or function", name, sorted(OPERATORS))
