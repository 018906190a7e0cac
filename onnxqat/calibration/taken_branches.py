"""Branches of If that no calibration batch takes: what is behind such an If is known of the other branch alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.counts import counted
from onnxqat.graph import query, walk
from onnxqat.types import Remark

_SHOWN = 3  # branches that the message names; the remark has all of them
_OTHER = {"then_branch": "else_branch", "else_branch": "then_branch"}


class Conditions:
    """Conditions of If, and what they hold while a model runs.

    Args:
        model: that is run.
        fed: names of its inputs.

    Attributes:
        fetched: names of the conditions that the model computes, to be fetched behind all that is fetched otherwise.
        held: values of each condition that is no constant, by name.
    """

    def __init__(self, model: ir.Model, fed: Collection[str]) -> None:
        self.held: dict[str, set[bool]] = {str(value.name): set() for _, value in _choices(model)}
        self.fetched = [name for name in self.held if name not in fed]

    def take(self, feeds: Mapping[str, npt.NDArray[Any]], results: list[Any]) -> None:
        """Take in one batch: inputs from `feeds`, computed conditions from the end of `results`, which loses them."""
        for name in reversed(self.fetched):
            found = results.pop()
            if found is not None:  # None, or empty, where its branch did not run
                self.held[name].update(map(bool, found.ravel()))
        for name in self.held.keys() & feeds.keys():
            self.held[name].update(map(bool, np.ravel(feeds[name])))


def remarks(model: ir.Model, held: Mapping[str, Collection[bool]], ranges: Iterable[str]) -> list[Remark]:
    """One remark that names the branches that were never taken and have tensors of known range behind them.

    Args:
        model: that was calibrated.
        held: values of each condition; of one that never held any, the If itself never ran.
        ranges: names of the tensors that have a range.
    """
    wanted = set(ranges)
    untaken: dict[ir.Node, str] = {}
    for node, condition in _choices(model):
        values = held.get(str(condition.name), ())
        if len(set(values)) == 1:
            untaken[node] = "else_branch" if True in values else "then_branch"
    found = {node: _behind(node, wanted) for node in untaken}
    found = {node: names for node, names in found.items() if names}
    if not found:
        return []
    shown = [f"{untaken[node]} of {query.label(node)!r}" for node in found]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    others = {_OTHER[untaken[node]] for node in found}
    other = others.pop() if len(others) == 1 else "the branches taken"
    it, number = "it" if len(found) == 1 else "them", len(set().union(*found.values()))
    text = (
        f"no calibration batch takes {', '.join(shown[:_SHOWN])}{more}: the ranges of {counted(number, 'tensor')} behind "
        f"{it} are those of {other} alone, and other data may lose accuracy there; calibrate on data that take both"
    )
    return [Remark(text, tuple(query.label(node) for node in found), "calibrate", "result")]


def _choices(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Each If that placement reaches with a condition that is computed or fed."""
    for node in dataflow.in_order(model.graph):
        condition = node.inputs[0] if any(True for _ in dataflow.branches(node)) else None
        if condition is not None and condition.name and query.constant_tensor(condition) is None:
            yield node, condition


def _behind(node: ir.Node, names: set[str]) -> set[str]:
    """Those of `names` that `node` returns or that depend on what it returns."""
    return names & {str(value.name) for value in walk.outputs(dataflow.behind([node]))}
