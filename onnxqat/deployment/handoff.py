"""QDQ model in, bundle for a target out: deploy form, real compilation, numbers compared, integer coverage."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnxqat import former_names, metrics, notebook_progress
from onnxqat._version import __version__
from onnxqat.backends import schema
from onnxqat.data import data as sources
from onnxqat.data import inputs as model_inputs
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data
from onnxqat.data.recorded import Recorded
from onnxqat.deployment import choice, float_reasons, graph_nodes, node_trace
from onnxqat.deployment.base_compiler import Array, BaseCompiler, CompilerResult, NodeResult
from onnxqat.deployment.bundle import MANIFEST, check_target, digest, digests, write_json, writing
from onnxqat.deployment.choice import compiler_of
from onnxqat.deployment.deploy import deploy_form, float_form
from onnxqat.deployment.finite import broken
from onnxqat.deployment.fold_batchnorm import bias_of, folded
from onnxqat.deployment.forms import _base as forms
from onnxqat.deployment.integer_comparison import against_integers
from onnxqat.deployment.layer_ranges import model_ranges
from onnxqat.deployment.matched_rows import Matched, matched, selected
from onnxqat.deployment.outputs import ROUNDING_STEPS, OutputCheck, check_outputs, output_quantizers
from onnxqat.deployment.reference import references
from onnxqat.deployment.result import Coverage, HandoffReport, coverage
from onnxqat.deployment.run.environment_compiler import EnvironmentCompiler
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.deployment.sample_batches import one_by_one, sample_inputs
from onnxqat.deployment.scores import Asked, Scoring
from onnxqat.deployment.verdicts import RUNS, Computed, Judged, accuracy, deployment, judge_output
from onnxqat.errors import CheckError, ModelError, UsageError
from onnxqat.graph import io, provenance, qdq, quantized_forms, quantizer_checks, query
from onnxqat.graph.bundles import COMMAND, REPORT
from onnxqat.linting import lint
from onnxqat.linting.rule import Finding
from onnxqat.runtime import broken_model
from onnxqat.runtime.session import Session
from onnxqat.shell import command
from onnxqat.types import Remark
from onnxqat.validation import machine, remedies
from onnxqat.validation.accuracy import AccuracyLimits
from onnxqat.validation.remedies import Given
from onnxqat.verdict import Verdict

if TYPE_CHECKING:
    from onnxqat.data.preprocess import Preprocess

__all__ = ["Coverage", "HandoffReport", "compiler_of", "handoff"]

MODEL, FLOAT = "model.onnx", "float.onnx"
Batch = Mapping[str, Array]
_TOOLS = ("onnx", "onnx-ir", "numpy")


@former_names.renamed(samples="limit")
@notebook_progress.shown("hand off")
@broken_model.guard("model")
def handoff(
    model: io.ModelSource,
    backend: str,
    output: str | os.PathLike[str],
    *,
    data: Any = None,
    preprocess: str | Preprocess | None = None,
    limit: int = 16,
    tolerance_lsb: float = 2.0,
    max_beyond: float = 0.01,
    timeout: float = 300.0,
    compiler: str | None = None,
    threads: int | None = None,
    trace: bool = True,
    float_model: io.ModelSource | None = None,
    score: metrics.ScoreSource | Sequence[metrics.ScoreSource] | None = None,
    labels: str | os.PathLike[str] | None = None,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> HandoffReport:
    """Write the bundle of a target: ``model.onnx``, the vendor's own files, ``report.json``, ``manifest.json``.

    1. A BatchNormalization that was kept for training goes into its layer. The deploy form is made, and
       must give the very bits of that in onnxruntime with optimizations off. Beside it lie the float model and its
       encodings, for tools that quantize by themselves.
    2. The backend's compiler compiles it in a process of its own and runs the samples. At most a share of
       `max_beyond` of an output may be further than `tolerance_lsb` steps from the reference, which is what rounding in
       another place costs, or the noise is small: see :func:`onnxqat.deployment.verdicts.judge_output`. A step is that of
       the output's quantizer, or 1/255 of the output's range. Rows that TopK or NonMaxSuppression chose are matched
       first. Where no compiler is installed, what the target refuses by its table fails (:func:`onnxqat.lint`).
    3. The scores of the float model, the file handed in and the compiled model: top-1 where there are labels, else
       agreement with the float model, and signal to noise, unless `score` says what.
    4. With `trace`, it is compiled once more with every quantized tensor as an output, and two samples tell how far
       the result of each node is from the reference, and how much of that the node adds by itself. Verdicts are the same
       without it.
    5. The folder takes the place of an older bundle only when it is complete.

    Args:
        model: QDQ model, in train or deploy form; it is not changed.
        backend: name of a backend table, or path of one.
        output: folder to write.
        data: what :func:`onnxqat.data.data.open_data` takes; without, the calibration data that `model` records,
            where they lie beside it or in the working folder, else random numbers.
        preprocess: preprocessing line for image folders.
        limit: largest number of samples to run.
        tolerance_lsb: see 2.
        max_beyond: see 2.
        timeout: seconds after which the compiler is stopped.
        compiler: another compiler than the one that the table names: a name, or the path of a file with a class
            ``Compiler``.
        threads: number of threads that the compiled model runs on, for a compiler that runs on this machine's processor;
            which kernels it chooses depends on that. Without, as many as it takes by itself.
        trace: see 4.
        float_model: the float model that `model` was made from; without, the one that `model` records, where it is found.
        score: metrics or functions of a :class:`onnxqat.metrics.Predictor`, one or several; see 3 and
            :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        max_drop: see :class:`onnxqat.validation.accuracy.AccuracyLimits`.
        min_sqnr: the same.
        progress: called with steps done and their number.

    Raises:
        ModelError: ``model-not-quantized``, ``output-not-writable``, and what :func:`onnxqat.graph.io.load` raises.
        BackendError: ``backend-unknown``, ``backend-table``, ``backend-opset``.
        UsageError: ``option-invalid``: a number, or `output` holds something else than a bundle or what is read; ``name-unknown`` and
            ``dependency-missing`` for `compiler`; ``score-failed``, ``score-output``.
        CheckError: ``handoff-failed``: the compiler refused the model, crashed or ran out of time.
    """
    for name, number in (("limit", limit), ("timeout", timeout), ("threads", threads)):
        if number is not None and number <= 0:
            raise UsageError("option-invalid", f"{name} is {number}; it must be above 0")
    if math.isnan(tolerance_lsb):
        raise UsageError("option-invalid", "tolerance_lsb is NaN; it must be a number")
    table, target = schema.load(backend), Path(output)
    check_target(target)
    train = io.load(model)
    if not qdq.is_quantized(train):
        raise quantized_forms.refusal(train, io.name_of(model)) or ModelError(
            "model-not-quantized", f"{io.name_of(model)} holds no quantizers", hint="run insert-qdq first"
        )
    quantizer_checks.check(train, io.name_of(model))
    remarks: list[Remark] = []
    chosen = choice.with_threads(compiler_of(table, remarks, compiler), threads, remarks)
    train = folded(train, bias_of(table), remarks)
    recorded = Recorded.of(train, model)
    data = recorded.data_or(data, remarks)
    opened = _opened(train, recorded, data, preprocess, limit, remarks)
    batches = _batches(opened, limit, remarks)
    original = float_model if float_model is not None else provenance.find_float(train, model)
    check_target(target)  # again, now that it is known what is read
    limits = _Limits(tolerance_lsb, max_beyond, timeout, trace, AccuracyLimits(max_drop, min_sqnr))
    asked = Asked(score, labels, original)
    kept, source = None if data is None else opened, remedies.data_of(data, recorded)
    job = _Job(io.name_of(model), train, table, chosen, batches, limits, remarks, kept, asked, source)
    return _make(job, target, _command(job, backend, target, data, preprocess, limit), _ticker(progress))


@dataclasses.dataclass(frozen=True)
class _Limits:
    tolerance_lsb: float
    max_beyond: float
    timeout: float
    trace: bool
    accuracy: AccuracyLimits


@dataclasses.dataclass(frozen=True)
class _Job:
    name: str
    train: ir.Model
    table: schema.Backend
    compiler: BaseCompiler | None
    batches: list[Batch]
    limits: _Limits
    remarks: list[Remark]
    data: Data | None
    asked: Asked
    source: str | os.PathLike[str] | None


def _make(job: _Job, target: Path, command: list[str], tick: Callable[[], None]) -> HandoffReport:
    """Write the bundle, which appears by one rename: deploy form, compiled files, verdicts, report, manifest."""
    deploy = deploy_form(job.train, job.table, job.remarks)
    tick()
    session = Session(job.train, optimize=False, what="the file handed in")
    inputs = sample_inputs(session, job.data)
    job = dataclasses.replace(job, batches=one_by_one(job.batches, inputs, job.data))
    reference, same = references(session, deploy, job.batches, job.table)
    scoring = Scoring(job.train, session, inputs, job.data, job.asked, job.remarks)
    job.limits.accuracy.check(scoring.asked_for)
    tick()
    with writing(target) as folder:
        io.save(deploy, folder / MODEL)
        written = _write_forms(job, folder)
        result = None if job.compiler is None else _compile(job, job.compiler, folder, scoring)
        tick()
        checks: tuple[OutputCheck, ...] = ()
        if result is not None and result.outputs:
            checks = _checked(job, result.outputs, reference)
        judged = _judge(checks, reference, job)
        failures = [] if same else ["the deploy form does not give the bits of the file handed in, in onnxruntime"]
        failures += _refusals(deploy, job.table) if result is None else _wrong(judged, result, job)
        files = (MODEL, *written, *(result.files if result is not None else ()), REPORT, MANIFEST)
        runs = {RUNS["file"]: reference, RUNS["compiled"]: () if result is None else result.outputs}
        lost = broken(job.train, job.batches, {name: run for name, run in runs.items() if run})
        verdicts = _verdicts(job, failures, judged, scoring, lost)
        failures += [v.reason for v in verdicts if v.status == "red" and v.reason not in failures]
        report = _report(job, target, deploy, result, checks, failures, files, same=same)
        report = dataclasses.replace(report, scores=scoring.scores, verdicts=verdicts)
        write_json(folder / REPORT, report.to_dict())
        write_json(folder / MANIFEST, manifest(report, job.compiler, folder, job.name, command))
    tick()
    return report


def _compile(job: _Job, compiler: BaseCompiler, folder: Path, scoring: Scoring) -> CompilerResult:
    """Compile the file in `folder` and run the samples; `scoring` gets the outputs of these and of its own batches."""
    path, limit = folder / MODEL, job.limits.timeout
    feeds = [*job.batches, *(scoring.feeds(job.batches) if compiler.runs_numbers else ())]
    result = compile_in_process(compiler, path, feeds, artefacts=folder, timeout=limit)
    if result.outputs:
        scoring.add_compiled(feeds, result.outputs, compiler.name)
        result = dataclasses.replace(result, outputs=result.outputs[: len(job.batches)])
    if not isinstance(compiler, EnvironmentCompiler):
        job.remarks.extend(machine.saturation(job.train))
    if not compiler.runs_numbers:
        text = f"{compiler.name} runs no numbers on this machine: that it takes the model was checked, not what it computes"
        job.remarks.append(Remark(text, source="handoff"))
    original = onnx.load(path, load_external_data=False)
    nodes = float_reasons.explained(result.nodes, original, compiler)
    job.remarks.extend(graph_nodes.unlisted(nodes, original, compiler.name) if nodes else ())
    if job.limits.trace and compiler.runs_numbers and compiler.traces:
        nodes = _traced(job, compiler, folder, nodes)
    return dataclasses.replace(result, nodes=nodes)


def _traced(job: _Job, compiler: BaseCompiler, folder: Path, nodes: tuple[NodeResult, ...]) -> tuple[NodeResult, ...]:
    """`nodes` with differences; as they are, with a remark, where the compiler does not take the extra outputs."""
    batches = job.batches[: node_trace.SAMPLES]
    path = folder / "traced.onnx"
    try:
        model, taps = node_trace.tapped(onnx.load(folder / MODEL))
        onnx.save(model, path)
        found = compile_in_process(compiler, path, batches, timeout=job.limits.timeout).outputs
        reference = [Session(io.load(path), optimize=False, what="the traced model").run(f) for f in batches]
        alone, sources = node_trace.forced(model, taps)
        onnx.save(alone, path)
        session = Session(io.load(path), optimize=False, what="the traced model")
        fed = [
            dict(feeds) | {n: made[tap] for n, tap in sources.items()}
            for feeds, made in zip(batches, found, strict=True)
        ]
        own = [session.run(feeds) for feeds in fed]
    except (CheckError, ModelError, ValueError) as error:  # the last: protobuf's limit of 2 GB
        text = f"differences by node are not known, the compiler does not take the outputs for them: {error.args[0]}"
        job.remarks.append(Remark(text, source="handoff"))
        return nodes
    finally:
        path.unlink(missing_ok=True)
    return node_trace.with_steps(nodes, taps, found, reference, own)


def _write_forms(job: _Job, folder: Path) -> list[str]:
    """The float model and vendors' files of ranges; their names."""
    plain = float_form(job.train)
    ranges = model_ranges(job.train, plain)
    io.save(plain, folder / FLOAT)
    written = [FLOAT]
    names = {*choice.lineage(job.table), *([job.compiler.name] if job.compiler else [])}
    for form in forms.forms_for(names):
        refusal = form.accepts(ranges)
        if refusal:
            job.remarks.append(Remark(f"{form.file} was not written: {refusal}", source="handoff"))
            continue
        (folder / form.file).write_text(form.text(ranges), encoding="utf-8")
        written.append(form.file)
    return written


