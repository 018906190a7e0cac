"""Each command does its work, prints it, and says so in JSON."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import onnx
import pytest

from onnxqat import __version__
from onnxqat.backends import schema
from onnxqat.cli import main
from onnxqat.discover import names
from onnxqat.graph import io
from onnxqat.graph import qdq as quantizers
from tests import hanging

Run = Callable[..., Any]
COMMANDS = [n.replace("_", "-") for n in names("onnxqat.cli.commands")]


def python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=hanging.SECONDS, check=False)


# ------------------------------------------------------------------ help and imports
def test_help(onnxqat: Run) -> None:
    done = onnxqat("--help")
    assert done.status == 0
    assert all(command in done.out for command in COMMANDS)


def leaves(group: click.Group) -> list[tuple[str, ...]]:
    """Every command that does something, by the words that call it."""
    found: list[tuple[str, ...]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += [(name, *rest) for rest in leaves(command)] if isinstance(command, click.Group) else [(name,)]
    return found


@pytest.mark.parametrize("command", leaves(main.command_line), ids=" ".join)
def test_help_of_a_command(command: tuple[str, ...], onnxqat: Run) -> None:
    done = onnxqat(*command, "--help")
    assert done.status == 0
    assert "--json" in done.out
    assert "Args:" not in done.out
    assert f"Example: onnxqat {' '.join(command)}" in " ".join(done.out.split())
    assert not re.search(r"--[a-z-]+-$", done.out, re.M), "the name of an option is broken"
    assert onnxqat(*command, "-h").out == done.out


@pytest.mark.parametrize("group", ["backends", "extensions", "methods", "passes"])
def test_a_group_alone_is_its_list(group: str, onnxqat: Run) -> None:
    assert onnxqat(group, "--json").json == onnxqat(group, "list", "--json").json
    early = onnxqat(group, "--json", "list")
    assert early.status == 2
    assert "behind the name" in early.json["error"]["message"]


def test_version(onnxqat: Run) -> None:
    assert onnxqat("--version").out.strip() == __version__


def test_starting_up_imports_nothing_heavy() -> None:
    code = """import sys
from onnxqat.cli import main
main.run(["--help"])
sys.exit(", ".join(sorted({"torch", "onnxruntime", "onnx", "onnx_ir", "numpy", "sympy"} & set(sys.modules))) or 0)"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_insert_qdq_needs_no_torch(folder: Path) -> None:
    code = """import sys
sys.modules["torch"] = None
from onnxqat.cli import main
sys.exit(main.run(sys.argv[1:]))"""
    done = python(code, "insert-qdq", "model.onnx", "-c", "data.npz")
    assert done.returncode == 0, done.stderr
    assert (folder / "model.qdq.onnx").exists()


def test_insert_qdq_loads_only_what_it_uses(folder: Path) -> None:
    code = """import sys
from onnxqat.cli import main
status = main.run(sys.argv[1:])
unwanted = {"torch", "pydantic", "typer", "rich", "jinja2", "sympy", "onnx.reference", "onnx_ir.passes.common"}
unwanted |= {f"onnxqat.{name}" for name in ("bridge", "training", "validation", "handoff")}
sys.exit(", ".join(sorted(unwanted & set(sys.modules))) or status)"""
    done = python(code, "insert-qdq", "model.onnx", "-c", "data.npz")
    assert done.returncode == 0, done.stderr


def test_a_command_imports_no_other(folder: Path) -> None:
    code = """import sys
from onnxqat.cli import main
main.run(sys.argv[1:])
print([name for name in sys.modules if name.startswith("onnxqat.cli.commands.")])"""
    assert "['onnxqat.cli.commands.insert_qdq']" in python(code, "insert-qdq", "--help").stdout


