"""QDQ model in, bundle for a target out: deploy form, real compilation, numbers compared, integer coverage."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

import onnxqat
from onnxqat.backends import schema
from onnxqat.calibration import data as sources
from onnxqat.calibration import inputs as model_inputs
from onnxqat.calibration import preprocess as lines
from onnxqat.calibration.data import Data
from onnxqat.calibration.session import Session
from onnxqat.errors import BackendError, ModelError
from onnxqat.graph import io, qdq, query
from onnxqat.handoff import _base
from onnxqat.handoff._base import Array, BaseCompiler, CompilerResult
from onnxqat.handoff._bundle import MANIFEST, check_target, digests, write_json, writing
from onnxqat.handoff._outputs import OutputCheck, check_outputs, output_quantizers
from onnxqat.handoff._process import compile_in_process
from onnxqat.handoff._result import Coverage, HandoffReport, coverage
from onnxqat.passes import _base as passes
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.types import Remark
from onnxqat.validation import machine

if TYPE_CHECKING:
    from onnxqat.calibration.preprocess import Preprocess

__all__ = ["Coverage", "HandoffReport", "compiler_of", "handoff"]

MODEL, REPORT = "model.onnx", "report.json"
Batch = Mapping[str, Array]
_TOOLS = ("onnx", "onnx-ir", "numpy")


def handoff(
    model: io.ModelSource,
    backend: str,
    output: str | os.PathLike[str],
    *,
    data: Any = None,
    preprocess: str | Preprocess | None = None,
    samples: int = 16,
    max_steps: float = 2.0,
    max_beyond: float = 0.01,
    timeout: float = 300.0,
    progress: Callable[[int, int | None], None] | None = None,
) -> HandoffReport:
    """Write the bundle of a target: ``model.onnx``, the vendor's own files, ``report.json``, ``manifest.json``.

    1. The deploy form is made, and must give the very bits of `model` in onnxruntime with optimizations off.
    2. The backend's compiler compiles it in a process of its own and runs the samples. At most a share of
       `max_beyond` of an output may be further than `max_steps` steps from the reference; that is what rounding in
       another place costs. A step is that of the output's quantizer, or 1/255 of the output's range.
    3. The folder takes the place of an older bundle only when it is complete.

    Args:
        model: QDQ model, in train or deploy form; it is not changed.
        backend: name of a backend table, or path of one.
        output: folder to write.
        data: what :func:`onnxqat.calibration.data.open_data` takes; random numbers without.
        preprocess: preprocessing line for image folders.
        samples: number of samples to run.
        max_steps: see 2.
        max_beyond: see 2.
        timeout: seconds after which the compiler is stopped.
        progress: called with steps done and their number.

    Raises:
        ModelError: ``model-not-quantized``, ``output-not-writable``, and what :func:`onnxqat.graph.io.load` raises.
        BackendError: ``backend-unknown``, ``backend-table``, ``backend-opset``.
        UsageError: ``option-invalid``: `output` holds something else than a bundle.
        CheckError: ``handoff-failed``: the compiler refused the model, crashed or ran out of time.
    """
    table, target = schema.load(backend), Path(output)
    check_target(target)
    train = io.load(model)
    if not qdq.is_quantized(train):
        raise ModelError("model-not-quantized", f"{_name(model)} holds no quantizers", hint="run insert-qdq first")
    remarks: list[Remark] = []
    batches = _batches(train, data, preprocess, samples, remarks)
    limits = (max_steps, max_beyond, timeout)
    return _make(_name(model), train, table, target, batches, limits, remarks, _ticker(progress))


def _make(
    name: str,
    train: ir.Model,
    table: schema.Backend,
    target: Path,
    batches: list[Batch],
    limits: tuple[float, float, float],
    remarks: list[Remark],
    tick: Callable[[], None],
) -> HandoffReport:
    max_steps, max_beyond, timeout = limits
    deploy = deploy_form(train, table, remarks)
    tick()
    reference, same = _references(train, deploy, batches)
    tick()
    compiler = compiler_of(table, remarks)
    with writing(target) as folder:
        io.save(deploy, folder / MODEL)
        result = None
        if compiler is not None:
            result = compile_in_process(compiler, folder / MODEL, batches, artefacts=folder, timeout=timeout)
            remarks.extend(machine.saturation(train))
        tick()
        checks = () if result is None else _checks(result, reference, train, max_steps)
        failures = [] if same else ["the deploy form does not give the bits of the file handed in, in onnxruntime"]
        failures += _beyond(checks, compiler, max_steps, max_beyond)
        report = _report(name, table, compiler, target, deploy, batches, result, checks, failures, remarks, same=same)
        write_json(folder / REPORT, report.to_dict())
        write_json(folder / MANIFEST, manifest(report, compiler, folder))
    tick()
    return report


def _ticker(progress: Callable[[int, int | None], None] | None) -> Callable[[], None]:
    done = iter(range(1, 5))

    def tick() -> None:
        step = next(done)
        if progress is not None:
            progress(step, 4)

    return tick


def _name(source: io.ModelSource) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"


def _batches(
    model: ir.Model, data: Any, preprocess: str | Preprocess | None, samples: int, remarks: list[Remark]
) -> list[Batch]:
    """At most `samples` samples, in batches of one, as devices run them."""
    infos = model_inputs.of_graph(model.graph)
    if data is None:
        opened: Data = sources.random_data(infos, samples)
        text = "compared on random numbers, for want of data: accuracy on real ones may differ"
        remarks.append(Remark(text, source="handoff"))
    else:
        line = lines.parse(preprocess) if isinstance(preprocess, str) else preprocess
        opened = sources.open_data(data, infos, preprocess=line, batch_size=1, limit=samples)
    found: list[Batch] = []
    count = 0
    for feeds in opened:
        found.append(feeds)
        first = next(iter(feeds.values()))
        count += first.shape[0] if first.ndim else 1
        if count >= samples:
            break
    remarks.extend(opened.remarks)
    return found


def deploy_form(train: ir.Model, table: schema.Backend, remarks: list[Remark]) -> ir.Model:
    """The deploy form that the backend of `table` reads; `train` is not changed.

    Raises:
        BackendError: ``backend-opset``: it needs a newer operator set than the backend reads.
    """
    floats = any(row.derive is not None and row.dtype == "float" for row in table.types.values())
    steps: list[passes.Pass] = [DeployForm(bias="float" if floats else "keep")]
    result = passes.run_passes(train, steps)
    deploy, found = result.model, list(result.remarks)
    if query.opset(deploy) < table.opset[0]:
        raised = passes.run_passes(deploy, [RaiseOpset(table.opset[0])])
        deploy = raised.model
        found += raised.remarks
    if query.opset(deploy) > table.opset[1]:
        raise BackendError(
            "backend-opset",
            f"{table.backend} reads opset {table.opset[0]} to {table.opset[1]}; this model needs {query.opset(deploy)}",
            hint="4- and 16-bit storage types need newer operator sets: use 8-bit ones",
        )
    remarks.extend(found)
    assert isinstance(deploy, ir.Model)
    return deploy


def _references(train: ir.Model, deploy: ir.Model, batches: list[Batch]) -> tuple[list[Batch], bool]:
    """Outputs of `train` in onnxruntime with optimizations off, and whether `deploy` gives the same bits."""
    one, two = Session(train, optimize=False), Session(deploy, optimize=False, what="the deploy form")
    reference: list[Batch] = []
    same = True
    for feeds in batches:
        reference.append(one.run(feeds))
        other = two.run(feeds)
        same &= all(np.array_equal(a, other[name], equal_nan=True) for name, a in reference[-1].items())
    return reference, same


def compiler_of(table: schema.Backend, remarks: list[Remark]) -> BaseCompiler | None:
    """The installed compiler of a backend: the one of its name, of its `route`, or of the table that it extends.

    None, with a remark, where onnxqat drives no compiler for it, or where it is not installed.
    """
    known = _base.names()
    wanted = [table.route, table.backend]
    parent = table.extends
    while parent is not None:
        found = schema.load(parent)
        wanted.append(found.backend)
        parent = found.extends
    name = next((n for n in wanted if n in known), None)
    if name is None:
        text = f"onnxqat drives no compiler for {table.backend}: the deploy form was written, nothing was compiled"
        remarks.append(Remark(text, source="handoff"))
        return None
    compiler = _base.load(name, table.session)
    if compiler.version() is None:
        error = compiler.missing()
        remarks.append(Remark(f"nothing was compiled: {error.message} ({error.hint})", source="handoff"))
        return None
    return compiler


def _checks(
    result: CompilerResult, reference: list[Batch], train: ir.Model, max_steps: float
) -> tuple[OutputCheck, ...]:
    return check_outputs(result.outputs, reference, output_quantizers(train), max_steps)


def _beyond(
    checks: tuple[OutputCheck, ...], compiler: BaseCompiler | None, max_steps: float, max_beyond: float
) -> list[str]:
    name = compiler.name if compiler is not None else ""
    return [
        f"output {c.output!r}: {c.beyond:.1%} of the values of {name} are more than {max_steps:g} steps from the "
        f"reference (at most {max_beyond:.1%} may be), the largest {c.largest_steps:.1f}"
        for c in checks
        if c.beyond > max_beyond
    ]


def _report(
    name: str,
    table: schema.Backend,
    compiler: BaseCompiler | None,
    target: Path,
    deploy: ir.Model,
    batches: list[Batch],
    result: CompilerResult | None,
    checks: tuple[OutputCheck, ...],
    failures: list[str],
    remarks: list[Remark],
    *,
    same: bool,
) -> HandoffReport:
    sizes = [next(iter(feeds.values())).shape[:1] for feeds in batches]
    nodes = () if result is None else result.nodes
    return HandoffReport(
        model=name,
        backend=table.backend,
        compiler=compiler.name if compiler is not None else None,
        version=compiler.version() if compiler is not None else None,
        output=str(target),
        files=(MODEL, *(result.files if result is not None else ()), REPORT, MANIFEST),
        opset=query.opset(deploy),
        ir_version=int(deploy.ir_version or 0),
        samples=sum(size[0] if size else 1 for size in sizes),
        same_as_train_form=same,
        outputs=checks,
        coverage=coverage(nodes),
        nodes=nodes,
        failures=tuple(failures),
        remarks=tuple(remarks),
    )


def manifest(report: HandoffReport, compiler: BaseCompiler | None, folder: Path) -> dict[str, Any]:
    """What the bundle was made with, and the sha256 of its files (itself left out)."""
    import onnxruntime

    tools = {name: importlib.metadata.version(name) for name in _TOOLS}
    tools |= {"onnxqat": onnxqat.__version__, "onnxruntime": str(onnxruntime.__version__)}
    return {
        "schema": 1,
        "backend": report.backend,
        "compiler": None if compiler is None else {"name": compiler.name, "version": compiler.version()},
        "options": {} if compiler is None else compiler.options,
        "opset": report.opset,
        "ir_version": report.ir_version,
        "passed": report.passed,
        "tools": tools,
        "sha256": digests(folder),
    }