def _ticker(progress: Callable[[int, int | None], None] | None) -> Callable[[], None]:
    done = iter(range(1, 5))

    def tick() -> None:
        step = next(done)
        if progress is not None:
            progress(step, 4)

    return tick


def _command(
    job: _Job, backend: str, target: Path, data: Any, preprocess: str | Preprocess | None, limit: int
) -> list[str]:
    """The command that makes the same bundle; data that are no path are left out."""
    command = [*COMMAND, job.name, "--backend", backend, "-o", str(target)]
    if isinstance(data, (str, os.PathLike)):
        command += ["--data", os.fspath(data)]
    if preprocess is not None:
        command += ["--preprocess", str(preprocess)]
    command += ["--limit", str(limit), "--tolerance-lsb", f"{job.limits.tolerance_lsb:g}"]
    command += ["--compiler", job.compiler.file or job.compiler.name] if job.compiler else []
    command += ["--threads", str(job.compiler.threads)] if job.compiler and job.compiler.threads else []
    command += [] if job.limits.trace else ["--no-trace"]
    for option, number in (("--max-drop", job.limits.accuracy.max_drop), ("--min-sqnr", job.limits.accuracy.min_sqnr)):
        command += [] if number is None else [option, f"{number:g}"]
    for option, value in (("--float", job.asked.float_model), ("--labels", job.asked.labels)):
        command += [option, os.fspath(value)] if isinstance(value, (str, os.PathLike)) else []
    return command + [
        word for each in metrics.listed(job.asked.score) if isinstance(each, str) for word in ("--score", each)
    ]


