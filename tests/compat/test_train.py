"""``onnxqat train``: the manual's arguments, files and lines, on a folder of small images."""

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

from onnxqat.cli import main
from onnxqat.cli.commands import train as command
from onnxqat.compat.classification import material, processes
from onnxqat.compat.classification import run as run_module
from onnxqat.compat.classification.epochs import Shifted
from onnxqat.compat.classification.evaluation import Scores
from onnxqat.compat.classification.files import Files
from onnxqat.compat.classification.meters import Meters, correct
from onnxqat.compat.classification.run import Result, run
from onnxqat.compat.classification.settings import Settings
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import DataError, QatError, UsageError
from onnxqat.report import build_train
from onnxqat.training.schedules import cosine
from tests import hanging
from tests.backends.planning import proto, weight
from tests.held_port import held_port

CLASSES = ("bright", "dark", "left")
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,3] logits) <float[6,3,3,3] w = {weight(6, 3, 3, 3)}, float[6] b = {{0, 0, 0, 0, 0, 0}},
 float[3,96] v = {weight(3, 96)}, float[3] c = {{0, 0, 0}}> {{
    ["stem"] t = Conv<pads = [1,1,1,1]>(image, w, b) ["act"] a = Relu(t) ["pool"] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
    ["flat"] f = Flatten(p) ["head"] logits = Gemm<transB = 1>(f, v, c) }}"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images to train and 24 to validate, three kinds that a glance tells apart; and the network."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 8)):
        for kind in CLASSES:
            (folder / part / kind).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 60, (10, 12, 3))
                pixels += {"bright": 190, "dark": 0, "left": np.linspace(190, 0, 12, dtype=int)[None, :, None]}[kind]  # type: ignore[assignment]
                Image.fromarray(pixels.astype(np.uint8)).save(folder / part / kind / f"{i}.png")
    onnx.save(proto(TEXT), folder / "net.onnx")
    return folder


@pytest.fixture
def trained(images: Path, tmp_path: Path) -> Callable[..., tuple[Result, list[str]]]:
    def call(**options: Any) -> tuple[Result, list[str]]:
        lines: list[str] = []
        given = {
            "data": str(images),
            "model_path": str(images / "net.onnx"),
            "num_classes": 3,
            "workers": 0,
            "epochs": 2,
            "batch_size": 16,
            "lr": 0.003,
            "print_freq": 2,
            "sched": "constant",
            "output": tmp_path / "out",
        }
        torch.set_num_threads(1)
        return run(Settings(**{**given, **options}), lines.append), lines

    return call


def accuracy(file: Path, folder: Path, name: str = "image") -> float:
    """Top-1 in percent of a QDQ file in onnxruntime, one sample at a time as --onnx-batch 1 has it."""
    info = InputInfo("image", "float32", (1, 3, 8, 8))
    found = material.open_material(str(folder), info, batch_size=1, workers=0, seed=0, preprocess=None, image_size=8)
    options = onnxruntime.SessionOptions()  # integer kernels saturate on CPUs without VNNI
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    hits = [
        int(session.run(None, {name: b.inputs["image"].numpy()})[0].argmax()) == int(b.labels)  # type: ignore[arg-type]
        for b in found.val.epoch(0)
    ]
    return 100 * sum(hits) / len(hits)


