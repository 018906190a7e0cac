"""Modules and example inputs by words, and the command that takes them."""

import textwrap

import onnx
import pytest
import torch

from onnxqat.cli import main
from onnxqat.errors import QatError
from onnxqat.from_torch import named


def test_examples_repeat_and_have_the_types_asked_for() -> None:
    first, ids = named.examples(["2,3,4", "1x8:int64"])
    assert torch.equal(first, named.examples(["2,3,4", "1x8:int64"])[0])
    assert (ids.dtype, tuple(ids.shape), first.dtype) == (torch.int64, (1, 8), torch.float32)
    assert list(named.examples(["a=1,2:float16", "b=3"])) == ["a", "b"]


@pytest.mark.parametrize("shapes", [[], ["a,b"], ["1,2:int65"], ["a=1", "2"], ["1,-2"], ["1,x"], ["1,,2"]])
def test_no_shapes(shapes: list[str]) -> None:
    with pytest.raises(QatError) as failed:
        named.examples(shapes)
    assert failed.value.code == "option-invalid"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    text = """
        import torch
        linear = torch.nn.Linear(4, 2)
        class Net(torch.nn.Module):
            def forward(self, tokens, scale):
                return {"y": torch.nn.functional.one_hot(tokens, 4) * scale}
        def number(): return 3
        def broken(): raise RuntimeError("no weights here")
    """
    (tmp_path / "networks_of_test.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("networks_of_test", "option-invalid"),
        ("./networks_of_test:linear", "option-invalid"),
        ("networks_of_test:missing", "data-not-found"),
        ("networks_of_test:broken", "data-not-found"),
        ("networks_of_test:number", "data-format"),
    ],
)
def test_no_module(folder, text: str, code: str, capsys) -> None:
    assert main.run(["export", text, "--example-shape", "1,4"]) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_the_command(folder, capsys) -> None:
    options = ["--exporter", "torchscript", "--opset", "17", "--json"]
    assert main.run(["export", "networks_of_test:linear", "--example-shape", "1,4", *options]) == 0
    assert onnx.load(folder / "linear.onnx").opset_import[0].version == 17
    assert '"exporter": "torchscript"' in capsys.readouterr().out


def test_inputs_and_axes_by_name(folder) -> None:
    options = ["--exporter", "torchscript", "--fixed-batch", "--dynamic-axis", "tokens:1=length", "-o", "net.onnx"]
    shapes = ["--example-shape", "tokens=2,5:int64", "--example-shape", "scale=1"]
    assert main.run(["export", "networks_of_test:Net", *shapes, *options, "--output-name", "z"]) == 0
    graph = onnx.load(folder / "net.onnx").graph
    assert [v.name for v in (*graph.input, *graph.output)] == ["tokens", "scale", "z"]
    assert [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [2, "length"]


@pytest.mark.parametrize("text", ["image=height", "image:two=height", "image:2"])
def test_no_axis(folder, text: str) -> None:
    words = ["export", "networks_of_test:linear", "--example-shape", "1,4", "--dynamic-axis", text]
    assert main.run(words) == 2
