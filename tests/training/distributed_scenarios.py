"""What two processes run for ``test_distributed.py``: ``python -m tests.training.distributed_scenarios FOLDER``.

Each scenario returns arrays; process R writes those of scenario NAME to ``FOLDER/NAME.R.npz``. The tests run the same
functions in one process.
"""

import faulthandler
import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers, set_state, state
from onnxqat.errors import DataError, QatError, UsageError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.training.callbacks.freezing import Freezing
from onnxqat.training.config import CheckpointConfig, ScoreConfig
from onnxqat.training.data.batches import Batch
from onnxqat.training.distributed.group import Group
from onnxqat.training.distributed.join import joined
from onnxqat.training.distributed.observers import reduce_observed
from onnxqat.training.distributed.shards import Sharded, shard
from onnxqat.training.distributed.tensors import local
from onnxqat.training.execution.execution import Execution
from onnxqat.training.fit import fit
from tests import hanging
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network
from tests.training.test_in_float32 import X
from tests.training.test_in_float32 import half as half_network

Arrays = dict[str, npt.NDArray[Any]]

HANGS = hanging.SECONDS - 60
"""Seconds after which a process says where it waits, and ends: before the test that started it kills it."""

SAMPLES, EPOCHS = 61, 3
"""Batches of 8 and a last one of 5: no two processes get the same number of samples."""


class StoppedError(Exception):
    """Ends a run between two checkpoints."""


def tuned(
    strategy: str = "ddp", *, folder: Path | None = None, resume: bool = False, stop: bool = False, **options: Any
) -> Arrays:
    """Parameters and losses of a run; with `stop`, it ends in its second epoch and gives nothing."""
    x, y = data(SAMPLES)
    sizes: dict[str, int] = {}
    calls = 0

    def evaluate(module: nn.Module) -> float:
        nonlocal calls
        calls += 1
        if stop and calls == 3:  # the start, epoch 1, epoch 2
            raise StoppedError
        sizes.update({f"size of {key}": local(p).numel() for key, p in module.named_parameters()})
        with torch.no_grad():
            return float((module(torch.from_numpy(x)).argmax(1) == torch.from_numpy(y)).float().mean())

    settings: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": 8,
        "optimizer": "adamw",
        "learning_rate": 0.02,
        "gradient_norm": 0.5,
        "ema": 0.8,
    }
    try:
        result = finetune(
            network(quantized=True),
            {"x": x},
            labels=y,
            device="cpu",
            score=ScoreConfig(evaluate=evaluate),
            checkpoints=CheckpointConfig(folder, resume=resume),
            execution=Execution(distributed=strategy),
            **{**settings, **options},
        )
    except StoppedError:
        return {}
    held = {key: value.numpy() for key, value in result.module.state_dict().items()}
    score = np.asarray([result.best_epoch, result.best_score])
    return {**held, "losses": np.asarray(result.losses), "score": score, **{k: np.asarray(v) for k, v in sizes.items()}}


def taught(strategy: str = "ddp", *, rematerialize: bool = False) -> Arrays:
    """A run with a teacher that is the model itself, scored on samples that are held out, two batches a step."""
    x, _ = data(120)
    result = finetune(
        network(quantized=True),
        {"x": x},
        device="cpu",
        execution=Execution(accumulate=2, rematerialize=rematerialize, distributed=strategy),
        epochs=4,
        optimizer="sgd",
        learning_rate=0.05,
        batch_size=10,
    )
    held = {key: value.numpy() for key, value in result.module.state_dict().items()}
    return {**held, "losses": np.asarray(result.losses), "score": np.asarray(result.best_score)}


class TwoHeads(nn.Module):
    """Two outputs, of which the loss takes one, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both heads."""
        hidden = torch.relu(self.body(x))
        return self.first(hidden), self.second(hidden)


