"""Two processes on the CPU give what one gives; a process that dies ends the run with its name and a whole checkpoint."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch.testing._internal.distributed.fake_pg import FakeStore

from onnxqat.cli import main
from onnxqat.data.inputs import InputInfo
from onnxqat.data.sources import ImageFolder
from onnxqat.errors import QatError, UsageError
from onnxqat.training.data import batches
from onnxqat.training.data.batches import Batch
from onnxqat.training.distributed import join
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.distributed.shards import part, rounds, shard, shard_scored, slices
from onnxqat.training.loop import checkpoint
from tests import hanging, once
from tests.held_port import held_port
from tests.source_tree import REPOSITORY
from tests.torch_releases import OLD
from tests.training import distributed_scenarios as scenarios
from tests.training.test_finetune import data, network

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in join.VARIABLES}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


def two(*arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run Python with `arguments` as process 0 and process 1, and wait for both; what hangs is killed."""
    with held_port() as port:
        running = [
            subprocess.Popen(
                [sys.executable, *arguments],
                env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        with ThreadPoolExecutor() as readers:  # a full pipe of one would hold both up
            return list(readers.map(ended, running))


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """What `process` said, and how it ended."""
    try:
        output, errors = process.communicate(timeout=hanging.SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()  # closes its pipes; what is left open fails whatever test comes next
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the scenarios gave in two processes, which go on from a checkpoint of one; at last one is killed."""
    if OLD:
        pytest.skip("the fully sharded scenarios need torch 2.7")

    def make(folder: Path) -> None:
        scenarios.tuned(folder=folder / "of_one", stop=True)
        left, killed = two("-m", "tests.training.distributed_scenarios", str(folder))
        said = f"process 0:\n{left.stderr}\nprocess 1:\n{killed.stderr}"
        assert left.returncode == 0, said
        assert killed.returncode == -signal.SIGKILL, said

    return once.folder(tmp_path_factory, "two_processes", make)


@pytest.fixture(scope="module")
def alone() -> scenarios.Arrays:
    """The run of one process."""
    return scenarios.tuned()


def given(folder: Path, name: str) -> scenarios.Arrays:
    """What scenario `name` gave, the same in both processes but for the sizes of what they hold."""
    first, second = (dict(np.load(folder / f"{name}.{rank}.npz")) for rank in range(2))
    assert first.keys() == second.keys()
    for key, value in first.items():
        if not key.startswith("size of "):
            np.testing.assert_array_equal(value, second[key], err_msg=key)
    return first


def assert_same(found: scenarios.Arrays, wanted: scenarios.Arrays) -> None:
    for key, value in wanted.items():
        if not key.startswith("size of "):
            np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "went_on", "went_on_fsdp"])
def test_two_processes_give_what_one_gives(name: str, ran: Path, alone: scenarios.Arrays) -> None:
    assert_same(given(ran, name), alone)


def test_weights_are_in_shards_and_scales_whole(ran: Path, alone: scenarios.Arrays) -> None:
    parts = [dict(np.load(ran / f"fsdp.{rank}.npz")) for rank in range(2)]
    for key in (key for key in alone if key.startswith("size of ")):
        sizes, size = [int(held[key]) for held in parts], int(alone[key])
        if key.endswith((".scale", "half_")):
            assert sizes == [size, size], key
        else:
            assert sum(sizes) == size, key
            assert max(sizes) <= -(-size // 3) * 2, key


@pytest.mark.parametrize("folder", ["of_ddp", "of_fsdp"])
def test_one_process_goes_on_where_two_stopped(folder: str, ran: Path, alone: scenarios.Arrays, tmp_path: Path) -> None:
    shutil.copytree(ran / folder, tmp_path / "run")
    assert_same(scenarios.tuned(folder=tmp_path / "run", resume=True), alone)


@pytest.mark.parametrize("name", ["taught", "heads", "normalized", "normalized_inside", "own", "observed"])
def test_scenario(name: str, ran: Path) -> None:
    """Teachers and held-out scores; outputs without a loss, few samples, accumulation; data of their own; observers."""
    wanted = getattr(scenarios, name)()
    assert_same(given(ran, name), wanted)
    if name in ("taught", "normalized", "normalized_inside"):
        assert_same(given(ran, f"{name}_fsdp"), wanted)
    if name == "observed":
        assert wanted["refused"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_loss_of_a_file_in_float16_is_taken_in_front_of_its_cast(strategy: str, ran: Path) -> None:
    wanted = scenarios.half_outputs()
    assert wanted["losses"][-1] < wanted["losses"][0]
    assert wanted["float16"]
    assert_same(given(ran, f"half_outputs_{strategy}"), wanted)


def test_constants_of_every_type_are_sent(ran: Path) -> None:
    """Both processes have what process 0 had, and that is what one process has."""
    found, wanted = given(ran, "sent"), scenarios.sent()
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_float16_and_clipping_by_value(strategy: str, ran: Path) -> None:
    assert_same(given(ran, f"clipped_{strategy}"), scenarios.clipped())
    found, wanted = given(ran, f"half_{strategy}"), scenarios.half()
    for key, value in wanted.items():
        if not key.startswith("size of "):  # sums in float16 have 11 bits
            np.testing.assert_allclose(found[key], value, rtol=2e-2, atol=2e-2, err_msg=key)


def test_nccl_is_told_its_gpu() -> None:
    assert join.backend(torch.device("cuda", 3)) == {"backend": "nccl", "device_id": torch.device("cuda", 3)}
    assert join.backend(torch.device("cpu")) == {"backend": "gloo"}


def test_a_group_that_cannot_send_from_the_device_is_refused() -> None:
    """As with NCCL and the device cpu: a group for GPUs alone."""
    torch.distributed.init_process_group("cuda:fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(UsageError, match=r"cuda:fake.* the device cpu") as caught, join.joined("cpu"):
            pass
    finally:
        torch.distributed.destroy_process_group()
    assert "gloo" in caught.value.hint


def test_what_needs_whole_weights_is_refused_in_shards(ran: Path) -> None:
    assert str(given(ran, "refused")["message"]) == "freezing does not work on a model in shards (fsdp)"
    assert scenarios.refused() == {}


def test_nothing_holds_the_group_after_a_run(ran: Path) -> None:
    """The last to hold it waits for its threads, one of which may wait for Python's lock."""
    assert given(ran, "freed")["left"] == 0


def test_marked_data_train(ran: Path) -> None:
    found = given(ran, "marked")
    start = {key: value.numpy() for key, value in scenarios.to_torch(network(quantized=True)).state_dict().items()}
    assert not np.array_equal(found["w1"], start["w1"])


class Numbered(ProcessContext):
    """A process of several, as far as data are concerned."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_are_the_batch(size: int) -> None:
    batch = Batch({"x": torch.arange(5.0).reshape(5, 1)}, torch.arange(5))
    parts = [part(batch, rank, size) for rank in range(size)]
    counted = [p for p in parts if p.weight]
    assert torch.equal(torch.cat([p.inputs["x"] for p in counted]), batch.inputs["x"])
    assert all(p.labels is not None and torch.equal(p.labels.float(), p.inputs["x"][:, 0]) for p in parts)
    assert all(len(p.inputs["x"]) >= 1 for p in parts)
    mean = sum(p.weight * p.inputs["x"].mean() for p in parts) / size
    assert float(mean) == pytest.approx(2.0)


def test_images_are_read_by_one_process_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(11):
        (tmp_path / str(number % 2)).mkdir(exist_ok=True)
        pixels = np.full((4, 4, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / str(number % 2) / f"{number:02}.png")
    inputs = [InputInfo("x", np.dtype(np.float32), (None, 3, 4, 4))]
    whole = batches.make(tmp_path, None, inputs, batch_size=4, seed=1)
    wanted = list(whole.epoch(2))
    assert len(wanted) == whole.steps
    read: list[Path] = []
    keep = ImageFolder._read
    monkeypatch.setattr(ImageFolder, "_read", lambda self, path: (read.append(path), keep(self, path))[1])
    shares = [list(shard(whole, Numbered(rank, 2), own=False, whole=False).epoch(2)) for rank in range(2)]
    for batch, *parts in zip(wanted, *shares, strict=True):
        assert torch.equal(torch.cat([p.inputs["x"] for p in parts]), batch.inputs["x"])
        assert batch.labels is not None
        assert torch.equal(torch.cat([p.labels for p in parts if p.labels is not None]), batch.labels)
        assert [p.weight for p in parts] == [p.weight for p in (part(batch, rank, 2) for rank in range(2))]
    assert len(read) == 11


def test_a_batch_that_cannot_be_cut_goes_to_all() -> None:
    batch = Batch({"x": torch.zeros(4, 2), "size": torch.tensor([8, 8])})
    assert part(batch, 1, 2) is batch


def test_whole_batches_go_round() -> None:
    held = [Batch({"x": torch.full((2, 1), float(i))}) for i in range(3)]
    shares = [list(rounds(held, Numbered(rank, 2))) for rank in range(2)]
    assert [[float(b.inputs["x"][0]) for b in share] for share in shares] == [[0.0, 2.0], [1.0, 2.0]]
    assert [[b.weight for b in share] for share in shares] == [[1.0, 2.0], [1.0, 0.0]]
    assert [b.samples for b in shares[0]] == [4, 2]
    assert len(list(slices(held, Numbered(1, 2)))) == 3
    assert shard_scored(held, ProcessContext(), own=False, whole=True) == tuple(held)
    assert len(shard_scored(held, Numbered(0, 2), own=False, whole=True)) == 2


def test_the_environment_says_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in join.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert join.address() is None
    for name, value in zip(join.VARIABLES, ("1", "4", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert join.address() == (1, 4, 0)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join.address() is None
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(UsageError, match="WORLD_SIZE=four"):
        join.address()


def test_bad_options_and_absent_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ddp"), join.joined("cpu", strategy="dpd"):
        pass
    with pytest.raises(UsageError, match="timeout"), join.joined("cpu", timeout=0):
        pass
    for name, value in zip(join.VARIABLES, ("1", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(QatError, match=r"process 1 of 2 .*127\.0\.0\.1:1") as caught, join.joined("cpu", timeout=1):
        pass
    assert caught.value.code == "distributed-failed"


def test_torchrun(tmp_path: Path) -> None:
    x, y = data(64)
    onnx.save(network(quantized=True), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=x, labels=y)
    options = ["--epochs", "2", "--optimizer", "sgd", "--lr", "0.05", "--device", "cpu", "--json"]

    def finetune(output: str) -> list[str]:
        files = [str(tmp_path / name) for name in ("model.onnx", "data.npz", output)]
        return ["finetune", files[0], "--data", files[1], "-o", files[2], *options]

    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "onnxqat"]
    done = subprocess.run(
        [*launched, *finetune("two.onnx")],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=hanging.SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)  # of one process
    assert main.run(finetune("one.onnx")) == 0
    one, both = (onnx.load(tmp_path / name) for name in ("one.onnx", "two.onnx"))
    before = onnx.load(tmp_path / "model.onnx")
    assert [n.name for n in one.graph.node] == [n.name for n in both.graph.node]
    moved = 0
    for a, b, c in zip(*(m.graph.initializer for m in (one, both, before)), strict=True):
        np.testing.assert_allclose(*map(onnx.numpy_helper.to_array, (a, b)), rtol=1e-5, atol=1e-6)
        moved += a.raw_data != c.raw_data
    assert moved > 4


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed under /proc on Linux only")
def test_no_thread_of_the_group_outlives_the_run() -> None:
    """One that is alive when the interpreter ends aborts the process where it then asks for Python's lock."""
    program = """
import atexit, sys
from pathlib import Path

def listed():
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    print([name for name in names if "gloo" in name])

atexit.register(listed)  # the first to be registered runs last
from tests.training.test_finetune import data, network
from tests.training.grouped import finetune
x, y = data(16)
for strategy in sys.argv[1:]:
    finetune(network(quantized=True), x, labels=y, epochs=2, device="cpu", learning_rate=0.01, distributed=strategy)
"""
    for done in two("-c", program, "ddp", *([] if OLD else ["fsdp"])):  # which needs torch 2.7
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_killed_process_ends_the_run(ran: Path) -> None:
    message = str(np.load(ran / "killed.0.npz")["message"])
    assert message.startswith("process 0 of 2 lost the others: process 1 no longer answers [distributed-failed]")
    assert not (ran / "killed.1.npz").exists()
    assert not (ran / "never.onnx").exists()
    module = scenarios.to_torch(network(quantized=True))
    progress = checkpoint.load(ran / "of_killed" / "last.safetensors", module)
    assert (progress.step, progress.epoch) == (8, 2)
