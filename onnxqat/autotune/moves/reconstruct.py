"""Roundings and scales of activations learned block by block, from the best of the calibrated files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Learning
from onnxqat.autotune.reconstruction import rebuild
from onnxqat.errors import QatError

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME, WRITTEN = "reconstructed", "reconstructed.qdq.onnx"


class Move(Learning):
    """One run of ``onnxqat.reconstruct``."""

    name = NAME

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        start = search.calibrated
        assert start is not None
        search.task.tell(name)
        search.made(name)
        began, target = time.monotonic(), search.folder / "reconstructed.onnx"
        try:
            iterations = rebuild(
                start.path,
                target,
                search.parts.training,
                search.task.original,
                search.clock,
                reserve=search.reserve,
                seed=search.task.seed,
                device=search.task.device,
            )
        except QatError as error:
            search.remark(f"nothing was reconstructed: {error.message}")
            return
        if not iterations:
            search.leave_out([name])
            return
        options = {"iterations": iterations, "seed": search.task.seed, "device": search.task.device}
        line = search.task.sources.learn("reconstruct", start.attempt.written, WRITTEN, **options)
        commands = (*start.attempt.commands, line)
        search.judge(name, target, began=began, commands=commands, written=WRITTEN)
