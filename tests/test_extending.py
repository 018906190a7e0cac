"""Each row of CONTRIBUTING's table of extensions: one file outside of the package, used by its command."""

import importlib.metadata
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat import extend, extension, kinds
from onnxqat.calibration import observers
from onnxqat.data import inputs, preprocess_file
from onnxqat.data.data import open_data
from onnxqat.deployment import base_compiler
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.linting import lint
from onnxqat.metrics import _score
from onnxqat.pipeline import lookup
from onnxqat.training.callbacks import _found as callback_files
from onnxqat.training.objective import _found as loss_files
from onnxqat.types import QType, TensorSpec
from tests.cli.conftest import folder
from tests.cli.conftest import onnxqat as command

Run = Callable[..., Any]
__all__ = ["command", "folder"]  # fixtures

PASS = '''
import onnx_ir as ir
from onnxqat.extend import Pass, Rewrite

EXAMPLES = ("g (float[2] x) => (float[2] y) { a = Relu(x) y = Relu(a) }",)

class RemoveDoubleRelu(Pass):
    """A Relu of a Relu is removed."""

    def rewrite(self, model, context):
        changed = False
        for body in (model.graph, *model.functions.values()):
            for node in list(body.all_nodes()):
                source = node.inputs[0].producer() if node.op_type == "Relu" and node.inputs[0] else None
                if source is not None and source.op_type == "Relu" and not source.outputs[0].is_graph_output():
                    node.replace_input_with(0, source.inputs[0])
                    if not source.outputs[0].uses():
                        source.graph.remove(source, safe=True)
                    changed = True
        return Rewrite(changed)
'''
FUNCTION = """
def rename_relu(graph):
    for node in graph.nodes:
        if node.op == "Relu":
            node.name = "renamed"
"""
OBSERVER = """
from onnxqat.calibration.observers import minmax

class Observer(minmax.Observer):
    def _clipped(self):
        return self.low / 2, self.high / 2
"""
TABLE = """
schema: 1
backend: my-chip
extends: onnxruntime-cpu
route: my_compiler.py
types:
  act: {observer: my_observer.py}
"""
COMPILER = """
import onnx
import onnxruntime
from onnxqat.extend import BaseCompiler, CompilerResult, NodeResult

class Compiler(BaseCompiler):
    package = "onnxruntime"

    def compile_and_run(self, path, batches, artefacts=None):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        outputs = tuple(dict(zip(names, session.run(None, dict(batch)))) for batch in batches)
        nodes = tuple(
            NodeResult(node.name, node.op_type, "float", "mine", "as it says")
            for node in onnx.load(path).graph.node
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear")
        )
        return CompilerResult(outputs, nodes)
"""
METRIC = """
import numpy as np
from onnxqat.extend import BaseMetric

class Metric(BaseMetric):
    needs = "labels"

    def __init__(self):
        self.right, self.seen = np.zeros(4), np.zeros(4)

    def update(self, batch):
        (output,) = batch.outputs.values()
        np.add.at(self.right, batch.labels, output.argmax(1) == batch.labels)
        np.add.at(self.seen, batch.labels, 1)

    def result(self):
        return float((self.right / np.maximum(self.seen, 1))[self.seen > 0].min())
"""
RULES = """
from onnxqat.extend import Found, Rule

def check(file):
    for node in file.model.graph:
        if node.op_type == "Relu":
            yield Found("a Relu", node=node)

RULES = (Rule("relu-there", "warning", "a Relu", "it is ours", "none", "house", check),)
"""
CALLBACK = """
from pathlib import Path
from onnxqat.extend import Callback

class Counted(Callback):
    def after_step(self, step):
        with open("steps.txt", "a") as file:
            file.write(f"{step}\\n")
"""
LOSS = """
def loss(outputs, labels, teacher):
    with open("losses.txt", "a") as file:
        file.write(f"{labels is None} {teacher is None}\\n")
    return outputs[0].square().mean()
"""
PREPROCESS = """
import numpy as np

def preprocess(image):
    return np.asarray(image.convert("RGB").resize((8, 8)), np.float32).transpose(2, 0, 1) / 510
"""


