"""Fine-tuning of the best of the calibrated files, against the float model and with the labels where there are some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.autotune.moves._base import Learning

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME = "fine-tuned"


class Move(Learning):
    """One run of ``onnxqat.finetune``."""

    name = NAME

    def run(self, search: Search, name: str) -> None:
        """See the base class."""
        calibrated = search.calibrated
        assert calibrated is not None
        search.train(name, calibrated, seed=search.task.seed)
