"""The compiler's outputs beside execution in integers, where it is known how its kernels round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.base_compiler import Array, BaseCompiler
from onnxqat.deployment.outputs import OutputCheck
from onnxqat.errors import QatError


def against_integers(
    checks: tuple[OutputCheck, ...],
    found: Sequence[Mapping[str, Array]],
    model: ir.Model,
    compiler: BaseCompiler | None,
    batches: Sequence[Mapping[str, Array]],
) -> tuple[OutputCheck, ...]:
    """`checks` with the number of values that are not those of execution in integers.

    They are returned as they are where the compiler's arithmetic is not known, nothing of the model runs on integers, as
    with weights alone, torch is missing, or the bridge refuses the model.

    Args:
        checks: of the outputs.
        found: outputs of the compiler, one dict a batch.
        model: the QDQ model that was compiled.
        compiler: which made `found`.
        batches: feeds by input name.
    """
    if compiler is None or compiler.arithmetic is None:
        return checks
    try:
        from onnxqat.bridge.integer.model import to_integer

        executed = to_integer(model, arithmetic=compiler.arithmetic)
        if not executed.kernels:
            return checks
        runs = [executed.run(feeds).outputs for feeds in batches]
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        return checks
    except QatError:
        return checks
    counted = []
    for check in checks:
        unlike = sum(_differing_count(run, made, check.output) for run, made in zip(runs, found, strict=True))
        counted.append(dataclasses.replace(check, unlike_integers=unlike))
    return tuple(counted)


def _differing_count(run: Mapping[str, Array], made: Mapping[str, Array], output: str) -> int:
    mine, theirs = run[output], made[output]
    if mine.shape != theirs.shape:
        return int(theirs.size)
    same = (mine == theirs) | ((mine != mine) & (theirs != theirs))  # NaN is NaN
    return int(np.count_nonzero(~same))