@pytest.fixture
def scratch(folder: Path) -> Path:
    """A model, data, and the files of a user."""
    for name, text in {
        "remove_double_relu.py": PASS,
        "rename_relu.py": FUNCTION,
        "my_observer.py": OBSERVER,
        "my_chip.yaml": TABLE,
        "my_compiler.py": COMPILER,
        "my_rules.py": RULES,
        "my_callback.py": CALLBACK,
        "my_loss.py": LOSS,
        "my_preprocess.py": PREPROCESS,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def made(command: Run, *options: str) -> onnx.ModelProto:
    done = command("insert-qdq", "model.onnx", "-c", "data.npz", "--fast", "-o", "out.onnx", *options)
    assert done.status == 0, done.err
    return onnx.load("out.onnx")


def notes(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def test_a_pass(scratch: Path, command: Run) -> None:
    checked = command("passes", "check", "remove_double_relu.py", "--json")
    assert checked.status == 0, checked.out
    assert checked.json["changed"] == 1
    before = made(command)
    after = made(command, "--pass", "rename_relu.py:after=lift-constants", "--pass", "remove_double_relu.py")
    assert "onnxqat.passes" not in notes(before)
    assert notes(after)["onnxqat.passes"] == "rename-relu, remove-double-relu"
    assert "renamed" in {node.name for node in after.graph.node}
    assert command("passes", "run", "rename_relu.py", "model.onnx", "-o", "renamed.onnx").status == 0
    assert "renamed" in {node.name for node in onnx.load("renamed.onnx").graph.node}


def test_an_observer(scratch: Path, command: Run) -> None:
    def scale(model: onnx.ModelProto) -> float:
        tensor = next(t for t in model.graph.initializer if t.name == "image_scale")
        return float(onnx.numpy_helper.to_array(tensor))

    whole, half = made(command, "--observer", "minmax"), made(command, "--observer", "my_observer.py")
    assert scale(half) == pytest.approx(scale(whole) / 2, rel=1e-6)
    assert "my_observer.py" not in notes(half)["onnxqat.activations"]
    assert "my_observer" in notes(half)["onnxqat.activations"]


def test_a_table_with_an_observer_and_a_compiler(scratch: Path, command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("backends", "check", "my_chip.yaml").status == 0
    assert "my_observer" in notes(made(command, "--backend", "my_chip.yaml"))["onnxqat.activations"]
    (scratch / "elsewhere").mkdir()
    monkeypatch.chdir(scratch / "elsewhere")  # paths in a table are relative to the table
    done = command("handoff", "../out.onnx", "--backend", "../my_chip.yaml", "--data", "../data.npz", "-o", "bundle")
    assert done.status == 0, done.err
    manifest = next(Path("bundle").glob("*.json"))
    assert '"my-compiler"' in manifest.read_text(encoding="utf-8")


def test_a_compiler(scratch: Path, command: Run) -> None:
    made(command)
    bundle = ("--data", "data.npz", "-o", "bundle", "--compiler", "my_compiler.py", "--json")
    done = command("handoff", "out.onnx", "--backend", "onnxruntime-cpu", *bundle)
    assert done.status == 0, done.err
    assert "my-compiler" in done.out


def test_a_lint_rule(scratch: Path, command: Run) -> None:
    done = command("lint", "model.onnx", "--rules", "my_rules.py", "--json")
    assert done.status == 0
    assert "relu-there" in done.out
    assert "relu-there" not in command("lint", "model.onnx", "--json").out
    sarif = json.loads(command("lint", "model.onnx", "--rules", "my_rules.py", "--format", "sarif").out)
    assert [rule["id"] for rule in sarif["runs"][0]["tool"]["driver"]["rules"]].count("relu-there") == 1
    Path("again.py").write_text(RULES, encoding="utf-8")
    twice = command("lint", "model.onnx", "--rules", "my_rules.py", "--rules", "again.py")
    assert twice.status == 2
    assert "'relu-there' already" in twice.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("insert-qdq", "model.onnx", "--random-data", "--pass", "absent.py"), "no pass file 'absent.py'"),
        (("insert-qdq", "model.onnx", "--random-data", "--pass", "empty.py"), "neither a subclass of Pass nor"),
        (
            ("insert-qdq", "model.onnx", "--random-data", "--pass", "fold-pad:after=fold-pads"),
            "did you mean fold-pad, ",
        ),
        (("insert-qdq", "model.onnx", "--random-data", "--pass", "fold-pad:beside=fold-pad"), "before=NAME or after"),
        (("insert-qdq", "model.onnx", "--random-data", "--pass", "tie-groups"), "cannot be made without arguments"),
        (("insert-qdq", "model.onnx", "--random-data", "--pass", "fails.py"), "error[pass-failed]"),
        (("passes", "run", "fails.py", "model.onnx", "-o", "new.onnx"), "pass fails: ZeroDivisionError"),
        (("passes", "run", "fold_pat", "model.onnx", "-o", "new.onnx"), "did you mean fold-pad"),
        (("passes", "check", "unclear.py"), "call the argument `model`"),
        (("passes", "check", "no_model.py"), "an entry of EXAMPLES is no model"),
        (("insert-qdq", "model.onnx", "--random-data", "--observer", "empty.py"), "no class Observer that is a Base"),
        (("lint", "model.onnx", "--rules", "empty.py"), "there is no RULES"),
        (("lint", "model.onnx", "--rules", "broken.py"), "NameError"),
    ],
)
def test_refused(arguments: tuple[str, ...], said: str, scratch: Path, command: Run) -> None:
    Path("empty.py").write_text("", encoding="utf-8")
    Path("broken.py").write_text("undefined\n", encoding="utf-8")
    Path("fails.py").write_text("def fails(model):\n    1 / 0\n", encoding="utf-8")
    Path("unclear.py").write_text("def unclear(x):\n    pass\n", encoding="utf-8")
    Path("no_model.py").write_text("EXAMPLES = ('nonsense',)\ndef no_model(model):\n    pass\n", encoding="utf-8")
    done = command(*arguments)
    assert done.status == 2, done.out
    assert said in done.err
    assert "hint" in done.err or "no pass file" in said


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PASS, "pass"),
        (FUNCTION, "pass"),
        (OBSERVER, "observer"),
        (COMPILER, "compiler"),
        (RULES, "rules"),
        (CALLBACK, "callback"),
        (LOSS, "loss"),
        (PREPROCESS, "preprocess"),
    ],
)
def test_the_kind_of_a_file(text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert kinds.kind_of(str(tmp_path / "mine.py")) == kind


def test_files_are_tried_by_their_kind(scratch: Path, command: Run) -> None:
    observer = command("extensions", "check", "my_observer.py", "--json")
    assert observer.json["kind"] == "observer"
    assert observer.status == 0, observer.out
    assert command("extensions", "check", "remove_double_relu.py").status == 0
    assert command("extensions", "check", "my_observer.py", "--kind", "pass").status == 2
    Path("wide.py").write_text(OBSERVER.replace("/ 2, ", "* 2, "), encoding="utf-8")
    wide = command("extensions", "check", "wide.py")
    assert wide.status == 1
    assert "is outside of the values" in wide.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent.py",), "there is no pass file"),
        (("minmax",), "say of which kind: pass, observer"),
        (("minmax", "--kind", "obsever"), "did you mean observer?"),
        (("minmaxx", "--kind", "observer"), "did you mean minmax"),
        (("two.py",), "has Observer and RULES"),
    ],
)
def test_what_cannot_be_tried(arguments: tuple[str, ...], said: str, scratch: Path, command: Run) -> None:
    Path("two.py").write_text(OBSERVER + "RULES = ()", encoding="utf-8")
    done = command("extensions", "check", *arguments)
    assert done.status == 2
    assert said in done.err


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for folder_name, factor in (("a", 2), ("b", 4)):
        (tmp_path / folder_name).mkdir()
        (tmp_path / folder_name / "mine.py").write_text(OBSERVER.replace("/ 2", f"/ {factor}"), encoding="utf-8")
    one, two = (
        observers.create(TensorSpec(QType.of(8, signed=True), observer=str(tmp_path / f / "mine.py")))
        for f in ("a", "b")
    )
    again = observers.create(TensorSpec(QType.of(8, signed=True), observer=str(tmp_path / "a" / "mine.py")))
    assert type(one) is type(again)
    assert type(one) is not type(two)


