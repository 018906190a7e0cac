"""Execution in integers, measured: how far sums reach, and what comes out beside onnxruntime."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnxqat import notebook_progress
from onnxqat.arithmetic import Accumulator, Rounding
from onnxqat.data.inputs import samples_of
from onnxqat.data.recorded import Recorded
from onnxqat.displayed import Displayed
from onnxqat.graph import files_read, io
from onnxqat.metrics._closeness import Closeness
from onnxqat.runtime import broken_model
from onnxqat.runtime.session import Session
from onnxqat.types import Remark
from onnxqat.validation import machine
from onnxqat.validation.check_inputs import check_outputs, open_data

if TYPE_CHECKING:
    from onnxqat.bridge.integer.model import Engine, IntegerModel, Sums
    from onnxqat.data.preprocess import Preprocess

Array = npt.NDArray[Any]
LIMIT = 32
"""Samples that are run where nobody says how many."""


@dataclasses.dataclass(frozen=True)
class OutputEquality:
    """One output of the execution in integers beside onnxruntime.

    Attributes:
        output: its name.
        values: how many values it had.
        differing: those that are not the very number of the default session.
        default_db: signal to noise against the default session; infinite where they are equal.
        written_db: against the file as written, on dequantized floats with optimizations off.
    """

    output: str
    values: int
    differing: int
    default_db: float
    written_db: float


@dataclasses.dataclass(frozen=True)
class SimulationReport(Displayed):
    """Result of :func:`simulate`.

    Attributes:
        model: path, or what messages call it.
        arithmetic: its name.
        accumulator: where layers kept their sums.
        rounding: of the arithmetic; None where it has one.
        samples: number of samples that were run.
        kernels: operators that computed on codes, by kind.
        floats: names of the tensors that operators between quantizers compute in float.
        layers: sums of layers, in graph order.
        outputs: beside onnxruntime.
        files: paths of the files written.
        remarks: what is worth knowing.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_simulate:from_simulate"

    model: str
    arithmetic: str
    accumulator: Accumulator
    rounding: str | None
    samples: int
    kernels: dict[str, int]
    floats: tuple[str, ...]
    layers: tuple[Sums, ...]
    outputs: tuple[OutputEquality, ...]
    files: tuple[str, ...]
    remarks: tuple[Remark, ...]


@notebook_progress.shown("simulate")
@broken_model.guard("model")
def simulate(
    model: io.ModelSource,
    data: Any = None,
    *,
    arithmetic: str = "onnxruntime",
    accumulator: Accumulator | None = None,
    rounding: Rounding | None = None,
    engine: Engine = "torch",
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = LIMIT,
    random_data: bool = False,
    codes: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> SimulationReport:
    """Execute a QDQ model in integers, and compare what comes out with onnxruntime.

    Args:
        model: QDQ model; it is not changed.
        data: what :func:`onnxqat.data.data.open_data` takes; None: what the file remembers.
        arithmetic: ``onnxruntime``, ``fixed-point``, ``litert`` or ``shift`` (:mod:`onnxqat.arithmetic`).
        accumulator: where layers keep their sums; None: 32 bits that wrap around.
        rounding: None: the arithmetic's own.
        engine: what computes: ``torch``, or ``numpy``, with the same bits, slower.
        preprocess: preprocessing line for image folders.
        batch_size: largest number of samples in a batch; see :func:`onnxqat.validation.check_inputs.open_data`.
        limit: largest number of samples.
        random_data: with no `data`, use random numbers.
        codes: ``.npz`` file to write the codes of each tensor to.
        progress: called with batches done and their number, when known.

    Raises:
        CheckError: ``accumulator-overflow``.
        ModelError: ``model-not-quantized``, ``model-form``, and what :func:`onnxqat.load` raises.
        DataError: ``data-missing``, and what the data source raises.
        UnsupportedError: ``operator-unsupported``.
        UsageError: ``name-unknown``, ``option-invalid``.
    """
    from onnxqat.bridge.integer.model import to_integer

    if codes is not None:
        files_read.plan(Path(codes), "--codes")
    graph = io.load(model)
    check_outputs(graph)
    recorded = Recorded.of(graph, model)
    opened = open_data(graph, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded)
    work = _Work(
        to_integer(graph, arithmetic=arithmetic, accumulator=accumulator, rounding=rounding, engine=engine),
        Session(graph, optimize=True, precise=machine.precise(graph), what="the quantized model"),
        Session(graph, optimize=False, what="the quantized model"),
        keeps=codes is not None,
    )
    for done, (feeds, _) in enumerate(opened.labelled(), start=1):
        work.batch(feeds)
        if progress is not None:
            progress(done, opened.batches)
    if codes is not None:
        io.write_atomic(Path(codes), work.archive())
    held = work.integers.arithmetic
    return SimulationReport(
        model=io.name_of(model),
        arithmetic=held.name,
        accumulator=held.accumulator,
        rounding=getattr(held, "rounding", None),
        samples=work.samples,
        kernels=work.kernels(),
        floats=tuple(work.integers.float_operators()),
        layers=work.integers.sums(),
        outputs=work.outputs(),
        files=() if codes is None else (os.fspath(codes),),
        remarks=tuple(opened.remarks),
    )


class _Work:
    """The runs of one call and what they gave."""

    def __init__(self, integers: IntegerModel, default: Session, written: Session, *, keeps: bool) -> None:
        self.integers, self._sessions, self._keeps = integers, (default, written), keeps
        self.samples = 0
        self._codes: dict[str, list[Array]] = {}
        self._closeness: dict[str, tuple[Closeness, Closeness]] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def batch(self, feeds: dict[str, Array]) -> None:
        """Run one."""
        found = self.integers.run(feeds)
        default, written = (session.run(feeds) for session in self._sessions)
        self.samples += samples_of(feeds)
        for name, value in found.outputs.items():
            near = self._closeness.setdefault(name, (Closeness(), Closeness()))
            values, differing = self._counts.get(name, (0, 0))
            self._counts[name] = (values + value.size, differing + int(np.count_nonzero(value != default[name])))
            for closeness, reference in zip(near, (default[name], written[name]), strict=True):
                closeness.update(value, reference)
        for name, value in found.codes.items() if self._keeps else ():
            self._codes.setdefault(name, []).append(value)

    def outputs(self) -> tuple[OutputEquality, ...]:
        """Equality and signal to noise of each output."""
        return tuple(
            OutputEquality(name, *self._counts[name], default.sqnr_db, written.sqnr_db)
            for name, (default, written) in self._closeness.items()
        )

    def kernels(self) -> dict[str, int]:
        """Number of operators of each kind that computed on codes."""
        kinds = [kind for _, kind in self.integers.kernels]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def archive(self) -> bytes:
        """The codes of all batches as ``.npz``, in the smallest type of each."""
        stream = BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:  # as savez, which takes no array called "file"
            for name, parts in self._codes.items():
                with archive.open(f"{name}.npy", "w") as entry:
                    np.lib.format.write_array(entry, _smallest(np.concatenate(parts)), allow_pickle=False)
        return stream.getvalue()


def _smallest(codes: Array) -> Array:
    low, high = (int(codes.min()), int(codes.max())) if codes.size else (0, 0)
    return codes.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))