def _opened(
    model: ir.Model,
    recorded: Recorded,
    data: Any,
    preprocess: str | Preprocess | None,
    limit: int,
    remarks: list[Remark],
) -> Data:
    """At most `limit` samples, in batches of one, as devices run them; random ones for want of data."""
    infos = model_inputs.of_graph(model.graph)
    if data is None:
        text = "compared on random numbers, for want of data: accuracy on real ones may differ"
        remarks.append(Remark(text, source="handoff"))
        return sources.random_data(infos, limit)
    line = lines.parse(preprocess) if isinstance(preprocess, str) else preprocess
    return recorded.open(data, infos, preprocess=line, batch_size=1, limit=limit)


def _batches(opened: Data, limit: int, remarks: list[Remark]) -> list[Batch]:
    """Return the first batches of `opened`, until they hold `limit` samples."""
    found: list[Batch] = []
    count = 0
    for feeds in opened:
        found.append(feeds)
        first = next(iter(feeds.values()))
        count += first.shape[0] if first.ndim else 1
        if count >= limit:
            break
    remarks.extend(opened.remarks)
    return found


def _refusals(deploy: ir.Model, table: schema.Backend) -> list[str]:
    """List the errors of the target's lint rules, one line per code: without a compiler the table has to tell."""
    errors: dict[str, list[Finding]] = {}
    for finding in lint.findings(lint.opened(deploy.clone(), table)):
        if finding.severity == "error":
            errors.setdefault(finding.code, []).append(finding)
    return [
        f"{table.backend} refuses the file: {found[0].message}, at {found[0].node or found[0].tensor}"
        f"{f' ({len(found) - 1} more of this kind)' if found[1:] else ''} [{code}]"
        for code, found in errors.items()
    ]