class Lists:
    """Batches in a list."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.steps = len(batches)

    def epoch(self, number: int) -> Any:
        """The same ones each time."""
        return iter(self.batches)


def heads() -> Arrays:
    """Steps of two batches, and batches of one sample: a process has none, and all take part."""
    x, y = data(12)
    parts = [slice(0, 5), slice(5, 6), slice(6, 11), slice(11, 12)]
    held = Lists([Batch({"x": torch.from_numpy(x[p])}, torch.from_numpy(y[p])) for p in parts])
    module = TwoHeads()
    with joined("cpu") as (world, _):
        optimizer = torch.optim.SGD(world.place(module).parameters(), lr=0.1)
        source = shard(held, world, own=False, whole=False)
        done = fit(module, source, optimizer, total_steps=6, world=world, execution=Execution(accumulate=2))
    return {**{k: p.detach().numpy() for k, p in module.named_parameters()}, "losses": np.asarray(done.progress.losses)}


NORMALIZED = """<ir_version: 8, opset_import: ["": 17]>
normalized (float[N, 8, 2] x) => (float[N, 3] y)
<float[6] gamma = {1, 2, -1, 1, 0.5, 3}, float[6] beta = {0, 1, 0, 0, 2, 0},
 float[6] mean = {0, 0, 0, 0, 0, 0}, float[6] variance = {1, 1, 1, 1, 1, 1}, int64[2] shape = {-1, 12}>
{
    c = Conv(x, w)
    n = BatchNormalization(c, gamma, beta, mean, variance)
    f = Reshape(n, shape)
    y = MatMul(f, v)
}"""


def normalized_inside(strategy: str = "ddp") -> Arrays:
    """The same, folded by the graph in front of quantizers, which are off: a code is another one for a hair."""
    return normalized(strategy, inside=True)


def normalized(strategy: str = "ddp", *, inside: bool = False) -> Arrays:
    """BatchNormalization with the statistics of each batch, of odd size, with a mean that is large against the spread."""
    random = np.random.default_rng(3)
    model = onnx.parser.parse_model(NORMALIZED)
    for name, shape in (("w", (6, 8, 1)), ("v", (12, 3))):
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    x = (random.standard_normal((14, 8, 2)) + 4.0).astype(np.float32)
    y = torch.from_numpy(random.integers(0, 3, 14))
    held = Lists([Batch({"x": torch.from_numpy(x[i : i + 7])}, y[i : i + 7]) for i in (0, 7)])
    if inside:
        model = insert_qdq(model, "tidl", data={"x": x}, batch_norm="keep").model
    module: nn.Module = to_torch(model)
    if inside:
        set_state(module, "float")
    with joined("cpu", strategy=strategy) as (world, _):
        trained = world.place(module)
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.02)
        fit(trained, shard(held, world, own=False, whole=False), optimizer, total_steps=5, world=world)
        flat = world.flat(trained)
    assert not any(type(m).__name__.startswith("Synced") for m in flat.modules())
    return {key: value.numpy() for key, value in flat.state_dict().items()}


def own() -> Arrays:
    """Data that differ by process: 3 samples in one, 1 and then none in the other; together those of one process."""
    x, y = data(8)
    with joined("cpu") as (world, _):
        rows = [[0, 1, 2, 3], [4, 5]] if world.size == 1 else [[[0, 1, 2], [4, 5]], [[3]]][world.rank]
        batches = [Batch({"x": torch.from_numpy(x[row])}, torch.from_numpy(y[row])) for row in rows]
        module = TwoHeads()
        optimizer = torch.optim.SGD(world.place(module).parameters(), lr=0.1)
        source = shard(Lists(batches), world, own=True, whole=False)
        assert source.steps == 2
        fit(module, source, optimizer, total_steps=4, world=world)
    return {key: parameter.detach().numpy() for key, parameter in module.named_parameters()}


def observed() -> Arrays:
    """Scales from the ranges of all processes; a NaN of one is refused by all."""
    x, _ = data(64)
    module = to_torch(network(quantized=True))
    with joined("cpu") as (world, _), state(module, "calibrate"):
        module(torch.from_numpy(x[world.rank :: world.size]))
        reduce_observed(module, world)
        for _, quantizer in quantizers(module):
            quantizer.apply_observed()
        first = next(q for _, q in quantizers(module))
        first.observe(torch.tensor([0.0, float("nan") if world.rank == world.size - 1 else 1.0]))
        reduce_observed(module, world)
        refused = False
        try:
            first.apply_observed()
        except DataError as error:
            refused = error.code == "data-non-finite"
    return {**{key: q.scale.detach().numpy() for key, q in quantizers(module)}, "refused": np.asarray(refused)}


def marked() -> Arrays:
    """The data of :func:`tuned` as a reader that gives each process its own part of them."""
    x, y = data(SAMPLES)
    with joined("cpu") as (world, _):
        x, y = x[world.rank :: world.size], y[world.rank :: world.size]
    batches = [(x[i : i + 4], y[i : i + 4]) for i in range(0, len(x), 4)]
    result = finetune(network(quantized=True), Sharded(batches), device="cpu", epochs=1, max_steps=9)
    return {key: value.numpy() for key, value in result.module.state_dict().items()}


def refused() -> Arrays:
    """What needs whole weights, of a model in shards; nothing is refused of one process."""
    x, y = data(16)
    try:
        finetune(
            network(quantized=True),
            {"x": x},
            labels=y,
            device="cpu",
            execution=Execution(distributed="fsdp"),
            callbacks=[Freezing(0.1)],
        )
    except UsageError as error:
        return {"message": np.asarray(error.message)}
    return {}


TYPES = ("float64", "float16", "bfloat16", "int16", "uint16", "uint32", "bool", "float8_e4m3fn", "complex64")


def sent() -> Arrays:
    """Tensors of types that a file's constants may have and no backend's messages, empty and scalar ones among them."""
    with joined("cpu") as (world, _):
        tensors = [torch.full((2, 3), 1 + 2 * world.rank).to(getattr(torch, name)) for name in TYPES]
        tensors += [torch.tensor(7 + world.rank, dtype=torch.int16), torch.zeros(0, dtype=torch.uint16)]
        if isinstance(world, Group):
            world.broadcast(tensors)
    return {str(i): tensor.reshape(-1).view(torch.uint8).numpy() for i, tensor in enumerate(tensors)}


def half(strategy: str = "ddp") -> Arrays:
    """Layers in float16, with a scaled loss; the first scale is so large that gradients overflow and steps are left out."""
    return tuned(strategy, precision="float16", epochs=1)


def half_outputs(strategy: str = "ddp") -> Arrays:
    """A file whose output is float16, and a loss whose gradients are zero there: it is taken in front of the Cast."""
    types = set()

    def evaluate(module: nn.Module) -> float:
        types.add(module(torch.from_numpy(X)).dtype)
        return 0.0

    def loss(outputs: Any, labels: Any, teacher: Any) -> Tensor:
        return torch.as_tensor(outputs[0]).float().square().mean() * 1e-8

    result = finetune(insert_qdq(half_network(), data={"x": X}).model, {"x": X}, labels=np.zeros(len(X), np.int64), loss=loss, score=ScoreConfig(evaluate=evaluate), execution=Execution(distributed=strategy), optimizer="sgd", learning_rate=1e6, max_steps=3, device="cpu")  # fmt: skip
    held = {key: value.numpy() for key, value in result.module.state_dict().items()}
    return {**held, "losses": np.asarray(result.losses), "float16": np.asarray(types == {torch.float16})}


def clipped(strategy: str = "ddp") -> Arrays:
    """Each element of a gradient is brought into a range that most of them leave."""
    return tuned(strategy, gradient_value=1e-3, optimizer="sgd", epochs=2)


def killed(folder: Path) -> Arrays:
    """What the error of process 0 says after process 1 is killed in its third epoch."""
    passes = 0

    def batches() -> Iterator[tuple[Arrays, npt.NDArray[Any]]]:
        nonlocal passes
        passes += 1  # the first is a look for labels, the second for what to score on
        x, y = data(32)
        for start in range(0, 32, 8):
            if passes == 5 and start == 16 and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"x": x[start : start + 8]}, y[start : start + 8]

    # A file for each: what one process writes while the other reads it is half a model.
    model, output = folder / f"model.{os.environ['RANK']}.onnx", folder / "never.onnx"
    onnx.save(network(quantized=True), model)
    try:
        finetune(model, batches, device="cpu", max_steps=40, checkpoints=folder / "of_killed", output=output)
    except QatError as error:
        if error.code != "distributed-failed":
            raise
        return {"message": np.asarray(str(error))}
    return {}


def freed() -> Arrays:
    """How many ``DistributedDataParallel`` are left after a run, none collected since."""
    gc.disable()
    tuned()
    left = [each for each in gc.get_objects() if type(each) is DistributedDataParallel]
    gc.enable()
    return {"left": np.asarray(len(left))}


def main(folder: Path) -> None:
    """Run all scenarios, as one of several processes."""
    from onnxqat.training.distributed.strategies import fsdp

    fsdp.Strategy.block_bytes = 100
    with joined("cpu") as (world, _):
        rank = world.rank

    def keep(name: str, arrays: Arrays) -> None:
        np.savez(folder / f"{name}.{rank}.npz", **arrays)

    keep("ddp", tuned())
    keep("freed", freed())
    keep("fsdp", tuned("fsdp", folder=folder / "of_fsdp", stop=True) or tuned("fsdp"))
    keep("went_on", tuned(folder=folder / "of_one", resume=True))
    keep("went_on_fsdp", tuned("fsdp", folder=folder / "of_fsdp", resume=True))
    tuned(folder=folder / "of_ddp", stop=True)
    keep("taught", taught(rematerialize=True))
    keep("taught_fsdp", taught("fsdp", rematerialize=True))
    keep("heads", heads())
    keep("normalized", normalized())
    keep("normalized_fsdp", normalized("fsdp"))
    keep("normalized_inside", normalized_inside())
    keep("normalized_inside_fsdp", normalized_inside("fsdp"))
    keep("own", own())
    keep("marked", marked())
    keep("observed", observed())
    keep("refused", refused())
    keep("sent", sent())
    for strategy in ("ddp", "fsdp"):
        keep(f"half_{strategy}", half(strategy))
        keep(f"clipped_{strategy}", clipped(strategy))
        keep(f"half_outputs_{strategy}", half_outputs(strategy))
    keep("killed", killed(folder))


if __name__ == "__main__":
    warnings.simplefilter("error")
    faulthandler.dump_traceback_later(HANGS, exit=True)  # says where each process waits
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
