"""Passes in a row: names that one of them takes or makes are taken for those behind it."""

import onnx_ir as ir

from onnxqat.graph import build
from onnxqat.passes import _base
from onnxqat.passes._base import Context, Pass, Rewrite
from tests.passes.checks import parse

TEXT = "g (float[2] x) => (float[2] y) { [a] t = Neg(x) [b] y = Relu(t) }"


class Renames(Pass):
    """Gives the first node a name that it does not ask for."""

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        model.graph[0].name = "new"
        return Rewrite(True)


class Asks(Pass):
    """Asks for a name, and makes nothing of it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        self.seen.append(context.names.fresh("new"))
        return Rewrite(False)


def test_names_follow_what_passes_before_did() -> None:
    asks = Asks()
    _base.run_passes(parse(TEXT), [asks, asks, Renames(), asks])
    assert asks.seen == ["new", "new", "new_1"]


def test_names_are_looked_up_again_only_after_a_change(monkeypatch) -> None:
    made = []
    names = build.Names
    monkeypatch.setattr(build, "Names", lambda model: made.append(model) or names(model))

    class Idle(Pass):
        def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
            return Rewrite(False)

    _base.run_passes(parse(TEXT), [Idle(), Idle(), Renames(), Idle(), Idle()])
    assert len(made) == 2
