"""Saturation of 8-bit products by the processor of this machine."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.calibration.saturation import layers
from onnxqat.counts import counted
from onnxqat.errors import QatError
from onnxqat.graph import query
from onnxqat.types import Remark

_VECTORS = {"sse4_1", "avx", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"}
_VECTOR_NEURAL = {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"}


@functools.cache
def saturates() -> bool:
    """Check whether uint8 x int8 kernels add pairs of products at 16 bits with saturation: x64 without VNNI.

    Measured on such a processor with onnxruntime 1.32: 49 output steps of difference with int8 activations in a
    default session, none with the session option ``session.x64quantprecision=1``, and none where weights lie in
    -64..63. False where the system does not tell.
    """
    return bool(features()) and not features() & _VECTOR_NEURAL


@functools.cache
def features() -> frozenset[str]:
    """Vector and integer extensions of an x64 processor that kernels use; none where the system does not tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    return frozenset(flags & _VECTORS)


def precise(model: ir.Model) -> bool:
    """Check whether integer kernels must be kept from saturating, so that they compute as the compiler of `model` does.

    True on a processor that saturates, for a file whose table is that of a compiler for other processors: one that does
    not keep products from saturating, or a user's own that is not here. False for a file that names no table.
    """
    return saturates() and not meant(model)


def meant(model: ir.Model) -> bool:
    """Check whether `model` may be for processors that saturate: its table says so, or it names none."""
    name = model.metadata_props.get("onnxqat.backend")
    if not name:
        return True
    try:
        table = schema.load(name)
    except QatError:
        return False  # a table of one's own describes a chip; for processors with AVX2 there is one here
    return any(kind.reduce_range or kind.saturates for kind in table.types.values())


def saturation(model: ir.Model, *, precise: bool = False) -> list[Remark]:
    """A remark where this processor saturates the 8-bit products of `model` in integer kernels.

    Args:
        model: the QDQ model.
        precise: the session that is meant does not use these kernels, see :func:`precise`.
    """
    wide = layers(model) if saturates() else []
    if not wide:
        return []
    if precise:
        text = (
            "this processor has no VNNI, and its integer kernels would saturate, which "
            f"{model.metadata_props['onnxqat.backend']} does not: the default session runs with the session option "
            "session.x64quantprecision=1"
        )
        return [Remark(text, source="machine")]
    text = (
        f"this processor has no VNNI: integer kernels add products of 8-bit weights at 16 bits, which can saturate in "
        f"{counted(sum(count for _, count in wide), 'channel')} of {counted(len(wide), 'layer')}; insert-qdq --safe-range raises the scales of "
        "such channels, and onnxruntime's session option session.x64quantprecision=1 avoids it"
    )
    return [Remark(text, tuple(query.label(node) for node, _ in wide), "machine")]
