"""Joining the processes that ``torchrun`` has started, and leaving them."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import gc
import importlib
import itertools
import os
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from onnxqat import discover
from onnxqat.errors import QatError, UsageError
from onnxqat.training.distributed import failure
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.execution import devices

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that ``torchrun`` sets for each process; all four have to be there."""

_GROUPS = itertools.count()
"""Numbers of the groups that this process has joined, the same in all: each has messages of its own."""

TIMEOUT = 600.0
"""Seconds that a process waits for the others."""


@contextlib.contextmanager
def joined(
    device: str | torch.device | None = None, *, strategy: str = "ddp", timeout: float = TIMEOUT
) -> Iterator[tuple[ProcessContext, torch.device]]:
    """The processes that train together, and the device of this one, for the length of a ``with`` block.

    1. A process group that the caller has made is used and left as it is.
    2. Under ``torchrun``, or anything else that sets :data:`VARIABLES`, a group is made and closed again: NCCL for
       CUDA, Gloo for the CPU.
    3. Otherwise this process is alone.

    Args:
        device: ``"cpu"`` or ``"cuda"``; None: CUDA where there is one. Each process of a machine has its own GPU.
        strategy: how several processes train, a file of ``onnxqat/training/distributed/strategies``.
        timeout: seconds to wait for another process before the run is given up.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid`` for a device that is not there.
        QatError: ``distributed-failed`` where the others cannot be reached, or one of them is gone.
    """
    kind = cast("type[Group]", discover.load("onnxqat.training.distributed.strategies", strategy).Strategy)
    if not timeout > 0:
        raise UsageError("option-invalid", f"the timeout is {timeout} seconds; it must be > 0")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        rank, size = dist.get_rank(), dist.get_world_size()
        here = place(device, int(os.environ.get("LOCAL_RANK", rank)))
        _check_backend(here)
        with devices.current(here), failure.explained(rank, size, None), contextlib.closing(kind(here)) as world:
            yield world, here
        return
    found = address()
    if found is None or (dist.is_available() and dist.is_initialized()):
        here = devices.place(device)
        with devices.current(here):
            yield ProcessContext(), here
        return
    if not dist.is_available():
        raise UsageError("option-invalid", "this torch is built without torch.distributed: run one process")
    rank, size, local = found
    here = place(device, local)
    with (
        devices.current(here),
        _group(rank, size, here, timeout) as store,
        failure.explained(rank, size, store),
        contextlib.closing(kind(here)) as world,
    ):
        yield world, here


def _check_backend(device: torch.device) -> None:
    """Refuse a caller's group that cannot send tensors of `device`: NCCL has GPUs only.

    Raises:
        UsageError: ``option-invalid``.
    """
    known = dist.get_backend_config()
    if f"{device.type}:" not in known:
        raise UsageError(
            "option-invalid",
            f"the process group talks by {known}, which sends nothing that is on the device {device.type}",
            hint=f"choose the device {known.partition(':')[0]}, or init_process_group('cpu:gloo,cuda:nccl')",
        )


def address() -> tuple[int, int, int] | None:
    """Rank, size and rank on this machine from the environment; None where it describes no other process.

    Raises:
        UsageError: ``option-invalid`` for values that are no numbers.
    """
    if not all(os.environ.get(name) for name in VARIABLES):
        return None
    try:
        rank, size = (int(os.environ[name]) for name in VARIABLES[:2])
        local = int(os.environ.get("LOCAL_RANK", rank))
    except ValueError:
        found = ", ".join(f"{name}={os.environ.get(name, '')}" for name in (*VARIABLES[:2], "LOCAL_RANK"))
        raise UsageError("option-invalid", f"the environment has {found}: not all are numbers") from None
    return (rank, size, local) if size > 1 else None


@functools.cache
def _rendezvous(rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The store that the environment names; process 0 keeps it as long as it lives, for a second run to meet there."""
    store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=timeout)))
    store.set_timeout(timeout)
    # DistributedDataParallel is part of cycles and holds its closed group until they are collected. Left to the end of
    # the interpreter, the group's threads ask for Python's lock when nobody gives it any more, which aborts the process.
    atexit.register(gc.collect)
    return store


@contextlib.contextmanager
def _group(rank: int, size: int, device: torch.device, timeout: float) -> Iterator[failure.Store]:
    """The process group for the length of a ``with`` block, and the store where its processes leave messages."""
    limit = datetime.timedelta(seconds=timeout)
    # DistributedDataParallel imports it, and modules that it brings have the default group as the default of an
    # argument. Imported while there is a group, they would hold it, and threads of gloo that are alive when the
    # interpreter ends abort the process.
    importlib.import_module("torch._dynamo")
    try:
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"onnxqat/{next(_GROUPS)}", _rendezvous(rank, size, limit)
        )
        dist.init_process_group(store=store, rank=rank, world_size=size, timeout=limit, **backend(device))
        # A process that leaves while another still connects closes the other's connections: none starts before all are in.
        dist.barrier()
    except (RuntimeError, ValueError) as error:
        reached = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise QatError(
            "distributed-failed",
            f"process {rank} of {size} did not find the others at {reached}: {failure.line(error)}",
            hint="start all of them, with the same address and port; torchrun does",
        ) from None
    try:
        yield store
    finally:
        # After a lost connection there is nobody to take leave of.
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def backend(device: torch.device) -> dict[str, Any]:
    """Return the process group's backend arguments; NCCL is given its GPU, so that it does not have to guess it."""
    return {"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}


def place(device: str | torch.device | None, local: int) -> torch.device:
    """The device of one of several processes.

    Args:
        device: as users give it.
        local: number of this process on its machine: it takes the GPU of that number.

    Raises:
        UsageError: ``option-invalid``.
    """
    found = devices.place(device)
    if found.type != "cuda":
        return found
    if ":" in str(found):
        hint = "say cuda: each process takes its own GPU"
        raise UsageError("option-invalid", f"{found} for several processes", hint=hint)
    if local >= torch.cuda.device_count():
        raise UsageError(
            "option-invalid",
            f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}",
            hint="start as many processes as there are GPUs",
        )
    return torch.device("cuda", local)