def test_interrupted(onnxqat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(schema, "names", interrupt)
    done = onnxqat("backends")
    assert done.status == 130
    assert done.err.strip() == "interrupted"


def test_a_defect_is_one_line_and_a_status_of_its_own(onnxqat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "names", lambda: 1 // 0)
    done = onnxqat("backends")
    assert done.status == 70
    assert done.err.startswith("internal error: ZeroDivisionError: ")
    assert "Traceback" not in done.err


def test_a_failure_that_is_blamed_on_the_model_is_shown_to_who_asks(
    onnxqat: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = "g (float[1,4] x) => (float[1,2] y) <int64[1] start = {0}, int64[1] end = {2}, int64[1] axis = {5}>"
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(f"{header} {graph} {{ y = Slice(x, start, end, axis) }}"), tmp_path / "axis.onnx")
    command = ("simulate", str(tmp_path / "axis.onnx"), "--random-data")
    assert onnxqat(*command).err.startswith("error[model-not-runnable]: ")
    monkeypatch.setenv("ONNXQAT_DEBUG", "1")
    assert "IndexError: " in onnxqat(*command).err


# ------------------------------------------------------------------ insert-qdq
def test_insert_qdq(folder: Path, onnxqat: Run) -> None:
    before = (folder / "model.onnx").read_bytes()
    done = onnxqat("insert-qdq", "model.onnx", "--calibration", "data.npz")
    assert done.status == 0, done.err
    assert done.err == ""
    assert "model.qdq.onnx" in done.out
    assert "onnxqat finetune model.qdq.onnx" in done.out
    assert (folder / "model.onnx").read_bytes() == before
    onnx.checker.check_model(onnx.load(folder / "model.qdq.onnx"), full_check=True)
    assert sorted(p.name for p in folder.iterdir()) == ["data.npz", "images", "model.onnx", "model.qdq.onnx"]


def test_insert_qdq_from_images(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("insert-qdq", "model.onnx", "-c", "images", "--preprocess", "scale=1/255", "-o", "out.onnx")
    assert done.status == 0, done.err
    assert (folder / "out.onnx").exists()
    assert not (folder / "model.qdq.onnx").exists()


def test_insert_qdq_json(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("insert-qdq", "model.onnx", "-c", "data.npz", "--json", "--backend", "openvino-cpu")
    assert done.status == 0
    assert done.err == ""
    assert done.json["files"] == ["model.qdq.onnx"]
    assert "openvino-cpu" in done.out
    assert "rule" not in done.out


def test_explain(folder: Path, onnxqat: Run) -> None:
    done = onnxqat("insert-qdq", "model.onnx", "-c", "data.npz", "--explain", "--json")
    text = done.out
    assert all(rule in text for rule in ("Conv input 0", "Conv output behind its activation", "Conv bias"))
    plain = onnxqat("insert-qdq", "model.onnx", "-c", "data.npz", "--explain")
    assert "Why each tensor is treated as it is" in plain.out


def test_every_option_of_insert_qdq(folder: Path, onnxqat: Run) -> None:
    done = onnxqat(
        *("insert-qdq", "model.onnx", "-c", "data.npz", "--backend", "openvino-cpu", "--bits", "4,6"),
        *("--per-tensor", "--observer", "mse", "--first-last-bits", "8", "--full-range", "--activation-type", "int8"),
        *("--batch-size", "4", "--limit", "8", "--exclude", "pool", "--exclude-op", "Flatten", "--html", "r.html"),
        *("-o", "out.onnx"),
    )
    assert done.status == 0, done.err
    assert (folder / "r.html").stat().st_size > 1000
    found = {q.tensor: q for q in quantizers.quantizers(io.load(folder / "out.onnx"))}
    assert found["w"].qparams.axis is None
    assert found["image"].qparams.qtype.storage == "int8"
    assert "excluded by 'pool'" in done.out


def test_include(folder: Path, onnxqat: Run) -> None:
    assert onnxqat("insert-qdq", "model.onnx", "-c", "data.npz", "--include", "head").status == 0
    tensors = {q.tensor for q in quantizers.quantizers(io.load(folder / "model.qdq.onnx"))}
    assert tensors == {"f", "v", "c_DequantizeLinear_Output"}


def test_random_data(folder: Path, onnxqat: Run) -> None:
    assert onnxqat("insert-qdq", "model.onnx", "--random-data").status == 0


def test_replace(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat("insert-qdq", qdq, "-c", "data.npz", "--replace", "--backend", "tensorrt", "-o", "again.onnx")
    assert done.status == 0, done.err
    assert not any(q.qparams.qtype.storage == "uint8" for q in quantizers.quantizers(io.load("again.onnx")))


# ------------------------------------------------------------------ the other commands
def test_finetune(qdq: Path, onnxqat: Run) -> None:
    before = qdq.read_bytes()
    done = onnxqat(
        "finetune", "model.qdq.onnx", "--data", "data.npz", "--teacher", "model.onnx", "--max-steps", "2", "--json"
    )
    assert done.status == 0, done.err
    assert done.json["files"] == ["model.qdq.tuned.onnx"]
    assert qdq.read_bytes() == before
    assert Path("model.qdq.tuned.onnx").read_bytes() != before


def test_validate(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat("validate", "model.onnx", "model.qdq.onnx", "--data", "data.npz", "--json")
    assert done.status == 0, done.out
    assert done.json["passed"] is True
    text = onnxqat("validate", "model.onnx", "model.qdq.onnx", "--random-data", "--no-torch")
    assert text.status == 0


def test_validate_fails_with_status_1(qdq: Path, onnxqat: Run) -> None:
    other = onnx.load("model.onnx")
    for tensor in other.graph.initializer:
        if tensor.name == "v":
            tensor.CopyFrom(onnx.helper.make_tensor("v", 1, [4, 4], [float((7 * i) % 5) for i in range(16)]))
    onnx.save(other, "other.onnx")
    done = onnxqat(
        "validate", "other.onnx", "model.qdq.onnx", "--data", "data.npz", "--max-differing-top1", "-1", "--json"
    )
    assert done.status == 1
    assert done.json["passed"] is False
    assert done.json["failures"]


def test_handoff(qdq: Path, onnxqat: Run) -> None:
    done = onnxqat(
        "handoff", "model.qdq.onnx", "--backend", "onnxruntime-cpu", "-o", "bundle", "--data", "data.npz", "--json"
    )
    assert done.status == 0, done.out
    assert done.json["kind"] == "handoff"
    assert {"model.onnx", "manifest.json", "report.json"} <= {p.name for p in Path("bundle").iterdir()}
    onnx.checker.check_model(onnx.load("bundle/model.onnx"), full_check=True)


def test_options_of_finetune_default_to_those_of_python() -> None:
    from onnxqat.cli.commands import finetune as command
    from onnxqat.training.config import OptimizerConfig
    from onnxqat.training.finetune import finetune
    from onnxqat.training.objective.losses import Loss

    ours = command.run.make_context("finetune", ["model.qdq.onnx"]).params
    theirs = {name: p.default for name, p in inspect.signature(finetune).parameters.items()}
    same = ("method", "epochs", "max_steps", "batch_size", "optimizer", "schedule", "learning_rate", "seed")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert (ours["weight_decay"], ours["ema"]) == (OptimizerConfig().weight_decay, OptimizerConfig().ema)
    assert (ours["alpha"], ours["temperature"]) == (Loss().alpha, Loss().temperature)
