"""The search: attempts so far, the best of them, and what moves need to make another."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir

from onnxqat import metrics
from onnxqat.autotune.attempt import Attempt, Tried
from onnxqat.autotune.budget import Budget
from onnxqat.autotune.journal import Journal
from onnxqat.autotune.reproduce import CALIBRATED
from onnxqat.autotune.scoring import LARGEST_SAMPLES, TARGETS, Judge, Measure
from onnxqat.autotune.task import CALIBRATION_SAMPLES, Parts, Task
from onnxqat.autotune.tuning import Tuning
from onnxqat.autotune.variants import Variant
from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.errors import QatError
from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
from onnxqat.shell import command
from onnxqat.types import Remark

FEW_BITS = 4
"""Largest width of weights that are trained with BatchNormalization kept, where the table can fold it afterwards."""

PASSES = 30
"""Passes of the float model over the calibration data that a calibration takes, about, until one was timed."""

RESERVE = 0.1
"""Share of the budget that is kept for the proofs at most: they run the files on held-out samples, which takes a part of what a
calibration does."""

FOLDED = "model.qdq.onnx"
"""Name of what the last command writes where BatchNormalization was kept for training."""


class Search:
    """Attempts so far.

    Args:
        task: what is asked for.
        parts: of the data.
        clock: the budget.
        journal: record on the disk.
        folder: for what is not kept.

    Attributes:
        tried: all attempts, in order.
        cut_short: whether the budget ended something that might have gained more.
    """

    def __init__(self, task: Task, parts: Parts, clock: Budget, journal: Journal, folder: Path) -> None:
        self._task, self._parts, self._journal = task, parts, journal
        self.clock, self.folder = clock, folder
        self.remarks: list[Remark] = list(parts.remarks)
        self.tried: list[Tried] = []
        self.cut_short = False
        self._names: set[str] = set()
        # A file that names no float model keeps the nearest codes of narrow weights, which its own teacher would need.
        self._file = task.file or io.save(task.original, folder / "float.onnx")
        session = Session(task.original, optimize=True, what="the float model")
        began = time.monotonic()
        self.held_judge = Judge(session, parts.held)
        self._pass_seconds = (time.monotonic() - began) / max(self.held_judge.samples, 1)
        self._score, self.float_score = self._resolved(session)
        self.measure: Measure = self.held_judge.measure if self._score is None else "score"
        usual = TARGETS[self.measure] if self._score is None else self._score.default_drop
        self.target_drop = usual if task.target_drop is None else task.target_drop
        self._say_what_judges()

    def _resolved(self, session: Session) -> tuple[metrics.Score | None, float | None]:
        metrics.check_labels(self._task.score, self._task.labels)
        if self._task.score is None:
            return None, None
        reference = metrics.Predictor.of_session(session, self._file)
        score = metrics.resolve(self._task.score, data=self._parts.held, reference=reference, labels=self._task.labels)
        return score, score(reference)

    def _say_what_judges(self) -> None:
        unused = self.held_judge.why_unlabelled if self._score is None else None
        if unused is not None:
            self.remark(unused)

    @property
    def original(self) -> ir.Model:
        """Float model."""
        return self._task.original

    @property
    def overrides(self) -> Overrides:
        """User choices."""
        return self._task.overrides

    @property
    def parts(self) -> Parts:
        """Parts of the data."""
        return self._parts

    @property
    def task(self) -> Task:
        """Request of the user."""
        return self._task

    @property
    def best(self) -> Tried:
        """The attempt that loses least, the earliest of equal ones."""
        return min(self.tried, key=lambda made: made.drop)

    @property
    def calibrated(self) -> Tried | None:
        """The best of those that were calibrated alone; None before the first."""
        return min((t for t in self.tried if t.variant is not None), key=lambda made: made.drop, default=None)

    @property
    def start_of_training(self) -> Tried:
        """The attempt to fine-tune: the best, or the best calibrated one where that can keep BatchNormalization."""
        calibrated = self.calibrated
        assert calibrated is not None
        return calibrated if self.bits(calibrated.path) <= FEW_BITS else self.best

    @property
    def met(self) -> bool:
        """Check whether the best meets the target."""
        return bool(self.tried) and self.best.drop <= self.target_drop

    @property
    def trains(self) -> bool:
        """Check whether torch is there."""
        return importlib.util.find_spec("torch") is not None

    @property
    def calibration_seconds(self) -> float:
        """Time of a calibration: the median of those that were made, else an estimate from the float model's."""
        known = [tried.attempt.seconds for tried in self.tried if tried.variant is not None]
        samples = min(self._parts.calibration.samples or CALIBRATION_SAMPLES, CALIBRATION_SAMPLES)
        return statistics.median(known) if known else PASSES * samples * self._pass_seconds

    @property
    def reserve(self) -> float:
        """Seconds that the proofs need at the end, of which a long calibration says little."""
        longest = max((tried.attempt.seconds for tried in self.tried if tried.variant is not None), default=0.0)
        return min(2 * longest, RESERVE * self.clock.seconds)

    def has(self, name: str) -> bool:
        """Check whether the attempt `name` was made, or found impossible."""
        return name in self._names

    def made(self, name: str) -> None:
        """Note that the attempt `name` was made, whatever came of it."""
        self._names.add(name)

    def count(self, prefix: str) -> int:
        """Count the attempts made whose names begin with `prefix`."""
        return sum(name.startswith(prefix) for name in self._names)

    def has_like(self, suffix: str) -> bool:
        """Check the same for any name that ends with `suffix`."""
        return any(name.endswith(suffix) for name in self._names)

    def variant(self, *, without: str | None = None) -> Variant:
        """Arguments of the best calibrated file, of those whose names do not begin with `without`; there is one."""
        made = [t for t in self.tried if t.variant is not None]
        allowed = [t for t in made if without is None or not t.attempt.name.startswith(without)]
        found = min(allowed, key=lambda tried: tried.drop).variant
        assert found is not None
        return found

    def bits(self, path: Path) -> int:
        """Fewest bits of a weight in the file `path`."""
        found = (q.qparams.qtype.bits for q in qdq.quantizers(io.load(path)) if q.role == "weight")
        return min(found, default=8)

    def remark(self, text: str) -> None:
        """Add what is worth knowing."""
        self.remarks.append(Remark(text, source="auto"))

    def leave_out(self, names: Sequence[str]) -> None:
        """Say what there was no time for."""
        self.remark(f"no time for: {', '.join(names)}")
        self.cut_short = True

    def resume(self, found: list[Tried], left: Tried | None) -> None:
        """Go on from the attempts of an earlier run, where the files of the best ones are there.

        Args:
            found: attempts that were over.
            left: the best of one that was not.
        """
        self.tried = found
        if not found or not self.best.path.is_file() or not (self.calibrated or self.best).path.is_file():
            self.tried = []
            return
        self._names.update(tried.attempt.name for tried in found)
        if left is not None and left.drop < self.best.drop:
            self._record(left)
        self.remark(f"{len(found)} attempts are those of an earlier run; --restart makes them anew")

    def insert(self, variant: Variant, *, quietly: bool = False) -> bool:
        """Calibrate and judge; returns whether that was possible.

        Args:
            variant: how.
            quietly: another way is tried where it is not; nothing is said then.

        Raises:
            QatError: of the first attempt, without which there is nothing.
        """
        self._task.tell(variant.name)
        began, path = time.monotonic(), self._journal.path(len(self.tried))
        try:
            result = self._insert(variant, path, batch_norm="fold")
        except QatError as error:
            if not self.tried:
                raise
            if not quietly:
                self._names.add(variant.name)
                self.remark(f"{variant.name}: {error.message}")
            return False
        if not self.tried:
            self.remarks.extend(result)
        line = self._task.sources.insert(variant, batch_norm="fold", limit=self._limit)
        self.judge(variant.name, path, began=began, variant=variant, commands=(line,))
        return True

    @property
    def _limit(self) -> int | None:
        samples = self._parts.training.samples
        return CALIBRATION_SAMPLES if samples is None or samples > CALIBRATION_SAMPLES else None

    def _insert(self, variant: Variant, path: Path, *, batch_norm: str) -> tuple[Remark, ...]:
        result = insert_qdq(
            self._file,
            self._task.backend,
            data=self._parts.calibration,
            output=path,
            overrides=variant.overrides,
            rounding=variant.rounding,
            equalize=variant.equalize,
            batch_norm=cast(Any, batch_norm),
        )
        return result.remarks

    def judge(
        self,
        name: str,
        path: Path,
        *,
        began: float,
        variant: Variant | None = None,
        commands: tuple[str, ...] = (),
        written: str = CALIBRATED,
    ) -> None:
        """Measure the file `path`, and record it as the attempt `name`.

        Args:
            name: for the report.
            path: of a deployed file; one outside the journal is copied there.
            began: when the attempt was begun, ``time.monotonic()``.
            variant: arguments of ``insert_qdq`` where that made it.
            commands: that make it.
            written: name of what the last of them writes.
        """
        drop, value = self.drop(path)
        kept = self._journal.path(len(self.tried))
        if path != kept:
            io.copy(path, kept)
        attempt = Attempt(name, drop, time.monotonic() - began, value, commands, written)
        self._names.add(name)
        if not self.tried or drop < self.best.drop:
            self._journal.keep(kept)
        self._record(Tried(attempt, kept, variant))

    def _record(self, made: Tried) -> None:
        self.tried.append(made)
        needed = [t.path for t in (self.best, self.calibrated) if t is not None]
        self._journal.write(self.tried, needed)

    def drop(self, path: Path) -> tuple[float, float | None]:
        """Loss of a quantized file, and its score where one is asked for."""
        if self._score is not None and self.float_score is not None:
            value = self._score(metrics.Predictor.of(path))
            return self._score.drop(self.float_score, value), value
        return self.held_judge.drop(Session(io.load(path), optimize=False, what="the quantized model").run), None

    def say_what_to_expect(self, best: Tried) -> None:
        """Say in answers what noise means, where a classifier was judged by noise since its held-out samples are few."""
        if self.measure != "noise" or not self.held_judge.has_classes:
            return
        session = Session(self.original, optimize=True, what="the float model")
        known = [next(iter(session.run(feeds).values())) for feeds in self._parts.training.few(LARGEST_SAMPLES)]
        run = Session(io.load(best.path), optimize=False, what="the quantized model").run
        changed = self.held_judge.expected_changes(run, known)
        self.remark(
            f"of 100 samples like these, about {changed:.2g} would get another answer than the float model's: "
            f"errors of {self.held_judge.samples} held-out samples at the outputs of all"
        )

    def scored(self, best: Tried) -> metrics.Scored | None:
        """Scores of the float model and of `best`; None where there is none."""
        if self._score is None or self.float_score is None or best.attempt.value is None:
            return None
        values = {"float": self.float_score, "quantized": best.attempt.value}
        drops = {"quantized": self._score.drop(self.float_score, best.attempt.value)}
        return metrics.Scored(self._score.name, self._score.against, values, drops, self._score.limits)

    def train(self, name: str, start: Tried, *, seed: int) -> bool:
        """Fine-tune `start` for the time that is left, and judge what comes of it; returns whether there was time."""
        self._task.tell(name)
        began = time.monotonic()
        path, kept = self._with_batch_norm(start)
        batches = self._parts.training.labelled()
        labelled = next(iter(batches))[1] is not None

        def deploy(trained: Path) -> Path:
            return Path(fold_batchnorm(trained, output=self.folder / "folded.onnx").model) if kept else trained

        best, value = self.best.drop, None

        def drop_of(file: Path) -> float:
            nonlocal value
            drop, value = self.drop(file)
            return drop

        def better(file: Path, drop: float, steps: int) -> None:
            """Keep the file of a run that is not over, where it is the best of all; one that is timed is no attempt."""
            if drop >= best:
                return
            lines, written = self._learned(start, steps, seed=seed, kept=kept)
            unfinished = Attempt(f"unfinished: {name}", drop, time.monotonic() - began, value, lines, written)
            self._journal.keep(file, unfinished if steps else None)

        tuning = Tuning(
            data=self._parts.training,
            labelled=labelled,
            teacher=self.original,
            judge=self.held_judge if self._score is None else None,
            drop_of=drop_of,
            deploy=deploy,
            target_drop=self.target_drop,
            seed=seed,
            device=self._task.device,
            better=better,
        )
        target = self.folder / "tuned.onnx"
        tuned = tuning.run(path, target, self.clock, reserve=self.reserve)
        self.remarks.extend(() if tuned.remark is None else (tuned.remark,))
        self.cut_short = tuned.cut_short
        self._names.add(name)
        if tuned.trained:
            lines, written = self._learned(start, tuned.steps, seed=seed, kept=kept)
            self.judge(name, deploy(target), began=began, commands=lines, written=written)
        return tuned.trained

    def _learned(self, start: Tried, steps: int, *, seed: int, kept: bool) -> tuple[tuple[str, ...], str]:
        """Commands of a run of `steps` steps from `start`, and the name of the file that they write."""
        sources, options = self._task.sources, {"max_steps": steps, "seed": seed, "device": self._task.device}
        tuned = f"tuned{len(start.attempt.commands)}.qdq.onnx"
        learned = sources.learn("finetune", start.attempt.written, tuned, **options)
        if not kept or start.variant is None:
            return (*start.attempt.commands, learned), tuned
        first = sources.insert(start.variant, batch_norm="keep", limit=self._limit)
        return (first, learned, command("fold-batchnorm", tuned, o=FOLDED)), FOLDED

    def _with_batch_norm(self, start: Tried) -> tuple[Path, bool]:
        """The file of `start`, or at few bits the same with BatchNormalization kept, where model and table have it."""
        variant = start.variant
        if variant is None or variant.overrides.exact or self.bits(start.path) > FEW_BITS:
            return start.path, False
        if not any(node.op_type == "BatchNormalization" for node in self.original.graph):
            return start.path, False
        path = self.folder / "kept.onnx"
        try:
            self._insert(variant, path, batch_norm="keep")
        except QatError as error:
            self.remark(f"BatchNormalization was folded before training: {error.message}")
            return start.path, False
        return path, True
