"""Error at the outputs of the network for each candidate range of each tensor.

What a layer makes of an error says little about what the network makes of it: on MobileNetV2 two sums of residual
branches cause most of the noise at the logits, and the outliers that set their ranges leave no trace there. So each
tensor is put on its grid alone; those that cost most try all their candidates. At 8 bits errors of different tensors
hardly go together, so that what is chosen for one holds beside all others; with few bits they do, which
:mod:`onnxqat.calibration.range_choice` looks at last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import fed_grids
from onnxqat.calibration.fed_grids import FedGrids
from onnxqat.calibration.output_parts import Shares
from onnxqat.calibration.work import NODE
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, samples_of
from onnxqat.graph import edit, walk
from onnxqat.runtime.session import Session
from onnxqat.types import QParams

if TYPE_CHECKING:
    from onnxqat.calibration.range_group import Group

SAMPLES = (4, 64)
"""Least and largest number of samples that candidates are compared on: each costs a run of the network for each candidate.
On 4 or 8, ranges that were chosen one by one do worse than one observer for all tensors; values of one sample go together,
so that large outputs need as many."""

MORE_SAMPLES = 256
"""Largest number of samples that ranges of all tensors together are compared on. Ranges that were chosen one by one suit the
samples that they were chosen on better than others, by 2 dB and more, and one observer for all does not: on the same samples
the comparison of the two would favour the former."""

MORE_RUNS = 16
"""Comparisons of ranges of all tensors together, about."""

NOISE = 0.9
"""Share of the noise at the outputs whose tensors try all candidates; the others change little, whatever they take."""

RUNS = 256
"""Tensors that are tried at most; those further behind in larger networks keep the choice that they have."""

SECONDS = 15.0
"""Expected time of all trials up to which candidates are compared on more than the least number of samples."""

MOST_SECONDS = 60.0
"""Expected time after which no more candidates are tried, of which a third is for each tensor alone on its first range. It is
that of networks with seconds for each run; a MobileNetV2 takes half of it."""


def errors(network: Network, groups: Sequence[Group]) -> npt.NDArray[np.float64]:
    """Error that the tensors of one group alone lead to, by candidate.

    Args:
        network: made for `groups`.
        groups: tensors that share a range each, with a choice.

    Returns:
        float64 (groups, candidates); NaN for what was not tried.
    """
    found = np.full((len(groups), max(len(group.candidates) for group in groups)), np.nan)
    tried = range(min(len(groups), RUNS))
    start = network.seconds
    first = network.batches_within(MOST_SECONDS / 3 / len(tried))
    alone = {row: network.error({row: groups[row].chosen}, first) for row in tried}
    for row in _loudest(alone):
        if network.seconds - start > MOST_SECONDS:
            break
        group = groups[row]
        if first < network.batches:
            alone[row] = network.error({row: group.chosen})
        for index, qparams in enumerate(group.candidates.values()):
            found[row, index] = alone[row] if qparams is group.chosen else network.error({row: qparams})
    return found


def _loudest(noise: dict[int, float]) -> Iterable[int]:
    """The rows that make up :data:`NOISE` of all, the worst first."""
    finite = {row: value for row, value in noise.items() if np.isfinite(value)}
    left = NOISE * sum(finite.values())
    for row in sorted(finite, key=lambda r: -finite[r]):
        if left <= 0:
            return
        left -= finite[row]
        yield row


class Network:
    """The float network whose tensors lie on grids that are fed, or on none.

    Args:
        model: float model that onnxruntime runs; it is not changed.
        groups: tensors that share a range each.
        data: calibration data that can be read again.
        work: expected seconds of a run of one sample (:mod:`onnxqat.calibration.work`).

    Attributes:
        parts: how many parts the outputs have that are compared; without any there is no error to tell.
        seconds: expected time of all runs so far.

    Raises:
        ModelError: onnxruntime does not run the model.
    """

    def __init__(self, model: ir.Model, groups: Sequence[Group], data: Data, work: float = 0.0) -> None:
        grids = FedGrids(model, len(groups))
        graph = grids.graph
        self._shares, self._shares_of_more = Shares(model), Shares(model)
        self._feeds, self._more = list[Feeds](), list[Feeds]()
        self.parts = self._shares.count
        self._count, self._name = len(groups), grids.name
        self._work, self.seconds = work + NODE * len(groups), 0.0
        values = {str(v.name): v for v in [*graph.inputs, *walk.outputs(graph)]}
        for row, group in enumerate(groups):
            for name, consumers in group.members:
                value = values.get(name)
                uses = [] if value is None else [(n, i) for n, i in value.uses() if _is_consumer(n, i, consumers)]
                if value is not None and uses:
                    edit.rewire(uses, grids.on_grid(row, value))
        graph.sort()
        if not self.parts:
            return
        self._session = Session(grids.model, optimize=True, what="the float model with candidate ranges", sized=model)
        runs = len(groups) + sum(len(group.candidates) for group in groups) / 2
        self._feeds = self._expected(data, SAMPLES[1], runs, self._shares)
        self._more = self._expected(data, MORE_SAMPLES, MORE_RUNS, self._shares_of_more)

    def _expected(self, data: Data, most: int, runs: float, shares: Shares) -> list[Feeds]:
        """Batches from all over `data`, up to `most` samples and as many as so many runs have the time for.

        `shares` gets the outputs that they should lead to.
        """
        most = int(min(most, max(SAMPLES[0], SECONDS / (self._work * runs))))
        found: list[Feeds] = []
        for feeds in data.few(most, batch_size=SAMPLES[0]):
            shares.expect(feeds, self._run(feeds, fed_grids.off(self._count)))
            found.append(feeds)
        return found

    @property
    def batches(self) -> int:
        """Number of batches that :meth:`error` runs on."""
        return len(self._feeds)

    def batches_within(self, seconds: float) -> int:
        """Number of batches, one at least, that are expected to run in that time."""
        count, left = 0, seconds
        for feeds in self._feeds:
            left -= self._work * samples_of(feeds)
            if left < 0:
                break
            count += 1
        return max(count, 1)

    def error(self, on: Mapping[int, QParams], batches: int | None = None) -> float:
        """Relative squared error to be expected of other samples at most, summed over the outputs, with some tensors on grids.

        Args:
            on: number of group, whose tensors lie on a grid, to its parameters.
            batches: run on so many of the first batches.
        """
        grids = self._grids(on)
        return self._shares.at_most(self._run(feeds, grids) for feeds in self._feeds[:batches])

    def error_on_more(self, on: Mapping[int, QParams]) -> float:
        """The same on as many samples as there is time for in few comparisons."""
        grids = self._grids(on)
        return self._shares_of_more.at_most(self._run(feeds, grids) for feeds in self._more)

    def _grids(self, on: Mapping[int, QParams]) -> npt.NDArray[np.float32]:
        grids = fed_grids.off(self._count)
        for row, qparams in on.items():
            grids[row] = fed_grids.row(qparams)
        return grids

    def _run(self, feeds: Feeds, grids: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
        self.seconds += self._work * samples_of(feeds)
        return self._session.run({**feeds, self._name: grids}, self._shares.names)


def _is_consumer(node: ir.Node, index: int, consumers: frozenset[tuple[str, int]] | None) -> bool:
    return consumers is None or (str(node.name), index) in consumers
