"""Element types that torch does not compute in: float8, float6, float4 and integers of 2 and 4 bits, exactly.

Their layout in torch is the table in :mod:`onnxqat.bridge.importing.values`. Reading one gives float32 (:func:`decode`), which
holds every value; writing one rounds as ONNX's Cast 28 says (:func:`encode`). Rounding is done in float64, which holds
every number that can come in, so nothing is rounded twice. No gradient passes: a quantizer has one, a cast has none.

Element types are named as in ONNX's enumeration (``"FLOAT8E4M3FN"``), so that generated code is readable.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class FloatFormat:
    """A small binary float.

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
        bias: of the exponent.
        largest: largest finite value.
        overflow: what a value beyond that becomes where it does not saturate; None where it always does.
        dtype: torch type, None where torch has none and the bits lie in uint8.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: float
    overflow: float | None = None
    dtype: torch.dtype | None = None

    @property
    def lowest_exponent(self) -> int:
        """Exponent of the smallest normal number, which the subnormal ones share."""
        return 1 - self.bias


INFINITY, NAN = float("inf"), float("nan")
FLOAT_FORMATS = {
    "FLOAT8E4M3FN": FloatFormat(4, 3, 7, 448.0, NAN, torch.float8_e4m3fn),
    "FLOAT8E4M3FNUZ": FloatFormat(4, 3, 8, 240.0, NAN, torch.float8_e4m3fnuz),
    "FLOAT8E5M2": FloatFormat(5, 2, 15, 57344.0, INFINITY, torch.float8_e5m2),
    "FLOAT8E5M2FNUZ": FloatFormat(5, 2, 16, 57344.0, NAN, torch.float8_e5m2fnuz),
    "FLOAT6E2M3": FloatFormat(2, 3, 1, 7.5),
    "FLOAT6E3M2": FloatFormat(3, 2, 3, 28.0),
    "FLOAT4E2M1": FloatFormat(2, 1, 1, 6.0),
    "FLOAT16": FloatFormat(5, 10, 15, 65504.0, INFINITY, torch.float16),
    "BFLOAT16": FloatFormat(8, 7, 127, 3.3895313892515355e38, INFINITY, torch.bfloat16),
}
SMALL_INTEGERS = {"INT4": (4, True), "UINT4": (4, False), "INT2": (2, True), "UINT2": (2, False)}
SMALL_TYPES = frozenset({*SMALL_INTEGERS, *FLOAT_FORMATS, "FLOAT8E8M0"} - {"FLOAT16", "BFLOAT16"})


def rounded(x: torch.Tensor, kind: str, saturate: bool = True) -> torch.Tensor:
    """`x` rounded half to even to the values of float type `kind`; float64, NaN stays NaN."""
    spec = FLOAT_FORMATS[kind]
    wide = x.detach().to(torch.float64)
    _, exponent = torch.frexp(wide)  # the mantissa is in [0.5, 1)
    step = torch.ldexp(torch.ones_like(wide), torch.clamp(exponent - 1, min=spec.lowest_exponent) - spec.mantissa)
    result = torch.where(torch.isfinite(wide), torch.round(wide / step) * step, wide)
    result = torch.copysign(result, wide)
    if saturate or spec.overflow is None:
        return result.clamp(-spec.largest, spec.largest)
    beyond = torch.copysign(torch.full_like(result, spec.overflow), result)
    return torch.where(result.abs() > spec.largest, beyond, result)


def encode(x: torch.Tensor, kind: str, saturate: bool = True, round_mode: str = "up") -> torch.Tensor:
    """`x`, of any type that torch computes in, as element type `kind` in its container.

    Args:
        x: floats, integers or booleans.
        kind: one of :data:`SMALL_TYPES`.
        saturate: whether float8 clips what is out of range; otherwise it becomes infinite or NaN.
        round_mode: ``up``, ``down`` or ``nearest``, for float8e8m0.
    """
    if kind in SMALL_INTEGERS:
        return _encode_integer(x, *SMALL_INTEGERS[kind])
    if kind == "FLOAT8E8M0":
        return _encode_exponent(x, saturate, round_mode)
    spec = FLOAT_FORMATS[kind]
    values = rounded(x, kind, saturate)
    if spec.dtype is not None:
        # fnuz types have no negative zero: its bits are NaN.
        return (values + 0.0 if kind.endswith("FNUZ") else values).to(torch.float32).to(spec.dtype)
    magnitude = torch.nan_to_num(values.abs(), nan=0.0)
    _, exponent = torch.frexp(magnitude)
    exponent = torch.where(magnitude == 0, spec.lowest_exponent, exponent - 1)  # frexp says 0 for 0
    normal = torch.clamp(exponent, min=spec.lowest_exponent)
    fraction = torch.ldexp(magnitude, spec.mantissa - normal).to(torch.int64)
    code = fraction + ((normal - spec.lowest_exponent).to(torch.int64) << spec.mantissa)
    sign = torch.signbit(values).to(torch.int64) << (spec.exponent + spec.mantissa)
    return (code + sign).to(torch.uint8)