def test_an_observer_in_a_folder_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "my files").mkdir()
    path = tmp_path / "my files" / "mine.py"
    path.write_text("from onnxqat.calibration.observers.percentile import Observer\n", encoding="utf-8")
    assert observers.create(TensorSpec(QType.of(8, signed=True), observer=f"{path} 99")).spec.observer.endswith("99")


def test_a_metric(scratch: Path) -> None:
    Path("worst_class.py").write_text(METRIC, encoding="utf-8")
    data = open_data("data.npz", inputs.of_graph(io.load("model.onnx").graph))
    score = _score.resolve("worst_class.py", data=data)
    assert score.name == "worst-class"
    assert score(lambda feeds: {"logits": np.eye(4)[[0] * len(feeds["image"])]}) == 0.0  # type: ignore[arg-type]


def test_a_callback_and_a_loss(scratch: Path, command: Run) -> None:
    made(command)
    run = ("finetune", "out.onnx", "--data", "data.npz", "--max-steps", "2", "-o", "tuned.onnx")
    done = command(*run, "--callback", "my_callback.py", "--loss", "my_loss.py")
    assert done.status == 0, done.err
    assert Path("steps.txt").read_text().split() == ["0", "1"]
    assert set(Path("losses.txt").read_text().splitlines()) == {"False True"}
    refused = command(*run, "--loss", "my_loss.py", "--alpha", "0.2")
    assert refused.status == 2
    assert "--alpha" in refused.err


