"""User choices as options of ``insert-qdq``, for commands that make a file again."""

from __future__ import annotations

from typing import Any

from onnxqat.placement.table_overrides import Overrides


def options_of(overrides: Overrides) -> dict[str, Any]:
    """The options of ``insert-qdq`` that are `overrides`, as :func:`onnxqat.shell.command` takes them."""
    widths = (overrides.weight_bits, overrides.activation_bits)
    return {
        "exclude": overrides.exclude,
        "include": overrides.include,
        "exclude_op": overrides.exclude_ops,
        "bits": ",".join(map(str, widths)) if all(widths) else None,
        "bits_of": tuple(f"{pattern}={weights},{inputs}" for pattern, weights, inputs in overrides.node_bits),
        "first_last_bits": overrides.first_last_bits,
        "weight_only": overrides.weight_only,
        "block_size": overrides.block_size,
        "activations": overrides.activations,
        "activation_type": overrides.activation_type,
        "per_channel": overrides.per_channel is True,
        "per_tensor": overrides.per_channel is False,
        "observer": overrides.observer,
        "activation_observer": overrides.activation_observer,
        "weight_observer": overrides.weight_observer,
        "encodings": overrides.encodings,
        "reduce_range": overrides.reduce_range is True,
        "full_range": overrides.reduce_range is False,
        "safe_range": overrides.safe_range,
        "exact": overrides.exact,
        "integer": overrides.integer,
        "lut": None if overrides.lut is None else 2**overrides.lut,
        "scale_bits": None if overrides.scale_bits is None else ",".join(map(str, overrides.scale_bits)),
    }
