"""From a float model and data to a QDQ file that keeps its accuracy, proven and handed off, within a budget of time."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from onnxqat import metrics, notebook_progress
from onnxqat.autotune import journal, moves, plan
from onnxqat.autotune.attempt import Attempt
from onnxqat.autotune.budget import Budget
from onnxqat.autotune.journal import Journal
from onnxqat.autotune.plan import Planned
from onnxqat.autotune.reproduce import Sources
from onnxqat.autotune.scoring import LARGEST_SAMPLES
from onnxqat.autotune.search import Search
from onnxqat.autotune.task import Parts, Task
from onnxqat.backends import schema
from onnxqat.data import preprocess as lines
from onnxqat.deployment.bundle import check_target
from onnxqat.deployment.handoff import handoff
from onnxqat.displayed import Displayed
from onnxqat.errors import CheckError, DataError
from onnxqat.graph import files_read, io, provenance
from onnxqat.graph.staging import scratch
from onnxqat.metrics._limits import AGREEMENT, LABELLED
from onnxqat.passes import convert_to_float32
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime import broken_model
from onnxqat.types import Remark
from onnxqat.validation.check_inputs import check_outputs, open_data
from onnxqat.validation.validate import validate
from onnxqat.verdict import MIN_SQNR

if TYPE_CHECKING:
    from onnxqat.data.preprocess import Preprocess
    from onnxqat.deployment.result import HandoffReport
    from onnxqat.validation.result import ValidationReport

MODEL, BUNDLE = "model.qdq.onnx", "bundle"


@dataclasses.dataclass(frozen=True)
class AutoResult(Displayed):
    """Result of :func:`auto`.

    Attributes:
        backend: name of the backend table, or its path.
        model: path of the QDQ file, the best of all attempts.
        plan: what was to be tried, and how long each would take, when the search began.
        attempts: in the order in which they were made.
        chosen: name of the best.
        commands: that make the best of the float model; of what was trained, up to the choice among its scores.
        drop: its loss.
        target_drop: largest loss that meets the target.
        measure: kind of the loss: ``accuracy``, ``agreement``, ``noise`` or ``score``.
        score: of the float model and of the best, on held-out samples; None where none was asked for.
        float_accuracy: top-1 of the float model as a share, where there are labels.
        samples: held-out samples that judged.
        validation: of the model, on held-out samples.
        bundle: of the hand-off; None where the compiler failed.
        failures: why checks failed; empty when all passed.
        remarks: what is worth knowing.
        seconds: wall time.
        cut_short: whether the budget ended a search that might have gained more.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_auto:from_result"

    backend: str
    model: Path
    plan: tuple[Planned, ...]
    attempts: tuple[Attempt, ...]
    chosen: str
    commands: tuple[str, ...]
    drop: float
    target_drop: float
    measure: str
    score: metrics.Scored | None
    float_accuracy: float | None
    samples: int
    validation: ValidationReport
    bundle: HandoffReport | None
    failures: tuple[str, ...]
    remarks: tuple[Remark, ...]
    seconds: float
    cut_short: bool = False

    @property
    def passed(self) -> bool:
        """Check whether nothing failed."""
        return not self.failures


