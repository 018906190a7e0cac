"""The arguments of the demo trainer, under the names and with the defaults of its manual."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onnxqat.errors import UsageError

OPTIMIZERS = ("sgd", "adam", "adamw", "radam")
SCHEDULES = ("step", "multistep", "cosine", "plateau", "constant", "linear")
DISTILLATION = ("kd", "mse", "feature-mse", "attention")
SCALE_RATE = 1e-4
"""A step of a scale moves all codes of a tensor: at the rate of a float recipe, scales run away within an epoch."""
LOG_LEVELS = (10, 20, 30, 40)
"""``--log-level`` 0 to 3: debug, info, warning, error."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """One run; each field is the argument of its name.

    Attributes:
        data: folder with ``train`` and ``val``, see :mod:`onnxqat.compat.classification.material`.
        output: folder for the files.
        preprocess: line for validation images, and colour, scale, mean and std of training images.
        teacher_arch: architecture of the teacher; with `teacher_path` None too, the network itself in float teaches.
        image_size: side of the images, where the network does not say it.
        calibration_batches: batches that calibrate.
        batch_norm: ``keep`` trains with BatchNormalization where the backend's scales can take it up, and folds it in
            the ONNX files; ``fold`` folds it before.
        scale_lr: learning rate of scales; None: that of weights, with SGD at most :data:`SCALE_RATE`.
        distill_tensors: inner tensors of ``feature-mse`` and ``attention``.
    """

    data: str
    model_zoo: str = "torchvision"
    arch: str = "resnet18"
    teacher_arch: str | None = None
    num_classes: int = 1000
    workers: int = 4
    epochs: int = 90
    start_epoch: int = 0
    batch_size: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    print_freq: int = 100
    resume: str = ""
    evaluate: bool = False
    pretrained: bool = False
    world_size: int = -1
    rank: int = -1
    dist_url: str = "tcp://127.0.0.1:23456"
    dist_backend: str = "nccl"
    seed: int | None = None
    gpu: int | None = None
    multiprocessing_distributed: bool = False
    model_path: str | None = None
    teacher_path: str | None = None
    backend: str = "TSQAT"
    optim: str = "sgd"
    not_qat: bool = False
    log_level: int = 1
    profile: bool = False
    distill_method: str | None = None
    distill_alpha: float = 0.95
    temperature: float = 6.0
    amp: bool = False
    onnx_batch: int = 1
    opset_version: int = 18
    sched: str = "step"
    output: Path = Path()
    preprocess: str | None = None
    image_size: int = 224
    calibration_batches: int = 8
    batch_norm: str = "keep"
    scale_lr: float | None = None
    distill_tensors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--optim", self.optim, OPTIMIZERS),
            ("--sched", self.sched, SCHEDULES),
            ("--distill-method", self.distill_method, (None, *DISTILLATION)),
            ("--batch-norm", self.batch_norm, ("keep", "fold")),
        ):
            if value not in known:
                hint = ", ".join(k for k in known if k is not None)
                raise UsageError("option-invalid", f"there is no {name} {value!r}", hint=f"one of: {hint}")
        counts = {"--epochs": self.epochs, "--batch-size": self.batch_size, "--print-freq": self.print_freq}
        counts |= {"--calibration-batches": self.calibration_batches, "--num-classes": self.num_classes}
        for name, number in counts.items():
            if number < 1:
                raise UsageError("option-invalid", f"{name} is {number}; it must be at least 1")
        if not 0 <= self.start_epoch < self.epochs:
            raise UsageError("option-invalid", f"--start-epoch {self.start_epoch} lies outside of {self.epochs} epochs")
        if not 0 <= self.log_level < len(LOG_LEVELS):
            hint = "0 debug, 1 info, 2 warning, 3 error"
            raise UsageError("option-invalid", f"there is no --log-level {self.log_level}", hint=hint)
        if self.distill_method in ("feature-mse", "attention") and not self.distill_tensors:
            hint = "give --distill-tensors with names of inner tensors of both networks"
            raise UsageError("option-invalid", f"--distill-method {self.distill_method} has no tensors", hint=hint)

    @property
    def name(self) -> str:
        """Start of the names of files written: the stem of the ONNX file, or the architecture."""
        if self.model_path is not None and self.model_path.endswith(".onnx"):
            return Path(self.model_path).stem
        return self.arch

    @property
    def scale_rate(self) -> float | None:
        """Learning rate of scales; None leaves it to the optimizer's rule."""
        if self.scale_lr is not None or self.optim != "sgd":
            return self.scale_lr
        return min(self.lr, SCALE_RATE)

    @property
    def number(self) -> int:
        """The seed; 0 where none is given, so that a run can be repeated all the same."""
        return 0 if self.seed is None else self.seed
