"""Packages that onnxqat uses: which are installed, which versions it needs, and which exclude one another."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping

from onnxqat._version import installed

RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
    "ort-nightly",
)
"""Distributions that write the one Python package ``onnxruntime``, from https://onnxruntime.ai/docs/install/."""
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(\[[^]]*\])?\s*(?P<bounds>[^;]*?)\s*(;.*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"].*)?$"
)


@dataclasses.dataclass(frozen=True)
class Package:
    """A package that onnxqat or one of its extras needs.

    Attributes:
        name: of the distribution.
        extras: extras of onnxqat that need it; none where all of it does.
        bounds: versions that are taken, as in ``>=2.0``.
        version: installed version, None where it is not installed.
    """

    name: str
    extras: tuple[str, ...]
    bounds: str
    version: str | None

    @property
    def is_too_old(self) -> bool:
        """Check whether the installed version is below the lowest that is taken."""
        lowest = re.search(r">=\s*([\w.]+)", self.bounds)
        return self.version is not None and lowest is not None and _order(self.version) < _order(lowest[1])

    @property
    def is_too_new(self) -> bool:
        """Check whether the installed version is one that is not taken any more."""
        first_refused = re.search(r"<\s*([\w.]+)", self.bounds)
        return (
            self.version is not None and first_refused is not None and _order(self.version) >= _order(first_refused[1])
        )


def needed() -> tuple[Package, ...]:
    """Packages of the installed onnxqat's metadata, in its order; those of development alone are left out."""
    bounds: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for name, bound, extra in _requirements(importlib.metadata.requires("onnxqat") or ()):
        if name == "onnxqat" or extra in ("dev", "docs"):
            continue
        bounds[name] = bounds.get(name) or bound
        extras.setdefault(name, []).append(extra)
    return tuple(
        Package(name, () if "" in extras[name] else tuple(dict.fromkeys(extras[name])), bound, installed(name))
        for name, bound in bounds.items()
    )


def _requirements(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Return name, bounds and extra of each requirement."""
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found:
            yield found["name"], found["bounds"].strip("() "), found["extra"] or ""


def _order(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which order releases; what follows them, as in ``2.13.0+cpu``, does not."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def problems(packages: Iterable[Package], runtimes: Mapping[str, str]) -> Iterator[str]:
    """Return what is wrong with the packages, each with its remedy.

    Args:
        packages: of :func:`needed`.
        runtimes: version of each of ``RUNTIMES`` that is installed.
    """
    for package in packages:
        wanted = f"pip install '{package.name}{package.bounds}'"
        if package.version is None and not package.extras:
            yield f"{package.name} is not installed: {wanted}"
        elif package.is_too_old or package.is_too_new:
            state = "older" if package.is_too_old else "newer"
            yield f"{package.name} {package.version} is {state} than what onnxqat takes: {wanted}"
    if len(runtimes) > 1:
        listed = " and ".join(f"{name} {found}" for name, found in runtimes.items())
        yield (
            f"{listed} write over each other's files: pip uninstall {' '.join(runtimes)}, then install the one you want"
        )


def runtimes() -> dict[str, str]:
    """Return the version of each of ``RUNTIMES`` that is installed."""
    return {name: found for name in RUNTIMES if (found := installed(name))}
