"""Execution of training steps: automatic mixed precision (AMP), accumulation, compilation, memory, arithmetic, processes.

Mixed precision here is the float type of training. Different bit widths in one file are
:attr:`onnxqat.placement.table_overrides.Overrides.node_bits`.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, cast, get_args

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.speed.rematerialize import rematerialized
from onnxqat.errors import UsageError
from onnxqat.training.data.batches import Batch
from onnxqat.training.distributed.join import TIMEOUT
from onnxqat.training.execution.recompute import Recomputed

Precision = Literal["float32", "bfloat16", "float16"]


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution of training steps. Nothing here changes what the quantizers compute from the same input.

    Attributes:
        precision: ``"bfloat16"`` and ``"float16"`` run the module under autocast; quantizers and loss stay float32.
            With ``"float16"`` the loss is scaled so that small gradients survive, and a step whose gradients overflow
            is left out (Micikevicius et al., "Mixed Precision Training", 2018).
        gradient_norm: gradients are scaled down to this norm; None leaves them.
        accumulate: batches whose gradients are added up, weighted by their samples, before the optimizer steps.
        compile: run the module through ``torch.compile``; a name is that of a backend of it.
        channels_last: tensors of four dimensions have their channels last in memory, which is faster on some GPUs.
        recompute: number of segments of the graph of which only the inputs are kept for the backward pass
            (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016); True: about the square root of the
            number of operators; False: everything is kept.
        rematerialize: quantized tensors are computed again in the backward pass
            (:mod:`onnxqat.bridge.speed.rematerialize`); None: on CUDA. No effect with `compile`: compilers do it themselves.
        arithmetic: what operators compute: on dequantized values (``"float"``), or on codes as the kernels of the
            target do, such as ``"onnxruntime"`` (:mod:`onnxqat.arithmetic`): the run trains and scores what the chip
            computes, in float32, not in shards. None: what the backend table of the file says, else ``"float"``, as
            in half precision, compiled, in shards and where inner tensors are compared.
        grad_bits: width of the gradients that flow back into layers with quantized weights, rounded at random
            (:mod:`onnxqat.training.execution.gradient_quantization`); None leaves them float.
        distributed: strategy of several processes, which ``torchrun`` or a process group of the caller makes of the
            call: a file of ``onnxqat/training/distributed/strategies``.
        distributed_timeout: seconds that a process waits for the others.

    Raises:
        UsageError: ``option-invalid``.
    """

    precision: Precision = "float32"
    gradient_norm: float | None = None
    accumulate: int = 1
    compile: bool | str = False
    channels_last: bool = False
    recompute: bool | int = False
    rematerialize: bool | None = None
    arithmetic: str | None = None
    grad_bits: int | None = None
    distributed: str = "ddp"
    distributed_timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise UsageError("option-invalid", f"there is no precision {self.precision!r}", hint=f"one of: {known}")
        if self.accumulate < 1:
            raise UsageError("option-invalid", f"accumulate is {self.accumulate}; it must be at least 1")
        if self.gradient_norm is not None and not self.gradient_norm > 0:
            raise UsageError("option-invalid", f"the norm of gradients is {self.gradient_norm}; it must be > 0")
        if int(self.recompute) < 0:
            raise UsageError("option-invalid", f"recompute is {self.recompute}; it must be at least 0")
        if self.arithmetic not in (None, "float") and self.precision != "float32":
            raise UsageError(
                "option-invalid",
                f"arithmetic {self.arithmetic!r} with precision {self.precision!r}, which does not hold all codes",
                hint="leave precision out",
            )

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of the module's forward pass."""
        dtype = torch.float16 if self.precision == "float16" else torch.bfloat16
        return torch.autocast(device.type, dtype, enabled=self.precision != "float32")

    def saving(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of the module's forward pass that says what is kept for the backward pass."""
        wanted = device.type == "cuda" if self.rematerialize is None else self.rematerialize
        return rematerialized() if wanted and not self.compile else nullcontext()

    def scaler(
        self, device: torch.device, kind: type[torch.amp.GradScaler] = torch.amp.GradScaler
    ) -> torch.amp.GradScaler:
        """The scaler of the loss, one of `kind`; it does nothing except for ``"float16"``."""
        return kind(device.type, enabled=self.precision == "float16")

    def place(self, module: nn.Module) -> None:
        """Bring the parameters into the order in memory that they train in."""
        if self.channels_last:
            for parameter in module.parameters():
                parameter.data = ordered(parameter.data)

    def restore(self, module: nn.Module) -> None:
        """Undo :meth:`place`."""
        for parameter in module.parameters() if self.channels_last else ():
            parameter.data = parameter.data.contiguous()

    def inputs(self, batch: Batch) -> Batch:
        """`batch` in the order in memory that the module wants."""
        if not self.channels_last:
            return batch
        return dataclasses.replace(batch, inputs={name: ordered(value) for name, value in batch.inputs.items()})

    def segmented(self, forward: nn.Module) -> nn.Module:
        """`forward`, its activations computed again in the backward pass where that is asked for.

        Raises:
            UsageError: ``option-invalid`` where `forward` is no graph, or keeps statistics and is to be compiled.
        """
        if not self.recompute:
            return forward
        if not isinstance(forward, fx.GraphModule):
            raise UsageError("option-invalid", "recompute needs a module that is a graph, as to_torch gives it")
        found = Recomputed(forward, None if self.recompute is True else self.recompute)
        if self.compile and found.follows:
            raise UsageError(
                "option-invalid",
                "recompute and compile do not go together where a forward pass moves statistics",
                hint="train without one of them",
            )
        return found

    def compiled(self, forward: nn.Module) -> nn.Module:
        """`forward`, compiled where that is asked for; it is compiled at its first call.

        Raises:
            UsageError: ``option-invalid`` for a backend that torch does not have.
        """
        if not self.compile:
            return forward
        try:
            backend = "inductor" if self.compile is True else self.compile
            return cast(nn.Module, torch.compile(forward, backend=backend))
        except torch._dynamo.exc.InvalidBackend:  # noqa: SLF001 - the exception has no other home
            raise UsageError("option-invalid", f"torch.compile has no backend {self.compile!r}") from None

    def explained(self, error: RuntimeError) -> UsageError | None:
        """Convert an error of ``torch.compile`` to one for the user; None for any other error."""
        if not self.compile or not isinstance(error, torch._dynamo.exc.TorchDynamoException):  # noqa: SLF001
            return None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "train without compile, or with another backend of it"
        return UsageError("option-invalid", f"torch.compile fails: {first}", hint=hint)


def ordered(tensor: Tensor) -> Tensor:
    """`tensor` with its channels last in memory where it has four dimensions."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
