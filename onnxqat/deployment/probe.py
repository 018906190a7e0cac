"""Operators that a compiler runs on integers, learned from one-operator models, compared with the backend's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import onnx

from onnxqat import discover
from onnxqat.backends import schema
from onnxqat.backends.schema import TypeRow
from onnxqat.deployment import base_compiler, choice, probe_models
from onnxqat.deployment.base_compiler import ABSORBED, BaseCompiler, CompilerResult
from onnxqat.deployment.outputs import check_outputs, output_quantizers
from onnxqat.deployment.probe_models import CASES, Case
from onnxqat.deployment.run.process import CompilerStopError, compile_in_process
from onnxqat.errors import CheckError, UsageError
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.runtime.session import Session
from onnxqat.validation.compare import plain

LIMIT = 2.01  # two steps, and float rounding of a difference of values on a grid
Stopped = Literal["refused", "crash", "hang"]
Outcome = Literal["integer", "moved", "float", "rejected", "refused", "crash", "hang"]
STOPS: tuple[Stopped, ...] = ("refused", "crash", "hang")
WORDS: dict[str, str] = {"crash": "the compiler crashes", "hang": "the compiler does not end"}


@dataclasses.dataclass(frozen=True)
class Learned:
    """One operator, with a pair on each input and output.

    Attributes:
        name: as the table writes it; ``Conv+Relu`` is the two with nothing between.
        table: ``quantized``, ``passed`` (its output takes the input's parameters), ``fused``, or ``float``.
        outcome: as in :class:`onnxqat.deployment.base_compiler.NodeResult`; ``refused``, ``crash`` or ``hang``: the
            compiler made nothing of the model.
        detail: the kernel, or the compiler's words.
        steps: largest difference from the reference, in LSB of the output; None where no numbers came back.
        in_float: how the compiler stops at the operator without pairs, beside a quantized convolution; None where it
            takes it, or was not asked.
        float_detail: the compiler's words about that.
    """

    name: str
    table: str
    outcome: Outcome
    detail: str
    steps: float | None
    in_float: Stopped | None = None
    float_detail: str = ""

    @property
    def integer(self) -> bool:
        """Check whether the compiler runs it on integers."""
        return self.outcome in ("integer", "moved")

    @property
    def difference(self) -> str:
        """Difference between table and compiler in words; empty where they agree."""
        if self.integer and self.steps is not None and not self.steps <= LIMIT:
            return f"its numbers are {self.steps:.0f} steps off"
        if self.table == "float" and self.detail == ABSORBED:
            return ""  # Q does what the operator does, and takes its place
        if self.table == "float":
            return "the compiler has it on integers, the table leaves it float" if self.integer else ""
        found = WORDS.get(self.outcome, f"the compiler has it {self.outcome}")
        return "" if self.integer else f"the table has it {self.table}, {found}"


class _Row(Protocol):
    @property
    def difference(self) -> str: ...


RowT = TypeVar("RowT", bound=_Row)


@dataclasses.dataclass(frozen=True)
class Compared(Generic[RowT]):
    """Result of a probe, in rows that say where a compiler does otherwise than expected.

    Attributes:
        compiler: its name.
        version: of its package.
        backend: the table that models were placed by or compared with.
        rows: one per model.
    """

    compiler: str
    version: str
    backend: str
    rows: tuple[RowT, ...]

    @property
    def differences(self) -> tuple[RowT, ...]:
        """Rows with a difference."""
        return tuple(row for row in self.rows if row.difference)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = plain(self)
        for row, learned in zip(found["rows"], self.rows, strict=True):
            row["difference"] = learned.difference
        return found


class ProbeReport(Compared[Learned]):
    """Result of :func:`probe`, a row per operator; it differs where table and compiler part."""


def probe(
    compiler: str,
    backend: str | None = None,
    *,
    only: Sequence[str] = (),
    in_float: bool = False,
    timeout: float = 120.0,
    progress: Callable[[int, int | None], None] | None = None,
) -> ProbeReport:
    """Compile every operator that a table can name, each alone between Q/DQ of the table's types.

    Args:
        compiler: its name; each model is compiled in a process of its own.
        backend: table to compare with; without one, the first that belongs to the compiler.
        only: names of cases (``Conv``, ``Conv+Relu``, ``Resize/linear``); all without.
        in_float: also compile each operator without pairs, beside a quantized convolution, to learn where that stops
            the compiler.
        timeout: seconds for each model.
        progress: called with models done and their number.

    Raises:
        UsageError: ``name-unknown``, ``dependency-missing``; ``option-invalid``: no table belongs to the compiler.
        BackendError: ``backend-unknown``.
    """
    known = [case.name for case in CASES]
    for name in only:
        if name not in known:
            raise discover.unknown("probe", name, known)
    chosen, table = chosen_compiler(compiler, backend)
    cases = [case for case in CASES if not only or case.name in only]
    rows = []
    for done, case in enumerate(cases, 1):
        learned = _learn(chosen, table, case, timeout)
        if in_float and not case.then:
            learned = _also_in_float(chosen, table, case, timeout, learned)
        rows.append(learned)
        if progress is not None:
            progress(done, len(cases))
    return ProbeReport(chosen.name, str(chosen.version()), table.backend, tuple(rows))


def chosen_compiler(compiler: str, backend: str | None) -> tuple[BaseCompiler, schema.Backend]:
    """The compiler, installed, and the table to compare with: `backend`, or the first that belongs to it.

    Raises:
        UsageError: ``name-unknown``, ``dependency-missing``; ``option-invalid``: no table belongs to the compiler.
        BackendError: ``backend-unknown``.
    """
    table = _table(compiler, backend)
    chosen = base_compiler.load(compiler, table.session)
    if chosen.version() is None:
        raise chosen.missing()
    return chosen, table


def _table(compiler: str, backend: str | None) -> schema.Backend:
    name = base_compiler.load(compiler).name
    tables = [backend] if backend else choice.tables_of(name)
    if not tables:
        raise UsageError("option-invalid", f"no backend table belongs to {name}", hint="name one to compare with")
    return schema.load(tables[0])


def _learn(compiler: BaseCompiler, table: schema.Backend, case: Case, timeout: float) -> Learned:
    model = probe_models.quantized(case, *_types(table, case), _stored(table, case))
    feeds = probe_models.feeds(case)
    with scratch() as folder:
        path = folder / "probe.onnx"
        onnx.save(model, path)
        try:
            result = compile_in_process(compiler, path, [feeds], timeout=timeout)
        except CheckError as error:
            return Learned(case.name, said(table, case), stop_of(error), error.message, None)
        steps = _steps(result, path, feeds)
    # Of two operators with nothing between, the question is whether that makes the first one float.
    node = next(n for n in result.nodes if n.name == "probed")
    detail = f"{node.detail}: {node.why}" if node.why else node.detail
    return Learned(case.name, said(table, case), node.kind, detail, steps)


def stop_of(error: CheckError) -> Stopped:
    """Stop of a compiler that made nothing of a model."""
    return error.outcome if isinstance(error, CompilerStopError) else "refused"


def _also_in_float(
    compiler: BaseCompiler, table: schema.Backend, case: Case, timeout: float, learned: Learned
) -> Learned:
    with scratch() as folder:
        path = folder / "probe.onnx"
        onnx.save(probe_models.in_float(case, *_types(table, case)), path)
        try:
            compile_in_process(compiler, path, [probe_models.feeds_beside(case)], timeout=timeout)
        except CheckError as error:
            return dataclasses.replace(learned, in_float=stop_of(error), float_detail=error.message)
    return learned


def _types(table: schema.Backend, case: Case) -> tuple[TypeRow, TypeRow, TypeRow | None]:
    """Types of activations, weights and biases: those of the operator's row, or of Conv's where it has none."""
    rows = [table.ops[name] for name in (case.name, case.op_type, "Conv") if name in table.ops]
    acts = [table.types[slot.use] for row in rows for slot in row.inputs[:1] if slot.use is not None]
    weight, bias = (table.ops["Conv"].input_slot(i) for i in (1, 2))
    own = rows[0].input_slot(1)
    if case.weights and own is not None and own.axis is None and own.use is not None and not own.variadic:
        weight = own
    assert weight is not None
    return acts[0], table.types[weight.use or ""], table.types[bias.use] if bias is not None and bias.use else None


def _stored(table: schema.Backend, case: Case) -> dict[int, TypeRow]:
    """Types of the float constants that the operator's row quantizes, by input."""
    row = table.ops.get(case.name, table.ops.get(case.op_type))
    slots = (
        {} if row is None else {i: row.input_slot(i) for i, value in case.constants.items() if value.dtype.kind == "f"}
    )
    return {
        i: table.types[slot.use]
        for i, slot in slots.items()
        if slot is not None and slot.use is not None and table.types[slot.use].dtype != "float"
    }


def _steps(result: CompilerResult, path: Path, feeds: dict[str, base_compiler.Array]) -> float | None:
    if not result.outputs:
        return None
    model = io.load(path)
    reference = [Session(model, optimize=False).run(feeds)]
    checks = check_outputs(result.outputs, reference, output_quantizers(model), LIMIT)
    return max(check.largest_steps for check in checks)


def said(table: schema.Backend, case: Case) -> str:
    """Return how `table` treats the operators of `case`: ``quantized``, ``passed``, ``fused`` or ``float``."""
    if case.then:
        pair = (case.op_type, case.then[0])
        steps = [row.chain for row in table.fused if len(row.chain) >= len(pair)]
        fused = any(all(op in step for op, step in zip(pair, chain, strict=False)) for chain in steps)
        return "fused" if fused else "float"
    names = {case.op_type, case.name}
    if names & set(table.ops):
        return "quantized"
    return "passed" if names & set(table.passthrough) else "float"
