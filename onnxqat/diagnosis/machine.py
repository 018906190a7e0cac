"""Facts of the machine that decide about numbers and speed: processor, memory, temporary folder, GPUs."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnxqat.validation.machine import features, saturates

LEAST_FREE = 2**30
"""Bytes free for temporary files below which a remark is made: a model of some hundred megabytes and its copies."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts of a machine.

    Attributes:
        system: operating system and processor family.
        processor: name of the processor.
        cores: cores that this process may use.
        threads: value of ``OMP_NUM_THREADS``, None where it is not set.
        memory: bytes, None where the system does not tell.
        vectors: vector and integer extensions of an x64 processor that kernels make use of.
        saturates: whether uint8 x int8 kernels add pairs of products at 16 bits.
        temporary: folder of temporary files.
        free: bytes free there, None where it cannot be written.
        gpus: names of GPUs that torch sees; None without torch.
        driver: whether a driver of NVIDIA is there.
    """

    system: str
    processor: str
    cores: int
    threads: str | None
    memory: int | None
    vectors: tuple[str, ...]
    saturates: bool
    temporary: str
    free: int | None
    gpus: tuple[str, ...] | None
    driver: bool

    def remarks(self) -> Iterator[str]:
        """Return what users of this machine should know."""
        if self.saturates:
            yield (
                "this processor has no VNNI: uint8 x int8 kernels add pairs of products at 16 bits. Tables for x86 keep "
                "weights from saturating; other files can differ here from what a processor with VNNI gives "
                "(docs/decisions/002-calibration.md)"
            )
        if self.driver and self.gpus == ():
            yield "there is a driver of NVIDIA, but torch sees no GPU: this torch may be a build for the CPU alone"
        if os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION") == "python":
            yield "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python makes reading models many times slower: unset it"

    def problems(self) -> Iterator[str]:
        """Return what keeps onnxqat from working, each with its remedy."""
        if self.free is None:
            yield f"the folder of temporary files, {self.temporary}, cannot be written: set TMPDIR to another"
        elif self.free < LEAST_FREE:
            yield (
                f"{self.free / 2**30:.1f} GiB are free in {self.temporary}, the folder of temporary files: "
                "free some, or set TMPDIR to another"
            )


def examine() -> Machine:
    """Return the facts of this machine."""
    folder = tempfile.gettempdir()
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=os.environ.get("OMP_NUM_THREADS"),
        memory=_memory(),
        vectors=tuple(sorted(features())),
        saturates=saturates(),
        temporary=folder,
        free=shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else None,
        gpus=_gpus(),
        driver=Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None,
    )


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _memory() -> int | None:
    """Return the bytes of memory, None where the system does not tell."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PAGE_SIZE" not in names or "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpus() -> tuple[str, ...] | None:
    """Return the names of GPUs that torch sees, None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