def test_a_preprocessing(scratch: Path, command: Run) -> None:
    from PIL import Image

    Path("pictures").mkdir()
    for number in range(4):
        Image.new("L", (12, 9), 60 * number).save(f"pictures/{number}.png")
    given = ("-c", "pictures", "--preprocess", "my_preprocess.py", "--observer", "minmax", "--fast", "-o", "out.onnx")
    done = command("insert-qdq", "model.onnx", *given)
    assert done.status == 0, done.err
    model = onnx.load("out.onnx")
    scale = next(t for t in model.graph.initializer if t.name == "image_scale")
    # The lightest picture is 180 / 510; by default it would be 180 / 255.
    assert float(onnx.numpy_helper.to_array(scale)) == pytest.approx(180 / 510 / 255, rel=0.02)
    assert notes(model)["onnxqat.preprocess"] == "my_preprocess.py"


OF_TORCH = [callback_files.KIND, loss_files.KIND]
OTHERS = [_score.KIND, lookup.KIND, observers.KIND, base_compiler.KIND, lint.KIND, preprocess_file.KIND]


@pytest.mark.parametrize("kind", [*OTHERS, *OF_TORCH])
def test_entry_points(kind: extension.Kind, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("worst_class.py").write_text(METRIC, encoding="utf-8")
    files = {
        "metric": "worst_class",
        "pass": "remove_double_relu",
        "observer": "my_observer",
        "compiler": "my_compiler",
        "rule file": "my_rules",
        "callback": "my_callback",
        "loss": "my_loss",
        "preprocessing": "my_preprocess",
    }
    module = files[kind.name]
    point = importlib.metadata.EntryPoint("of-another-package", module, kind.group)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == kind.group else [])
    monkeypatch.syspath_prepend(str(scratch))
    assert extension.load(kind, "of_another_package").__name__ == module
    assert "of-another-package" in extension.names(kind)
    assert [found.__name__ for found in extension.installed(kind)] == [module]
    sys.modules.pop(module)


def test_every_row_of_the_table_has_a_page_and_a_kind(repository: Path) -> None:
    page = (repository / "docs" / "extending.md").read_text(encoding="utf-8")
    groups = set(re.findall(r"`(onnxqat\.[a-z]+)` \|", page))
    from onnxqat.training.methods import _found

    kinds = [*OTHERS, *OF_TORCH, _found.KIND]
    assert groups == {kind.group for kind in kinds} | {"onnxqat.backends"}
    assert all((repository / kind.page).is_file() for kind in kinds)


@pytest.mark.parametrize("name", extend.__all__)
def test_what_extensions_derive_from(name: str) -> None:
    assert getattr(extend, name).__name__ == name


def test_passes_in_python(folder: Path) -> None:
    seen = []

    def first(model: Any) -> None:
        seen.append("first")

    class Second(extend.Pass):
        def rewrite(self, model: Any, context: extend.Context) -> extend.Rewrite:
            seen.append("second")
            return extend.Rewrite(False)

    with pytest.raises(UsageError, match="is no pass"):
        onnxqat.insert_qdq("model.onnx", random_data=True, passes=[3])  # type: ignore[list-item]
    images = np.load("data.npz")["image"]
    given = [Second, (first, "before=close-initializers")]
    onnxqat.insert_qdq("model.onnx", data={"image": images}, passes=given, fast=True)  # type: ignore[arg-type]
    assert seen == ["first", "second"]