def _encode_integer(x: torch.Tensor, bits: int, signed: bool) -> torch.Tensor:
    """The low `bits` bits of an integer; a float is cut to an integer first."""
    whole: torch.Tensor = x.detach().to(torch.int64) & (2**bits - 1)
    if not signed:
        return whole.to(torch.uint8)
    return torch.where(whole >= 2 ** (bits - 1), whole - 2**bits, whole).to(torch.int8)


def _encode_exponent(x: torch.Tensor, saturate: bool, round_mode: str) -> torch.Tensor:
    """float8e8m0: a power of two, by the table of Cast 28.

    What is out of range, 0 and infinity among it, is clipped where it saturates and becomes NaN otherwise. Values
    around the smallest power, subnormal in float32, are compared with it: the bits of their exponent do not say
    whether they lie above it.
    """
    values = x.detach().to(torch.float32)
    bits = values.view(torch.int32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    smallest = 0x400000  # fraction of 2**-127 where the exponent is 0
    if round_mode == "up":
        more = torch.where(exponent > 0, fraction > 0, fraction > smallest)
    elif round_mode == "nearest":
        more = torch.where(exponent > 0, fraction >= smallest, fraction >= 0x600000)
    else:
        more = torch.zeros_like(fraction, dtype=torch.bool)
    code = exponent + more.to(torch.int32)
    below = (exponent == 0) & (fraction < smallest)
    beyond = (code > 0xFE) & ~torch.isnan(values)
    code = torch.where(beyond, 0xFE if saturate else 0xFF, code)
    code = torch.where(below, 0 if saturate else 0xFF, code)
    return torch.where(torch.isnan(values), 0xFF, code).to(torch.uint8)


def decode(codes: torch.Tensor, kind: str) -> torch.Tensor:
    """Decode a container of element type `kind` to float32; integers are returned as they are."""
    if kind in SMALL_INTEGERS:
        return codes
    if kind == "FLOAT8E8M0":
        bits = codes.to(torch.int32)
        shifted = torch.where(bits == 0, torch.full_like(bits, 0x400000), bits << 23)
        return torch.where(bits == 0xFF, torch.full_like(bits, 0x7FC00000), shifted).view(torch.float32)
    spec = FLOAT_FORMATS[kind]
    if spec.dtype is not None:
        return codes.to(torch.float32)
    code = codes.to(torch.int32)
    exponent = (code >> spec.mantissa) & (2**spec.exponent - 1)
    fraction = (code & (2**spec.mantissa - 1)) + torch.where(exponent > 0, 2**spec.mantissa, 0)
    power = torch.clamp(exponent, min=1) - spec.bias - spec.mantissa
    magnitude = torch.ldexp(fraction.to(torch.float32), power)
    return torch.where((code >> (spec.exponent + spec.mantissa)) & 1 == 1, -magnitude, magnitude)


class _Nearest(torch.autograd.Function):
    """float64 rounded once to the values of a narrower float; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, kind: str) -> torch.Tensor:
        return rounded(x, kind, saturate=False)

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def narrow_double(x: torch.Tensor, kind: str) -> torch.Tensor:
    """float64 as float16 or bfloat16 with one rounding; torch itself goes through float32 and rounds twice."""
    dtype = FLOAT_FORMATS[kind].dtype
    assert dtype is not None
    nearest: torch.Tensor = _Nearest.apply(x, kind)  # type: ignore[no-untyped-call]
    return nearest.to(dtype)


def convert(
    x: torch.Tensor,
    source: str,
    target: str,
    dtype: torch.dtype,
    saturate: bool = True,
    round_mode: str = "up",
) -> torch.Tensor:
    """Cast from or to one of :data:`SMALL_TYPES`.

    Args:
        x: the tensor, in the container of `source`.
        source: element type of `x`, empty where it is one that torch computes in.
        target: element type of the result.
        dtype: torch type of the result.
        saturate: see :func:`encode`.
        round_mode: see :func:`encode`.
    """
    values = decode(x, source) if source in SMALL_TYPES else x
    return encode(values, target, saturate, round_mode) if target in SMALL_TYPES else values.to(dtype)
