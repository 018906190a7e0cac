"""``extensions check`` of compilers names the promise that one breaks, and each of them can be broken."""

from pathlib import Path

import pytest

from onnxqat.deployment import compiler_check
from onnxqat.deployment.base_compiler import BaseCompiler, CompilerResult
from onnxqat.deployment.compiler_check import check
from onnxqat.errors import CheckError
from onnxqat.pipeline.check import parse

COMPILER = """
import onnx, onnxruntime
from onnxqat.extend import BaseCompiler, CompilerResult, NodeResult

class Compiler(BaseCompiler):
    def compile_and_run(self, path, batches, artefacts=None):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        outputs = tuple(dict(zip(names, session.run(None, dict(batch)))) for batch in batches)
        nodes = tuple(
            NodeResult(node.name or node.output[0], node.op_type, "float", "mine", "as it says")
            for node in onnx.load(path).graph.node
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear")
        )
        files = ()
        # here
        return CompilerResult(outputs, nodes, files)
"""
FLOAT = "g (float[1,4] x) => (float[1,4] y) { a = Relu(x) y = Sigmoid(a) }"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each of two compilations takes seconds; tests of processes are those of the hand-off."""

    def run(compiler: BaseCompiler, path: Path, batches: object, *, artefacts: Path) -> CompilerResult:
        try:
            return compiler.compile_and_run(path, batches, artefacts)  # type: ignore[arg-type]
        except ZeroDivisionError as error:
            raise CheckError("handoff-failed", str(error)) from error

    monkeypatch.setattr(compiler_check, "compile_in_process", run)
    monkeypatch.setattr(compiler_check, "quantized_examples", lambda: (parse(FLOAT),))


def broken(tmp_path: Path, edit: str) -> dict[str, str]:
    path = tmp_path / "mine.py"
    path.write_text(COMPILER.replace("# here", edit), encoding="utf-8")
    return {f.name: f.message for f in check(str(path)).findings if not f.passed}


@pytest.mark.parametrize(
    ("edit", "promise", "said"),
    [
        ("1 / 0", "compiles", "division by zero"),
        ("nodes = nodes[1:]", "nodes", "nothing is said of the Relu"),
        ("nodes += nodes[:1]", "nodes", "reported twice"),
        ("nodes = (NodeResult('z', 'Relu', 'integer', ''), *nodes)", "nodes", "there is no Relu 'z'"),
        ("nodes = tuple(NodeResult(n.name, n.op_type, 'fast', '') for n in nodes)", "nodes", "kind 'fast'"),
        ("nodes = tuple(NodeResult(n.name, n.op_type, 'float', '') for n in nodes)", "reasons", "without a reason"),
        ("outputs = outputs[:1]", "outputs", "outputs of 1 batches instead of 2"),
        ("outputs = outputs[::-1]", "outputs", "not that of its batch"),
        ("outputs = tuple({'z': o['y']} for o in outputs)", "outputs", "outputs z instead of y"),
        ("outputs = tuple({'y': o['y'].ravel()} for o in outputs)", "outputs", "[4] instead of float32 [1, 4]"),
        ("(path.parent / 'log').write_text('')", "files", "'log' was written beside the model"),
        ("(artefacts / 'engine').write_text('')", "files", "names none, written were engine"),
        ("files = ('engine',)", "files", "names engine, written were none"),
        (
            "model = onnx.load(path)\n        model.doc_string = 'seen'\n        onnx.save(model, path)",
            "input",
            "was changed",
        ),
        (
            "self.calls = getattr(self, 'calls', 0) + 1\n        outputs = tuple({'y': o['y'] * self.calls} for o in outputs)",
            "second run",
            "is another one",
        ),
    ],
)
def test_a_broken_promise(edit: str, promise: str, said: str, tmp_path: Path) -> None:
    assert said in broken(tmp_path, edit)[promise]


def test_a_good_compiler(tmp_path: Path) -> None:
    assert broken(tmp_path, "") == {}
    assert broken(tmp_path, "(artefacts / 'engine').write_text('')\n        files = ('engine',)") == {}