@notebook_progress.shown("auto")
@broken_model.guard("model")
def auto(
    model: io.ModelSource,
    backend: str = "onnxruntime-cpu",
    *,
    data: Any,
    output: str | os.PathLike[str],
    preprocess: str | Preprocess | None = None,
    batch_size: int = 32,
    limit: int | None = None,
    budget: float = 600.0,
    target_drop: float | None = None,
    overrides: Overrides | None = None,
    keep_io_types: bool = True,
    score: metrics.ScoreSource | None = None,
    labels: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str | None = None,
    restart: bool = False,
    progress: Callable[[str], None] | None = None,
) -> AutoResult:
    """Calibrate, fine-tune where that is not enough, validate and hand off: the best within a budget of time.

    1. Every fifth sample is held out and judges. What costs least is tried first, until one attempt loses at most
       `target_drop`: the table's own calibration, other observers, compensated rounding, 16 bits or float for the layers
       that cost most (:data:`onnxqat.autotune.moves.ORDER`).
    2. Where none does, the best is fine-tuned, with the labels and against the float model, and reconstructed, until the
       loss is small enough or the budget is used up. Weights of 4 bits and less are trained with BatchNormalization kept,
       which is folded afterwards.
    3. The best of all is validated and handed to the compiler of `backend`.

    The budget bounds how much is tried, not the first calibration and the proofs, which every run has. From the first
    attempt on, the best is in the folder as ``so_far.qdq.onnx``, judged and not proven, whatever ends the run; a later
    run with the same arguments goes on from there, with a budget of its own.

    Args:
        model: float model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: name of a backend table, or path of one.
        data: what :func:`onnxqat.data.data.open_data` takes; it is read more than once.
        output: folder for ``model.qdq.onnx`` and ``bundle/``.
        preprocess: preprocessing line for image folders.
        batch_size: samples a batch, where the model does not prescribe it.
        limit: largest number of samples.
        budget: seconds of wall time.
        target_drop: what may be lost: points of top-1, percent of noise, or units of `score` (of ``sqnr`` percent of
            noise); None: what :data:`onnxqat.autotune.scoring.TARGETS` says of the measure, or the metric itself.
        overrides: user choices that win over the table.
        keep_io_types: of a model in float16, bfloat16 or double: inputs and outputs keep their types, or become float32.
        score: metric or function of a :class:`onnxqat.metrics.Predictor`, higher is better, such as the mAP of a detector;
            it replaces the judgement on outputs, for the float model too. See :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        seed: of training.
        device: of training; None: CUDA where there is one.
        restart: try everything anew, whatever an earlier run has left in `output`.
        progress: called with a line at the beginning of each phase.

    Raises:
        ModelError: ``model-already-quantized``, and everything that :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing``, ``data-format`` (data that can be read only once), and what the source raises.
        BackendError: ``backend-unknown``, ``backend-table``, ``backend-opset``.
        UsageError: ``pattern-no-match``, ``option-invalid``, ``name-unknown``, ``score-failed``, ``score-output``.
    """
    clock = Budget(budget)
    original = io.load(model)
    check_outputs(original)
    origin = provenance.float_model(model, original)
    if not keep_io_types:
        original = convert_to_float32.convert(original, keep_io_types=False)
    if data is None:
        raise DataError("data-missing", "there is no data to learn from", hint="give --data")
    for name in (MODEL, journal.SO_FAR):
        files_read.plan(Path(output) / name)
    opened = open_data(original, data, preprocess, batch_size, limit, random_data=False)
    check_target(Path(output) / BUNDLE)
    parts, chosen = Parts.of(opened), overrides or Overrides()
    line = preprocess if preprocess is None or isinstance(preprocess, str) else lines.line(preprocess)
    shown = {"preprocess": line, "batch_size": None if batch_size == 32 else batch_size}
    placed = {} if keep_io_types else {"float32_io": True}
    of = journal.key(
        model=journal.digest(original, origin),
        backend=dataclasses.asdict(schema.load(backend)),
        overrides=chosen,
        data=dataclasses.asdict(opened.identity()),
        parts=(opened.samples, batch_size, limit, line, keep_io_types),
        score=score,
        seed=seed,
    )
    task = Task(
        original=original,
        file=Path(model) if isinstance(model, (str, os.PathLike)) and keep_io_types else None,
        backend=backend,
        overrides=chosen,
        target_drop=target_drop,
        score=score,
        labels=labels,
        seed=seed,
        device=device,
        sources=Sources(model, data, backend, parts.learned, parts.calibrated, shown, placed),
        tell=progress if progress is not None else lambda _: None,
    )
    record = Journal(Path(output), of, origin)
    with scratch() as folder:
        search = Search(task, parts, clock, record, folder)
        search.resume([] if restart else record.read(), None if restart else record.left())
        steps = moves.all_moves()
        planned = plan.of(search, steps)
        task.tell(f"plan: {', '.join(map(str, planned))}")
        plan.follow(search, steps)
        return _prove(search, planned, Path(output), record)


def _limits(search: Search) -> tuple[float | None, float | None]:
    """Limits of validation, points of top-1 and dB, that let pass what the target lets pass."""
    if search.measure in ("accuracy", "agreement"):
        usual = LABELLED.red if search.measure == "accuracy" else AGREEMENT.red
        return max(search.target_drop, usual), None
    if search.measure == "noise":
        return None, min(MIN_SQNR, -20 * math.log10(max(search.target_drop, 1e-9) / 100))
    return None, -math.inf  # a score of the user's judges


def _prove(search: Search, planned: tuple[Planned, ...], output: Path, record: Journal) -> AutoResult:
    """Save the best attempt, validate and hand it off on the held-out samples, and gather the result."""
    best, task, held = search.best, search.task, search.parts.held
    written = record.save(best.path, MODEL)
    search.say_what_to_expect(best)
    task.tell("validate")
    max_drop, min_sqnr = _limits(search)
    proof = validate(task.original, written, held.first(LARGEST_SAMPLES), max_drop=max_drop, min_sqnr=min_sqnr)
    failures = [f"validate: {failure}" for failure in proof.failures]
    task.tell("hand off")
    try:
        # What was proven on all held-out samples is not judged again on a few of them; only the compiler's numbers are.
        known = min_sqnr if search.measure == "noise" else -math.inf
        bundle = handoff(written, task.backend, output / BUNDLE, data=held, min_sqnr=known)
        failures += [f"handoff: {failure}" for failure in bundle.failures]
    except CheckError as error:
        bundle = None
        failures.append(f"handoff: {error.message}")
    if not search.met:
        failures.append(f"the best of {len(search.tried)} attempts loses {best.drop:.3g}, above {search.target_drop:g}")
    record.end()
    return AutoResult(
        backend=task.backend,
        model=written,
        plan=planned,
        attempts=tuple(tried.attempt for tried in search.tried),
        chosen=best.attempt.name,
        commands=best.attempt.commands,
        drop=best.drop,
        target_drop=search.target_drop,
        measure=search.measure,
        score=search.scored(best),
        float_accuracy=search.held_judge.float_accuracy,
        samples=search.held_judge.samples,
        validation=proof,
        bundle=bundle,
        failures=tuple(failures),
        remarks=tuple(dict.fromkeys(search.remarks)),
        seconds=search.clock.spent,
        cut_short=search.cut_short,
    )
