"""NaN and infinities in outputs, where the float form of the same file has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.base_compiler import Array
from onnxqat.deployment.deploy import float_form
from onnxqat.runtime.session import Session

Batch = Mapping[str, Array]


def broken(train: ir.Model, feeds: Sequence[Batch], runs: Mapping[str, Sequence[Batch]]) -> list[str]:
    """A sentence for each output of each run; nothing is computed where all values are finite.

    Args:
        train: the file handed in.
        feeds: what was run.
        runs: the outputs of each batch, by what readers call the run.
    """
    bad = {
        name: found for name, found in runs.items() if any(_gone(a).any() for batch in found for a in batch.values())
    }
    if not bad:
        return []
    session = Session(float_form(train), optimize=True, what="the float form")
    wanted = [session.run(batch) for batch in feeds]
    counts: dict[tuple[str, str], int] = {}
    for run, found in bad.items():
        for batch, float_batch in zip(found, wanted, strict=True):
            for name, value in batch.items():
                reference = float_batch[name]
                fits = reference.shape == value.shape
                usable = ~_gone(reference) if fits else np.ones(value.shape, bool)
                counts[run, name] = counts.get((run, name), 0) + int((_gone(value) & usable).sum())
    return [
        f"{run}: {count} NaN or infinite values in output {name!r}, where the float form has none"
        for (run, name), count in counts.items()
        if count
    ]


def _gone(value: Array) -> Array:
    found: Array = ~np.isfinite(value) if value.dtype.kind == "f" else np.zeros(value.shape, bool)
    return found