def test_it_learns_and_writes_the_files_of_the_manual(
    trained: Callable[..., tuple[Result, list[str]]], images: Path, tmp_path: Path
) -> None:
    result, lines = trained(epochs=3)
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == [
        "net_bestonnx_quantization.onnx",
        "net_checkpoint.pth",
        "net_log.jsonl",
        "net_model_best.pth",
        "net_onnx_quantization.onnx",
    ]
    line = r"Epoch: \[1\]\[2/3\]\tTime +[\d.]+ \( *[\d.]+\)\tData +[\d.]+ \( *[\d.]+\)\tLoss [\d.e+-]+ \([\d.e+-]+\)"
    line = line.replace("2/3", "3/3") + r"\tAcc@1 +[\d.]+ \( *[\d.]+\)\tAcc@5 +[\d.]+ \( *[\d.]+\)"
    assert sum(bool(re.fullmatch(line, said)) for said in lines) == 1
    assert result.best is not None
    assert result.best >= 90
    best = onnx.load(out / "net_bestonnx_quantization.onnx")
    assert best.opset_import[0].version == 18
    assert best.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    assert accuracy(out / "net_bestonnx_quantization.onnx", images) == pytest.approx(result.best)
    entries = [json.loads(entry) for entry in (out / "net_log.jsonl").read_text().splitlines()]
    epochs = [entry for entry in entries if entry["event"] == "train"]
    assert [entry["epoch"] for entry in epochs] == [1, 2, 3]
    assert {"Time", "Data", "Loss", "Acc@1", "Acc@5"} <= set(epochs[0])
    held = torch.load(out / "net_checkpoint.pth", weights_only=True)
    assert (held["epoch"], held["arch"], held["best_acc1"]) == (3, "resnet18", result.best)
    scores, said = trained(resume=str(out / "net_model_best.pth"), evaluate=True)
    assert scores.scores.top1 == pytest.approx(result.best)
    assert said[-1] == f" * Acc@1 {result.best:.3f} Acc@5 100.000"
    settings = Settings(data=str(images), image_size=8, output=out)
    words = shlex.split(build_train.report(result, settings).next_command)
    assert words[:3] == ["onnxqat", "handoff", str(out / "net_bestonnx_quantization.onnx")]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given["--data"] == str(images / "val")
    assert "resize=9,crop=8x8," in given["--preprocess"]


