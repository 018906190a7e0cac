"""Roundings and scales of activations learned block by block, from the best of the calibrated files."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar

from onnxqat.autotune.moves._base import Learning
from onnxqat.autotune.reconstruction import rebuild
from onnxqat.errors import QatError

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME = "reconstructed"


class Move(Learning):
    """One run of ``onnxqat.reconstruct``.

    Attributes:
        options: of that run.
        written: name of the file that its command writes.
        share: part of the budget that it takes at most.
    """

    name = NAME
    options: ClassVar[dict[str, Any]] = {}
    written: ClassVar[str] = "reconstructed.qdq.onnx"
    share: ClassVar[float] = math.inf

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        start = search.calibrated
        assert start is not None
        search.task.tell(name)
        search.made(name)
        began, target = time.monotonic(), search.folder / "reconstructed.onnx"
        options = {**self.options, "seed": search.task.seed, "device": search.task.device}
        try:
            iterations = rebuild(
                start.path,
                target,
                search.parts.training,
                search.task.original,
                search.clock,
                reserve=search.reserve,
                options=options,
                seconds=self.share * search.clock.seconds,
            )
        except QatError as error:
            search.remark(f"{name}: {error.message}")
            return
        if not iterations:
            search.leave_out([name])
            return
        line = search.task.sources.learn(
            "reconstruct", start.attempt.written, self.written, iterations=iterations, **options
        )
        commands = (*start.attempt.commands, line)
        search.judge(name, target, began=began, commands=commands, written=self.written)
