"""Fine-tuning of the best file so far, against the float model and with the labels where there are some."""

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
        search.train(name, search.start_of_training, seed=search.task.seed)
