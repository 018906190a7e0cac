"""A Python environment for each compiler: they need releases of numpy, onnx and protobuf that exclude one another."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnxqat.deployment.run.child import run_child
from onnxqat.errors import UsageError

FOLDER_VARIABLE = "ONNXQAT_ENVIRONMENTS"
MARK = "onnxqat-environment.json"
"""In an environment that was installed to the end."""
OWN = ".onnxqat"
"""In an environment from the start on: what has neither is somebody else's."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """Packages of a compiler's environment; the releases are those that onnxqat was run with.

    Attributes:
        name: of the compiler.
        package: the compiler's own package, whose version is reported.
        requirements: pip requirements, dependencies included.
        bare: pip requirements installed first and without their dependencies, where these are wrong.
        python: first and last minor version of Python 3 that the compiler's package is made for.
        systems: what :func:`system` gives where the package exists.
        programs: programs that have to be on the PATH.
        megabytes: approximate size on disk.
    """

    name: str
    package: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    python: tuple[int, int] = (10, 13)
    systems: tuple[str, ...] = ("linux-x86_64",)
    programs: tuple[str, ...] = ()
    megabytes: int = 100

    @property
    def folder(self) -> Path:
        """Folder of the environment, made or not."""
        return root() / self.name

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def version(self) -> str | None:
        """Version of the compiler's package in the environment, None where it was not installed to the end."""
        if not (self.folder / MARK).is_file() or not self.interpreter.exists():
            return None
        paths = [str(p) for p in self.folder.glob("lib*/python3*/site-packages")] + [
            str(self.folder / "Lib" / "site-packages")
        ]
        wanted = _canonical(self.package)
        for found in importlib.metadata.distributions(path=paths):
            if _canonical(found.metadata["Name"] or "") == wanted:
                return found.version
        return None

    def describe(self) -> str:
        """One line about what is going to be installed."""
        return f"installing {' '.join((*self.bare, *self.requirements))} in {self.folder} (about {self.megabytes} MB)"

    def missing(self) -> UsageError:
        """The error for a compiler whose environment is not there."""
        return UsageError(
            "dependency-missing",
            f"{self.name} is not installed in {self.folder}",
            hint=f"onnxqat handoff --install {self.name} ({self.megabytes} MB)",
        )


def of(name: str) -> Environment:
    """The environment of the compiler called `name`.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid``: that compiler needs none, with what to do instead.
    """
    from onnxqat.deployment import choice

    compiler = choice.named(name)
    found = getattr(compiler, "environment", None)
    if isinstance(found, Environment):
        return found
    raise UsageError(
        "option-invalid", f"{name} is installed beside onnxqat, not on its own", hint=compiler.missing().hint
    )


def root() -> Path:
    """Folder of all environments: ``$ONNXQAT_ENVIRONMENTS``, or ``onnxqat/environments`` in the user's cache."""
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).absolute()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "onnxqat" / "environments"


def system() -> str:
    """Operating system and processor, such as ``linux-x86_64``."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{'x86_64' if machine == 'amd64' else machine}"


def install(environment: Environment, *, timeout: float = 3600.0) -> Path:
    """Make `environment` with venv and pip, in place of an older or unfinished one; gives its folder.

    Args:
        environment: which.
        timeout: seconds for each of the steps.

    Raises:
        UsageError: ``environment-failed``: wrong system or Python, a program that is missing, or pip's own words.
    """
    _check_system(environment)
    python = interpreter_for(environment)
    folder = environment.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(folder):
            _clear(environment)
            _step(environment, [python, "-m", "venv", str(folder)], timeout)
            pip = [str(environment.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            if environment.bare:
                _step(environment, [*pip, "--no-deps", *environment.bare], timeout)
            _step(environment, [*pip, *environment.requirements], timeout)
            content = {"requirements": [*environment.bare, *environment.requirements]}
            (folder / MARK).write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise _failed(environment, f"{folder}: {error.strerror or error}") from None
    if environment.version() is None:
        raise _failed(environment, f"pip installed no package {environment.package} in {folder}")
    return folder


def _clear(environment: Environment) -> None:
    """Make an empty folder for `environment`; remove what an older or unfinished installation left there.

    Raises:
        UsageError: ``environment-failed``: the folder holds something else.
    """
    folder = environment.folder
    if folder.is_symlink():
        raise _failed(environment, f"{folder} is a link", hint="remove the link")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if not any((folder / name).is_file() for name in (MARK, OWN)):
            hint = f"move it, or give another folder in {FOLDER_VARIABLE}"
            raise _failed(environment, f"{folder} exists, and is not an environment that onnxqat made", hint=hint)
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    (folder / OWN).write_text("made by onnxqat handoff --install, which may remove this folder\n", encoding="utf-8")


def interpreter_for(environment: Environment) -> str:
    """A Python of a version that the compiler's package is made for: this one, or one on the PATH.

    Raises:
        UsageError: ``environment-failed``.
    """
    first, last = environment.python
    if first <= sys.version_info.minor <= last:
        return sys.executable
    for minor in range(last, first - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            return found
    this = f"3.{sys.version_info.minor}"
    raise _failed(
        environment,
        f"it needs Python 3.{first} to 3.{last}; this is {this}, and none of them is on the PATH",
        hint=f"install Python 3.{last} beside this one",
    )


def _check_system(environment: Environment) -> None:
    if system() not in environment.systems:
        where = ", ".join(environment.systems)
        raise _failed(environment, f"its package exists for {where}, and this machine is {system()}")
    for program in environment.programs:
        if shutil.which(program) is None:
            raise _failed(environment, f"it needs the program {program} on the PATH", hint=f"install {program} first")


def _step(environment: Environment, command: list[str], timeout: float) -> None:
    with tempfile.TemporaryFile("w+b") as log:
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        status = run_child(command, cwd=environment.folder.parent, env=clean, log=log, timeout=timeout)
        log.seek(0)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if status == 0:
        return
    said = [line for line in lines if line.lower().startswith("error")] or lines
    how = f"did not end within {timeout:g} s" if status is None else f"ended with status {status}"
    words = f": {' | '.join(said[-3:])[-800:]}" if said else ""
    raise _failed(environment, f"{' '.join(command[1:])!r} {how}{words}")


@contextlib.contextmanager
def _exclusive_lock(folder: Path) -> Iterator[None]:
    """Waits for another process that makes the same environment."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _failed(environment: Environment, what: str, *, hint: str = "") -> UsageError:
    return UsageError("environment-failed", f"{environment.name} cannot be installed: {what}", hint=hint)


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