def _checked(job: _Job, outputs: Sequence[Batch], reference: list[Batch]) -> tuple[OutputCheck, ...]:
    """Compare outputs, with rows that TopK or NonMaxSuppression chose in the order of `reference`."""
    names = selected(job.train)
    rows = matched(outputs, reference, names) if names else Matched(outputs, outputs)
    job.remarks.extend([rows.remark] if rows.remark else [])
    quantizers, limit = output_quantizers(job.train), job.limits.tolerance_lsb
    checks, paired = (check_outputs(found, reference, quantizers, limit) for found in (rows.found, rows.paired))
    return against_integers(rows.counted(checks, paired), outputs, job.train, job.compiler, job.batches)


def _judge(checks: tuple[OutputCheck, ...], reference: list[Batch], job: _Job) -> list[Judged]:
    """Each output; what quantization itself costs is measured where an output is beyond the limit."""
    limits, name = job.limits, job.compiler.name if job.compiler is not None else ""
    own: dict[str, float] = {}
    if any(c.beyond > limits.max_beyond for c in checks):
        session = Session(float_form(job.train), optimize=True, what="the float form")
        plain = [session.run(feeds) for feeds in job.batches]
        own = {c.output: c.sqnr_db for c in check_outputs(reference, plain, {}, limits.tolerance_lsb)}
    return [judge_output(c, own.get(c.output, math.inf), limits.tolerance_lsb, limits.max_beyond, name) for c in checks]


