"""Run a recipe: the passes behind its names, made for a backend, with those of the user's between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.passes import _base
from onnxqat.passes._base import Pass, Rewrite
from onnxqat.passes._setting import Setting
from onnxqat.pipeline import lookup
from onnxqat.pipeline.added import Added


def steps(recipe: Sequence[str], setting: Setting, added: Sequence[Added] = ()) -> list[Pass]:
    """The passes of `recipe` that have a part for `setting`, and those of `added` whose places are in it."""
    return list(_steps(recipe, setting, added))


def rewrite(model: ir.Model, recipe: Sequence[str], setting: Setting, added: Sequence[Added] = ()) -> Rewrite:
    """Run `recipe` on `model` itself, which the caller owns; errors as of :func:`onnxqat.passes._base.run_passes`."""
    return _base.rewrite(model, steps(recipe, setting, added))


def _steps(recipe: Sequence[str], setting: Setting, added: Sequence[Added]) -> Iterator[Pass]:
    for name in recipe:
        here = [lookup.find(name)]
        before, after = ([a.found for a in added if (a.anchor, a.side) == (name, side)] for side in ("before", "after"))
        for found in (*before, *here, *after):
            step = lookup.made(found, setting)
            if step is not None:
                yield step
