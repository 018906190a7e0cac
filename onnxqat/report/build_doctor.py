"""The report of ``doctor``."""

from __future__ import annotations

from onnxqat.diagnosis.doctor import Diagnosis
from onnxqat.diagnosis.machine import Machine
from onnxqat.report.model import Cell, Column, Figure, Report, Table, rows_of
from onnxqat.types import Remark


def from_diagnosis(found: Diagnosis) -> Report:
    """Build the report of ``doctor``.

    Args:
        found: of :func:`onnxqat.diagnosis.doctor.examine`.
    """
    return Report(
        kind="doctor",
        title=f"onnxqat {found.onnxqat} on Python {found.python}",
        passed=not found.problems,
        figures=_machine(found.machine),
        tables=(_packages(found), _compilers(found)),
        failures=found.problems,
        remarks=tuple(Remark(text, source="doctor") for text in found.remarks),
    )


def _machine(found: Machine) -> tuple[Figure, ...]:
    gpus = "torch is not installed" if found.gpus is None else ", ".join(found.gpus) or "none"
    return (
        Figure("system", "system", found.system),
        Figure("processor", "processor", found.processor),
        Figure("extensions", "extensions of it", ", ".join(found.vectors) or "not known"),
        Figure("cores", "cores to use", found.cores, "count"),
        Figure("threads", "OMP_NUM_THREADS", found.threads or "not set"),
        Figure("memory", "memory", _gigabytes(found.memory)),
        Figure("temporary", "temporary files", found.temporary, note=f"{_gigabytes(found.free)} free"),
        Figure("gpus", "GPUs", gpus),
    )


def _gigabytes(size: int | None) -> str:
    return "not known" if size is None else f"{size / 2**30:.1f} GiB"


def _packages(found: Diagnosis) -> Table:
    columns = (
        Column("name", "package"),
        Column("version", "installed"),
        Column("bounds", "needed"),
        Column("extras", "for the extras"),
    )
    rows: list[tuple[Cell, ...]] = [
        (each.name, each.version, each.bounds or "any", ", ".join(each.extras)) for each in found.packages
    ]
    return Table("packages", "Packages", columns, tuple(rows), shown=40)


def _compilers(found: Diagnosis) -> Table:
    columns = (Column("name", "compiler"), Column("version", "installed"), Column("remedy", "to install it"))
    return Table("compilers", "Compilers of the handoff", columns, rows_of(found.compilers, columns), shown=40)
