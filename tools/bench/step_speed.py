"""What quantization adds to a training step: time and memory of a QAT step against those of a float step.

    python tools/bench/step_speed.py                                       # ResNet-20, one thread, CPU time
    python tools/bench/step_speed.py --backend onnxruntime-cpu --bits 8,8  # every tensor quantized
    python tools/bench/step_speed.py --device cuda --model resnet50 --batch 128 --batch-norm keep
    python tools/bench/step_speed.py --peer brevitas                       # another quantizer's steps between ours

Both modules come from one ONNX file and their steps alternate in one process: forward, cross entropy, backward, SGD;
the QAT step has the guard of the scales as well. Time is that of the processor on CPU, of CUDA events on CUDA; the
ratio is the median over the rounds. Memory on CPU is what autograd saves for backward, on CUDA the peak of a step.
One line of JSON for each combination of ``--precision`` and ``--mode``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import resnet50
import step_peers

import onnxqat
from onnxqat.bridge.importing import frozen_constants
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.speed.recomputed_batchnorm import remake_batch_norm
from onnxqat.bridge.speed.redundant_quantizers import skip_repeated
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.bridge.speed.rematerialize import rematerialized
from onnxqat.cli._options import parse_bits
from onnxqat.graph import io
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training import methods
from onnxqat.training.optim import optimizers

LEARNING_RATE = 1e-4


@dataclasses.dataclass
class Side:
    """A module with its optimizer; :meth:`step` is what is timed."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    guard: optimizers.ScaleGuard
    call: Callable[..., Any]
    autocast: bool
    rematerialize: bool

    def output(self, x: Tensor) -> Tensor:
        """What the module says to `x`, in training."""
        made_again = rematerialized() if self.rematerialize else contextlib.nullcontext()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast), made_again:
            return cast(Tensor, self.call(x))

    def step(self, x: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self.output(x).float(), labels).backward()
        self.guard.before()
        self.optimizer.step()
        self.guard.after()


def files(arguments: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The float file and the quantized one that is made from it on random calibration data."""
    if arguments.model == "resnet50":
        start = resnet50.write(folder / "resnet50.onnx", size=arguments.size, blocks=arguments.blocks)
    else:
        start = Path(arguments.model)
    weight_bits, activation_bits = parse_bits(arguments.bits)
    data = {arguments.input: np.random.default_rng(0).standard_normal((8, 3, arguments.size, arguments.size))}
    onnxqat.insert_qdq(
        start,
        arguments.backend,
        data={key: value.astype(np.float32) for key, value in data.items()},
        output=folder / "quantized.onnx",
        overrides=Overrides(weight_bits=weight_bits, activation_bits=activation_bits),
        batch_norm=arguments.batch_norm,
    )
    return start, folder / "quantized.onnx"


def side(path: Path, arguments: argparse.Namespace, *, compiled: bool, autocast: bool) -> Side:
    """The module of `path` in training."""
    graph = io.load(path)
    module = to_torch(graph, quantizer_factory=methods.factory(arguments.method, limit_steps=False))
    frozen_constants.freeze_constants(module, graph)
    module = module.to(arguments.device, memory_format=torch.channels_last).train()
    view = remake_batch_norm(fuse_relu(skip_repeated(module)))
    optimizer = optimizers.make("sgd", module, learning_rate=LEARNING_RATE)
    call = torch.compile(view, fullgraph=True) if compiled else view
    again = {"on": True, "off": False, "auto": arguments.device == "cuda"}[arguments.rematerialize] and not compiled
    return Side(module, optimizer, optimizers.ScaleGuard(module), call, autocast, again)


def peer_sides(arguments: argparse.Namespace, ours: Side) -> list[Side]:
    """The peer's float module and its quantized one, trained as `ours`; none without ``--peer``."""
    if arguments.peer is None:
        return []
    x, _ = batch(arguments)
    how = {"backend": arguments.backend, "bits": parse_bits(arguments.bits), "x": x}
    made = []
    for module in step_peers.modules(arguments.peer, Path(arguments.model), **how):
        sgd = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=0.9)
        guard = optimizers.ScaleGuard(module)  # finds no scale of ours
        made.append(dataclasses.replace(ours, module=module, optimizer=sgd, guard=guard, call=module))
    torch.testing.assert_close(made[0].call(x), ours.call(x))  # the same network
    return made


