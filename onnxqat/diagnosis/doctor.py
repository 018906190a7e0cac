"""Examination of packages, machine and compilers, with what is wrong and what to do about it."""

from __future__ import annotations

import dataclasses
import platform

from onnxqat._version import __version__
from onnxqat.deployment import base_compiler
from onnxqat.diagnosis import machine, packages
from onnxqat.diagnosis.machine import Machine
from onnxqat.diagnosis.packages import Package
from onnxqat.errors import QatError


@dataclasses.dataclass(frozen=True)
class FoundCompiler:
    """A compiler of the handoff.

    Attributes:
        name: as in backend tables.
        version: of its package; None where it is not installed.
        remedy: how it is installed, or the part of it that is missing.
    """

    name: str
    version: str | None
    remedy: str


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Result of :func:`examine`.

    Attributes:
        onnxqat, python: versions.
        packages: that onnxqat or its extras need.
        machine: facts of the machine.
        compilers: of the handoff, installed or not.
        problems: what keeps onnxqat from working, each with its remedy.
        remarks: what is worth knowing.
    """

    onnxqat: str
    python: str
    packages: tuple[Package, ...]
    machine: Machine
    compilers: tuple[FoundCompiler, ...]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]


def examine() -> Diagnosis:
    """Examine packages, machine and compilers; nothing is installed or run, and nothing is sent anywhere."""
    found = packages.needed()
    here = machine.examine()
    return Diagnosis(
        __version__,
        platform.python_version(),
        found,
        here,
        tuple(map(_compiler, base_compiler.names())),
        (*packages.problems(found, packages.runtimes()), *here.problems()),
        tuple(here.remarks()),
    )


def _compiler(name: str) -> FoundCompiler:
    try:
        compiler = base_compiler.load(name)
        version = compiler.version()
        return FoundCompiler(name, version, compiler.incomplete() if version else compiler.missing().hint)
    except QatError as error:  # that of another package, which does not load
        return FoundCompiler(name, None, error.message)
