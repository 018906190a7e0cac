"""Noise that many quantizers share: those that bring several times their part of it, as gradients tell.

No run shows one of them beside the noise of all, and to measure each there are too few runs. A gradient may be off by a
factor for one quantizer; over many that evens out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from onnxqat.insertion.choices import Choices, merged
from onnxqat.insertion.culprits import Unit
from onnxqat.insertion.effects import Effect, Effects
from onnxqat.insertion.remedies import Remedy

DRAWS = 32
"""Draws of signs for each sample. Of a YOLOX-Nano with 16.5 dB, the 50 activations of most noise in float leave 21.0 dB by
8 draws on four samples, and 22.1 dB by 24."""

TIMES = 2.0
"""Noise that is worth a node in float, as a multiple of the part of each integer node: of noise that is spread evenly no
node is worth it."""

LOOKED = 64
"""Quantizers that are looked at, as placing again what each remedy leads to takes half a second in all: in networks of
thousands as many are worth it, and the noisiest bring most."""

WIDE = 0.5
"""Cost of a node of 16 bits beside that of a node in float."""


def worthwhile(
    effects: Effects,
    noise: Mapping[Unit, float],
    enough: float,
    most: float,
    choices: Choices,
    remedy: Callable[[Unit, Choices], Remedy | None],
) -> Iterator[tuple[Unit, Remedy, float]]:
    """Yield the quantizers to relieve, the noisiest first, each with its remedy and the noise that goes with it.

    A node in float takes all quantizers around it along, which counts.

    Args:
        effects: of choices on the quantizers.
        noise: that each quantizer brings.
        enough: noise that may stay.
        most: nodes in float at most, beyond those of `choices`.
        choices: made so far.
        remedy: gives the one for a quantizer beside choices, None where there is none.
    """
    units, now = sorted(noise, key=lambda unit: (-noise[unit], unit)), effects.of(choices)
    left = sum(noise.values())
    for unit in units[:LOOKED]:
        worth = TIMES * left / max(effects.integer_nodes, 1)
        if left <= enough or noise[unit] < worth:
            break
        found = None if now.on.isdisjoint(unit) else remedy(unit, choices)
        if found is None:
            continue
        beside = merged([choices, found[1]])
        after = effects.of(beside)
        gone = sum(noise[u] for u in units if _is_relieved(u, now, after))
        cost = found[0].cost if found[0].kind == "float" else WIDE * len(found[0].nodes)
        if cost <= most and gone >= worth * cost:
            choices, now, left, most = beside, after, left - gone, most - cost
            yield unit, found, gone


def _is_relieved(unit: Unit, before: Effect, after: Effect) -> bool:
    """Check whether `unit` is quantized before, and not after."""
    return not before.on.isdisjoint(unit) and after.on.isdisjoint(unit)