def _wrong(judged: list[Judged], result: CompilerResult, job: _Job) -> list[str]:
    """Why the numbers fail, with the nodes that add most by themselves where they were traced; the rest is remarks."""
    red = [j.words for j in judged if j.status == "red"]
    job.remarks.extend(Remark(j.words, source="handoff") for j in judged if j.words and j.status != "red")
    limit = job.limits.tolerance_lsb + ROUNDING_STEPS
    wrong = [n for n in result.nodes if n.own_steps is not None and not n.own_steps <= limit] if red else []
    worst = sorted(wrong, key=lambda n: -(n.own_steps or 0.0))[:3]
    return red + [f"node {n.name!r} ({n.op_type}) adds {n.own_steps:.1f} steps by itself, as {n.detail}" for n in worst]


def _verdicts(
    job: _Job, failures: list[str], judged: list[Judged], scoring: Scoring, lost: list[str]
) -> tuple[Verdict, ...]:
    """Return the verdicts on deployment and accuracy, each with the command that comes next."""
    compiler = job.compiler
    given = _given_for_remedies(job)
    unknown = {"float": job.asked.float_model or given.original, "data": given.data or remedies.DATA}
    if job.asked.float_model is not None and given.data is not None:
        unknown = {"score": "MODULE:FUNCTION"}
    made = deployment(
        made_for=job.train.metadata_props.get("onnxqat.backend", ""),
        table=job.table,
        compiler=None if compiler is None else compiler.name,
        runs_numbers=compiler is not None and compiler.runs_numbers,
        failures=failures,
        judged=judged,
        again=given.place(backend=job.table.backend),
    )
    samples = sum(len(next(iter(b.values()))) if next(iter(b.values())).ndim else 1 for b in job.batches)
    computed = Computed(scoring.scores, scoring.asked, samples, scoring.why_not)
    again = command("handoff", job.name, backend=job.table.backend, **unknown, o="bundle/")
    if lost:
        return made, Verdict("accuracy", "red", lost[0], given.look())
    return made, accuracy(computed, job.limits.accuracy, given, again)