def test_a_resumed_run_is_the_uninterrupted_one(
    trained: Callable[..., tuple[Result, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    trained(output=whole)
    from onnxqat.compat.classification.files import Files

    def stop(self: Files, held: dict[str, Any], *, best: bool) -> None:
        write(self, held, best=best)
        raise KeyboardInterrupt

    write = Files.write_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(Files, "write_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            trained()
    out = tmp_path / "out"
    assert torch.load(out / "net_checkpoint.pth", weights_only=True)["epoch"] == 1
    _, lines = trained(resume=str(out / "net_checkpoint.pth"))
    assert [line[:10] for line in lines if line.startswith("Epoch")] == ["Epoch: [1]"] * 2
    first, second = (torch.load(f / "net_checkpoint.pth", weights_only=True) for f in (whole, out))
    for key, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][key]), key
    name = "net_onnx_quantization.onnx"
    assert (whole / name).read_bytes() == (out / name).read_bytes()
    # The manual goes on with more epochs where those before were not enough.
    _, lines = trained(resume=str(out / "net_checkpoint.pth"), epochs=3)
    assert [line[:10] for line in lines if line.startswith("Epoch")] == ["Epoch: [2]"] * 2
    assert torch.load(out / "net_checkpoint.pth", weights_only=True)["epoch"] == 3


def test_a_qdq_file_is_a_start_too(trained: Callable[..., tuple[Result, list[str]]], tmp_path: Path) -> None:
    trained(epochs=1, onnx_batch=16)
    file = tmp_path / "out" / "net_onnx_quantization.onnx"
    result, lines = trained(resume=str(file), epochs=2, start_epoch=1, output=tmp_path / "more", onnx_batch=16)
    assert [line[:10] for line in lines if line.startswith("Epoch")] == ["Epoch: [1]"] * 2
    assert not [line for line in lines if "calibrating" in line]
    assert result.best is not None


def test_float_training_writes_a_float_model(trained: Callable[..., tuple[Result, list[str]]], tmp_path: Path) -> None:
    result, _ = trained(not_qat=True, epochs=2, optim="adam")
    assert result.best is not None
    best = onnx.load(tmp_path / "out" / "net_bestonnx.onnx")
    assert [node.op_type for node in best.graph.node] == ["Conv", "Relu", "MaxPool", "Flatten", "Gemm"]
    assert (tmp_path / "out" / "net_checkpoint.pth").exists()


class Small(nn.Module):
    """A zoo of one network, with BatchNormalization."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


def small(num_classes: int) -> nn.Module:
    return Small(num_classes)


def test_a_zoo_of_ones_own_and_a_teacher(
    trained: Callable[..., tuple[Result, list[str]]], images: Path, tmp_path: Path
) -> None:
    torch.save({"state_dict": {f"module.{k}": v for k, v in Small(3).state_dict().items()}}, tmp_path / "w.pth")
    result, _ = trained(
        model_zoo=__name__,
        arch="small",
        profile=True,
        model_path=str(tmp_path / "w.pth"),
        teacher_path=str(images / "net.onnx"),
        distill_method="kd",
        image_size=8,
        epochs=1,
        amp=True,
        optim="adamw",
        sched="cosine",
    )
    file = onnx.load(tmp_path / "out" / "small_bestonnx_quantization.onnx")
    assert not [node for node in file.graph.node if node.op_type == "BatchNormalization"]  # kept, then folded
    assert result.best is not None
    assert result.profile is not None
    assert {"weight", "activation"} <= {layer.role for layer in result.profile.tensors}
    for wrong, text in (({"arch": "smal"}, "small"), ({"model_zoo": "no_such_zoo"}, "no_such_zoo")):
        with pytest.raises(UsageError) as caught:
            trained(**{"model_zoo": __name__, "arch": "small", "model_path": None, "image_size": 8, **wrong})
        assert text in str(caught.value)


def test_the_score_is_that_of_the_file_that_is_written(
    trained: Callable[..., tuple[Result, list[str]]], images: Path, tmp_path: Path
) -> None:
    """BatchNormalization is kept through training and folded in the file, where single codes move."""
    result, lines = trained(model_zoo=__name__, arch="small", model_path=None, image_size=8, epochs=2, lr=0.05)
    file = tmp_path / "out" / "small_bestonnx_quantization.onnx"
    assert not [node for node in onnx.load(file).graph.node if node.op_type == "BatchNormalization"]
    assert result.file is not None
    assert result.file.samples == 24
    found = accuracy(file, images, "input")
    assert result.file.top1 == pytest.approx(found)
    assert result.best == pytest.approx(found)
    assert f" * Acc@1 {found:.3f}" in "\n".join(lines)
    assert f"in onnxruntime: Acc@1 {found:.3f} of 24 samples" in lines[-1]
    # The file that was written is evaluated at any --batch-size, although its batch is 1.
    again, _ = trained(model_path=str(file), evaluate=True, batch_size=256)
    assert again.scores.top1 == pytest.approx(found)


def test_a_run_that_did_not_help_says_so(
    trained: Callable[..., tuple[Result, list[str]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = iter((90.0, 80.0))
    monkeypatch.setattr(run_module, "measure", lambda *_: Scores(top1=next(found, 80.0), samples=24))
    result, _ = trained(epochs=1)
    assert (result.start, result.best) == (90.0, 80.0)
    assert "training did not help: Acc@1 was 90.000 before the first step and is 80.000" in caplog.text
    figures = {figure.key: figure.value for figure in build_train.report(result, Settings(data="x")).figures}
    assert figures["start_top1"] == 0.9


def test_the_opset_is_checked_before_training(
    trained: Callable[..., tuple[Result, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match="opset 13 cannot hold this model: it needs 17"):
        said = trained(opset_version=13)[1]
    assert said == []


def test_the_network_in_float_teaches_where_no_teacher_is_named(
    trained: Callable[..., tuple[Result, list[str]]], tmp_path: Path
) -> None:
    trained(distill_method="kd", epochs=1)
    checkpoint = str(tmp_path / "out" / "net_checkpoint.pth")
    assert trained(distill_method="kd", epochs=2, resume=checkpoint)[0].best is not None
    with pytest.raises(UsageError, match="no float network to learn from"):
        trained(distill_method="kd", epochs=3, resume=checkpoint, model_path=None)


def test_a_zoo_in_the_working_folder(
    trained: Callable[..., tuple[Result, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\n\n\ndef tiny(num_classes):\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, num_classes))\n"
    (tmp_path / "zoo_of_this_folder.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    result, _ = trained(model_zoo="zoo_of_this_folder", arch="tiny", model_path=None, image_size=8, epochs=1)
    assert result.best is not None


def test_images_of_the_networks_size_lose_no_margin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / part / "one" / "x.png")
    info = InputInfo("image", "float32", ("N", 3, 8, 8))
    options: dict[str, Any] = {"batch_size": 1, "workers": 0, "seed": 0, "image_size": 8}
    found = material.open_material(str(tmp_path), info, preprocess=None, **options)
    assert "no --preprocess was given" in caplog.text
    wanted = (pixels / 255 - np.asarray([0.485, 0.456, 0.406])) / np.asarray([0.229, 0.224, 0.225])
    image = next(iter(found.val.epoch(0))).inputs["image"].numpy()[0]
    # Two roundings of float32 numbers up to 3.
    np.testing.assert_allclose(image, wanted.transpose(2, 0, 1), rtol=0, atol=1e-6)
    caplog.clear()
    material.open_material(str(tmp_path), info, preprocess="scale=1/255", **options)
    assert "no --preprocess" not in caplog.text


def test_what_does_not_fit_is_refused(
    trained: Callable[..., tuple[Result, list[str]]], images: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="3 classes, not 10"):
        trained(num_classes=10)
    with pytest.raises(UsageError, match="momentun"):
        trained(optim="momentun")
    with pytest.raises(QatError, match="no such file"):
        trained(resume="none.pth")
    torch.save({"state_dict": {}}, tmp_path / "other.pth")
    with pytest.raises(QatError, match="not a checkpoint of onnxqat train"):
        trained(resume=str(tmp_path / "other.pth"))
    with pytest.raises(DataError, match="no such folder"):
        trained(data=str(tmp_path / "none"))
    (tmp_path / "data" / "train" / "one").mkdir(parents=True)
    (tmp_path / "data" / "train" / "one" / "x.png").write_bytes(b"no image")
    (tmp_path / "data" / "val" / "two").mkdir(parents=True)
    with pytest.raises(DataError, match="no class of this name"):
        trained(data=str(tmp_path / "data"))
    (tmp_path / "data" / "val" / "two").rename(tmp_path / "data" / "val" / "one")
    (tmp_path / "data" / "val" / "one" / "x.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"x\.png: not a readable image"):
        trained(data=str(tmp_path / "data"))


def test_crops_follow_from_seed_epoch_and_image(images: Path) -> None:
    info = InputInfo("image", "float32", ("N", 3, 8, 8))

    def first(workers: int, seed: int, epoch: int) -> torch.Tensor:
        found = material.open_material(
            str(images), info, batch_size=48, workers=workers, seed=seed, preprocess=None, image_size=8
        )
        return next(iter(found.train.epoch(epoch))).inputs["image"]

    assert torch.equal(first(0, 1, 2), first(1, 1, 2))
    assert not torch.equal(first(0, 1, 2), first(0, 1, 3))
    assert not torch.equal(first(0, 1, 2), first(0, 2, 2))
    boxes = [material.crop_box(30, 20, np.random.default_rng(i)) for i in range(200)]
    assert all(0 <= left < right <= 30 and 0 <= top < bottom <= 20 for left, top, right, bottom in boxes)
    areas = [(right - left) * (bottom - top) / 600 for left, top, right, bottom in boxes]
    assert min(areas) < 0.2
    assert max(areas) > 0.8


def test_meters_and_hits() -> None:
    lines: list[str] = []
    meters = Meters("Epoch: [0]", 3, 2, lines.append)
    for top1, samples in ((50.0, 30), (100.0, 10), (0.0, 10)):
        meters.batch(seconds=0.5, data=0.25, loss=1.0, top1=top1, top5=100.0, samples=samples)
    assert [line.split("\t")[0] for line in lines] == ["Epoch: [0][1/3]", "Epoch: [0][3/3]"]
    assert meters.means == {"Time": 0.5, "Data": 0.25, "Loss": 1.0, "Acc@1": 50.0, "Acc@5": 100.0}
    outputs = torch.tensor([[3.0, 2, 1, 0, -1, -2, -3], [-3.0, -2, -1, 0, 1, 2, 3]])
    assert [int(x) for x in correct(outputs, torch.tensor([0, 1]))] == [1, 1]
    assert [int(x) for x in correct(outputs, torch.tensor([4, 2]))] == [0, 2]
    assert [int(x) for x in correct(outputs[:, :3], torch.tensor([1, 2]))] == [1, 2]
    # Of equal logits the first counts, whatever their number: topk took others. A label with NaN is not found.
    assert [int(x) for x in correct(torch.zeros(64, 40), torch.arange(64) % 40)] == [2, 10]
    assert [int(x) for x in correct(torch.tensor([[0.0, math.nan]]), torch.tensor([1]))] == [0, 0]
    assert [int(x) for x in correct(outputs, torch.tensor([-100, 6]))] == [1, 1]
    plan = cosine.Schedule(10)
    assert [Shifted(plan, 4).factor(s) for s in range(6)] == [plan.factor(s) for s in range(4, 10)]


def test_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int | None] = []
    nothing = {"each_gpu": False, "world_size": -1, "rank": -1, "dist_url": "tcp://127.0.0.1:23456"}
    processes.start(calls.append, **nothing)  # type: ignore[arg-type]
    under_torchrun = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "1")
    processes.start(calls.append, **{**nothing, "world_size": 4, "variables": under_torchrun})  # type: ignore[arg-type]
    assert calls == [None, None]
    assert processes.environment("tcp://host:1", 3, 4, 1) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "1",
    }
    for wrong in ("host:1", "tcp://host", "tcp://host:port"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            processes.environment(wrong, 0, 2, 0)
    with pytest.raises(UsageError, match="--rank 2"):
        processes.start(calls.append, **{**nothing, "world_size": 2, "rank": 2})  # type: ignore[arg-type]


def test_every_argument_of_the_manual() -> None:
    assert main.run(["train", "-h"]) == 0  # first, as click keeps the names of its option
    manual = {
        "--data": None, "--model-zoo": "torchvision", "--arch": "resnet18", "-a": "resnet18", "--teacher-arch": None,  # the manual has resnet101; here the network in float teaches

        "-nc": 1000, "--num-classes": 1000, "-j": 4, "--workers": 4, "--epochs": 90, "--start-epoch": 0, "-b": 256,
        "--batch-size": 256, "--lr": 0.1, "--learning-rate": 0.1, "--momentum": 0.9, "--wd": 1e-4,
        "--weight-decay": 1e-4, "-p": 100, "--print-freq": 100, "--resume": "", "-e": False, "--evaluate": False,
        "--pretrained": False, "--world-size": -1, "--rank": -1, "--dist-backend": "nccl", "--seed": None, "--gpu": None,
        "--multiprocessing-distributed": False, "--model-path": None, "--teacher-path": None, "--backend": "TSQAT",
        "--optim": "sgd", "--not-qat": False, "-l": 1, "--log-level": 1, "--profile": False, "--distill-method": None,
        "--distill-alpha": 0.95, "--temperature": 6.0, "--amp": False, "--onnx-batch": 1, "--opset-version": 18,
    }  # fmt: skip
    found = {opt: parameter for parameter in command.run.params for opt in parameter.opts}
    assert set(manual) | {"--dist-url", "--sched"} <= set(found)
    context = command.run.make_context("train", ["--data", "x"])
    for name, default in manual.items():
        if name != "--data":
            assert context.params[str(found[name].name)] == default, name
    defaults = {field: context.params[field] for field in ("lr", "sched", "temperature", "distill_alpha", "optim")}
    settings = Settings(data="x")
    assert {field: getattr(settings, field) for field in defaults} == defaults
    assert "Acc@1" in CliRunner().invoke(command.run, ["--help"]).output


@pytest.mark.slow
def test_two_processes_train_like_one(
    trained: Callable[..., tuple[Result, list[str]]], images: Path, tmp_path: Path
) -> None:
    """``--world-size 2`` with two ranks on this machine: the weights of one process within rounding."""
    arguments = ["--data", str(images), "--model-path", str(images / "net.onnx"), "-nc", "3", "-j", "0", "-b", "16"]
    arguments += ["--epochs", "1", "--lr", "0.003", "--sched", "constant", "-o", str(tmp_path / "two")]
    with held_port() as port:
        arguments += ["--world-size", "2", "--dist-url", f"tcp://127.0.0.1:{port}", "--json"]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "onnxqat", "train", *arguments, "--rank", str(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=hanging.SECONDS) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    trained(epochs=1)
    files = [tmp_path / name / "net_checkpoint.pth" for name in ("out", "two")]
    one, two = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=key)


def test_what_lies_in_the_folder_of_the_loop_stays(tmp_path: Path) -> None:
    for name, left in (("resnet18_state", False), ("resnet50_state", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "last.safetensors").touch()
        if left:
            (tmp_path / name / "photos.jpg").touch()
        Files(Settings(data="x", arch=name.removesuffix("_state"), output=tmp_path)).clean()
        assert (tmp_path / name).exists() == left
        assert not (tmp_path / name / "last.safetensors").exists()
    assert (tmp_path / "resnet50_state" / "photos.jpg").exists()
