"""Execution of ``onnxqat train``: log level, processes, the run."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable

from onnxqat import printing
from onnxqat.compat.classification import processes
from onnxqat.compat.classification.run import Result, run
from onnxqat.compat.classification.settings import LOG_LEVELS, Settings


def train(settings: Settings, *, quiet: bool = False) -> Result | None:
    """Run as `settings` say, in as many processes.

    Args:
        settings: the arguments.
        quiet: print no lines.

    Returns:
        Result of the run; None where it ran in processes of its own.

    Raises:
        QatError: whatever is wrong.
    """
    found: list[Result] = []
    processes.start(
        _Work(settings, quiet, found),
        each_gpu=settings.multiprocessing_distributed,
        world_size=settings.world_size,
        rank=settings.rank,
        dist_url=settings.dist_url,
    )
    return found[0] if found else None


@dataclasses.dataclass
class _Work:
    """The run of one process; `found` gets its result where that is this process."""

    settings: Settings
    quiet: bool
    found: list[Result]

    def __call__(self, gpu: int | None) -> None:
        settings = self.settings if gpu is None else dataclasses.replace(self.settings, gpu=None)
        logger = logging.getLogger("onnxqat")
        level, handler = logger.level, logging.StreamHandler(sys.stderr)
        handler.setFormatter(printing.LogFormatter("%(levelname)s: %(message)s"))
        logger.setLevel(LOG_LEVELS[settings.log_level])
        logger.addHandler(handler)
        say: Callable[[str], None] = _discard_line if self.quiet else printing.echo
        try:
            self.found.append(run(settings, say))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


def _discard_line(line: str) -> None:
    """With --json, lines would spoil the output."""
