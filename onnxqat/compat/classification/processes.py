"""Processes of a run as the demo's arguments ask for: one per GPU of this machine, or one of several machines."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing import parent_process
from multiprocessing.connection import wait
from urllib.parse import urlsplit

import torch
import torch.multiprocessing as multiprocessing

from onnxqat.errors import UsageError
from onnxqat.training.distributed.join import VARIABLES


def environment(dist_url: str, rank: int, world_size: int, local: int) -> dict[str, str]:
    """Return the variables that ``torchrun`` would set for process `rank` of `world_size`.

    Args:
        dist_url: ``tcp://HOST:PORT`` of process 0, or ``env://`` for variables that are set already.
        rank: number of the process over all machines.
        world_size: number of processes on all machines.
        local: number of the process on its machine.

    Raises:
        UsageError: ``option-invalid``.
    """
    found = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(local)}
    if dist_url == "env://":
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise UsageError("option-invalid", f"--dist-url env:// needs {missing[0]} in the environment")
        return found
    try:
        url = urlsplit(dist_url)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
        url = urlsplit("")
    if url.scheme != "tcp" or not host or not port:
        hint = "for example --dist-url tcp://127.0.0.1:23456"
        raise UsageError("option-invalid", f"--dist-url {dist_url!r} is not of the form tcp://HOST:PORT", hint=hint)
    return {**found, "MASTER_ADDR": host, "MASTER_PORT": str(port)}


def start(
    work: Callable[[int | None], object],
    *,
    each_gpu: bool,
    world_size: int,
    rank: int,
    dist_url: str,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Call `work` in each process of this machine that the arguments ask for.

    1. Under ``torchrun``: here, and the arguments count for nothing.
    2. `each_gpu` (``--multiprocessing-distributed``): a process for each GPU, or one on the CPU; `world_size` and `rank`
       count machines, as in torch's ImageNet example.
    3. A `world_size` over 1: this is process `rank` of `world_size`.
    4. Otherwise: here, alone.

    Args:
        work: given the number of the process's GPU, None where the run chooses; must be importable for 2.
        each_gpu: see above.
        world_size: see above; -1: one.
        rank: see above; -1: 0.
        dist_url: where process 0 is.
        variables: the environment; the process's own by default.

    Raises:
        UsageError: ``option-invalid``.
        QatError: what the work raises.
    """
    variables = os.environ if variables is None else variables
    if all(variables.get(name) for name in VARIABLES):
        work(None)
        return
    machines, machine = max(world_size, 1), max(rank, 0)
    if not 0 <= machine < machines:
        raise UsageError("option-invalid", f"--rank {rank} lies outside of --world-size {world_size}")
    here = max(torch.cuda.device_count(), 1) if each_gpu else 1
    total = here * machines
    if total == 1:
        work(None)
    elif here == 1:
        os.environ.update(environment(dist_url, machine, total, 0))
        work(None)
    else:
        arguments = (work, dist_url, machine * here, total)
        context = multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
            _process, arguments, nprocs=here, join=False
        )
        try:
            while not context.join():
                pass
        finally:  # a signal ends them all: this process would wait for them at its exit
            for process in context.processes:
                process.terminate()


def _process(local: int, work: Callable[[int | None], object], dist_url: str, first: int, total: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment(dist_url, first + local, total, local))
    work(local)


def _end_with_parent() -> None:
    """End this process with the one that started it, in the middle of a computation too.

    torch asks Linux for a signal in that case, which comes to nothing where the parent is gone by then, as while torch
    is being loaded, and stays a KeyboardInterrupt in a process that waits for others.
    """
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