def _given_for_remedies(job: _Job) -> Given:
    """Return models, data and target of this hand-off, for the commands that change a verdict."""
    path, transform = job.asked.float_model, None if job.data is None else job.data.transform
    return Given(
        original=os.fspath(path) if isinstance(path, (str, os.PathLike)) else "FLOAT_MODEL",
        quantized=job.name,
        data=job.source,
        preprocess=None if transform is None else lines.line(transform.steps),
        trained=job.train.metadata_props.get("onnxqat.finetuned") == "true",
        target=job.table.backend,
        calibration=remedies.calibration_of(Recorded.of(job.train, job.name)),
    )


def _report(
    job: _Job,
    target: Path,
    deploy: ir.Model,
    result: CompilerResult | None,
    checks: tuple[OutputCheck, ...],
    failures: list[str],
    files: tuple[str, ...],
    *,
    same: bool,
) -> HandoffReport:
    """Gather the report; scores and verdicts are added once they are known."""
    sizes = [next(iter(feeds.values())).shape[:1] for feeds in job.batches]
    nodes = () if result is None else result.nodes
    return HandoffReport(
        model=job.name,
        backend=job.table.backend,
        compiler=job.compiler.name if job.compiler is not None else None,
        version=job.compiler.version() if job.compiler is not None else None,
        output=str(target),
        files=files,
        opset=query.opset(deploy),
        ir_version=int(deploy.ir_version or 0),
        samples=sum(size[0] if size else 1 for size in sizes),
        same_as_train_form=same,
        outputs=checks,
        coverage=coverage(nodes),
        nodes=nodes,
        failures=tuple(failures),
        remarks=tuple(job.remarks),
        settings={} if result is None else dict(result.settings),
    )


def manifest(
    report: HandoffReport, compiler: BaseCompiler | None, folder: Path, source: str, command: list[str]
) -> dict[str, Any]:
    """Return the manifest: source, compiler, tools and outcome, and the sha256 of the files (itself left out)."""
    import onnxruntime

    tools = {name: importlib.metadata.version(name) for name in _TOOLS}
    tools |= {"onnxqat": __version__, "onnxruntime": str(onnxruntime.__version__)}
    return {
        "schema": 2,
        "backend": report.backend,
        "command": command,
        "source": {"name": source, "sha256": digest(Path(source)) if Path(source).is_file() else None},
        "compiler": None if compiler is None else {"name": compiler.name, "version": compiler.version()},
        "options": {} if compiler is None else compiler.options,
        "opset": report.opset,
        "ir_version": report.ir_version,
        "passed": report.passed,
        "tools": tools,
        "sha256": digests(folder),
    }