def batch(arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    torch.manual_seed(0)
    x = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    labels = torch.randint(0, 10, (arguments.batch,))
    return x.to(arguments.device, memory_format=torch.channels_last), labels.to(arguments.device)


def milliseconds(step: Callable[[], None], device: str) -> float:
    """Time of one call."""
    if device == "cpu":
        began = time.process_time()
        step()
        return (time.process_time() - began) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()  # type: ignore[no-untyped-call]
    step()
    last.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return float(first.elapsed_time(last))


def memory(run: Side, x: Tensor, labels: Tensor) -> float:
    """MB of a step: peak on CUDA, saved for backward on CPU."""
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        run.step(x, labels)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 1e6
    return allocations(lambda: functional.cross_entropy(run.output(x).float(), labels))[-1] / 1e6


def allocations(run: Callable[[], object]) -> list[int]:
    """Bytes on the CPU that `run` has more than at its start, after each of its allocations and releases.

    The last is what the value that it returns holds.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        held = run()
    changes = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    total, course = 0, [0]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        total += event.nbytes()
        course.append(total)
    del held
    return course


def peaks(paths: tuple[Path, Path], arguments: argparse.Namespace, **how: bool) -> list[float]:
    """Memory of each side with the other out of memory."""
    found = []
    for path in paths:
        run, (x, labels) = side(path, arguments, **how), batch(arguments)
        if x.is_cuda or how["compiled"]:
            run.step(x, labels)
        found.append(memory(run, x, labels))
        del run
        if x.is_cuda:
            torch.cuda.empty_cache()
    return found


def measure(paths: tuple[Path, Path], arguments: argparse.Namespace, precision: str, mode: str) -> dict[str, Any]:
    """One row."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    how = {"compiled": mode == "compiled", "autocast": precision == "bf16"}
    used = peaks(paths, arguments, **how)
    sides, (x, labels) = [side(path, arguments, **how) for path in paths], batch(arguments)
    sides += peer_sides(arguments, sides[0])
    times: list[list[float]] = [[] for _ in sides]
    for index in range(arguments.warm_up + arguments.rounds):
        for number, run in enumerate(sides):
            taken = milliseconds(lambda run=run: run.step(x, labels), arguments.device)  # type: ignore[misc]
            if index >= arguments.warm_up:
                times[number].append(taken)
    row = {"precision": precision, "mode": mode, **summary(times[0], times[1])}
    row |= {"float_mb": round(used[0], 1), "qat_mb": round(used[1], 1), "memory_ratio": round(used[1] / used[0], 3)}
    if arguments.peer is not None:
        row |= {"peer": arguments.peer, **{f"peer_{key}": value for key, value in summary(*times[2:]).items()}}
    return row


def summary(plain: list[float], quantized: list[float]) -> dict[str, Any]:
    """Medians of both sides in milliseconds, median and quartiles of their ratio."""
    ratios = [q / f for f, q in zip(plain, quantized, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "float_ms": round(statistics.median(plain), 2),
        "qat_ms": round(statistics.median(quantized), 2),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
    }


def parser(description: str | None = __doc__) -> argparse.ArgumentParser:
    """Command line."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default=str(_shared.MODELS / "resnet20_cifar10.onnx"), help="a file, or resnet50")
    made.add_argument("--input", default="input", help="name of the model's input")
    made.add_argument("--size", type=int, help="height and width of the input; 224 for resnet50, else 32")
    made.add_argument("--blocks", type=int, help="blocks of each stage of resnet50")
    made.add_argument("--backend", default="academic")
    made.add_argument("--bits", default="4,4")
    made.add_argument("--method", default="lsq")
    made.add_argument("--batch-norm", choices=("fold", "keep"), default="fold")
    made.add_argument(
        "--rematerialize", choices=("auto", "on", "off"), default="auto", help="auto: on CUDA, as finetune"
    )
    made.add_argument("--batch", type=int, default=128)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--precision", default="float32", help="of float32, tf32, bf16; several with commas")
    made.add_argument("--mode", default="eager", help="of eager, compiled; several with commas")
    made.add_argument("--peer", choices=sorted(step_peers.INSTALL), help="on CPU, eager; see step_peers.py")
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--warm-up", type=int, default=2)
    return made


def main() -> None:
    """Print the rows; see the module."""
    arguments = parser().parse_args()
    arguments.size = arguments.size or (224 if arguments.model == "resnet50" else 32)
    torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = True
    shown = {key: getattr(arguments, key) for key in ("backend", "bits", "method", "batch_norm", "batch", "device")}
    with tempfile.TemporaryDirectory() as folder:
        paths = files(arguments, Path(folder))
        for mode in arguments.mode.split(","):  # compiling takes minutes: last
            for precision in arguments.precision.split(","):
                row = measure(paths, arguments, precision, mode)
                print(json.dumps({"model": Path(arguments.model).stem, **shown, **row}), flush=True)


if __name__ == "__main__":
    main()
