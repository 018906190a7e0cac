"""A module becomes a float model with its names, its numbers and a free batch, and is as it was afterwards."""

import logging
import random
import sys
from collections import namedtuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onnxqat
from onnxqat.errors import CheckError, DataError, QatError, UnsupportedError, UsageError
from onnxqat.from_torch import check
from onnxqat.from_torch.export import run
from onnxqat.graph import io
from tests.from_torch.modules import Block, Call, image
from tests.torch_releases import since_2_7

DYNAMO = pytest.param("dynamo", marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"))
BOTH = pytest.mark.parametrize("exporter", ["torchscript", DYNAMO])


def shapes(values) -> dict[str, list[int | str]]:
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@BOTH
@since_2_7
def test_folded_with_names_and_a_free_batch(exporter: str) -> None:
    model = onnxqat.export(Block(), image(1), exporter=exporter, output_names=["logits"])
    assert shapes(model.graph.input) == {"image": ["batch", 3, 6, 6]}
    assert shapes(model.graph.output) == {"logits": ["batch", 2]}
    assert operators(model).count("Conv") == 2
    assert "BatchNormalization" not in operators(model)
    assert {"first.0.weight", "classifier.weight"} <= {v.name for v in model.graph.initializer}
    assert any(node.name.startswith("/classifier/") for node in model.graph.node)
    assert model.opset_import[0].version == 18


@BOTH
@since_2_7
def test_kept_batch_normalization_shares_nothing(exporter: str) -> None:
    module = Block()
    model = onnxqat.export(module, image(), exporter=exporter, batch_norm="keep")
    assert operators(model).count("BatchNormalization") == 2
    norms = [list(node.input)[1:] for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert norms == [
        [f"{part}.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
        for part in ("first", "second")
    ]
    assert {"first.1.bias", "second.1.bias"} <= {v.name for v in model.graph.initializer}


def test_the_module_is_as_before() -> None:
    class Counting(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, image: Tensor) -> Tensor:
            self.calls += 1
            np.random.rand()  # noqa: NPY002 - as modules do
            random.random()
            torch.rand(1)
            return super().forward(image)

    module = Counting().train()
    module.second.eval()
    flags = {name: m.training for name, m in module.named_modules()}
    state = {name: t.clone() for name, t in module.state_dict().items()}
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    onnxqat.export(module, image(), exporter="torchscript")
    drawn = [float(torch.rand(1)), np.random.rand(), random.random()]  # noqa: NPY002
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    assert drawn == [float(torch.rand(1)), np.random.rand(), random.random()]  # noqa: NPY002
    assert {name: m.training for name, m in module.named_modules()} == flags
    assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_two_exports_are_equal(tmp_path) -> None:
    module = Block()
    files = [onnxqat.export(module, image(), tmp_path / f"{i}.onnx", exporter="torchscript") for i in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b".py" not in files[0].read_bytes()


class Nested(nn.Module):
    """Lists, dicts, constants and None, in and out."""

    def forward(self, features, scale=1.0, *, mask=None):
        total = features[0] * scale + features[1]["deep"]
        total = total if mask is None else total * mask
        return {"total": total, "parts": (features[0], None)}


def test_nested_inputs_and_outputs() -> None:
    x = image()
    model = onnxqat.export(Nested(), {"features": [x, {"deep": x}], "scale": 3.0, "mask": x}, exporter="torchscript")
    assert list(shapes(model.graph.input)) == ["features_0", "features_1_deep", "mask"]
    assert list(shapes(model.graph.output)) == ["total", "parts_0"]


def test_named_tuples_and_colliding_names() -> None:
    pair = namedtuple("pair", ["x", "rest"])
    model = onnxqat.export(Call(lambda x: pair(x + 1, x * 2)), image(), exporter="torchscript")
    assert list(shapes(model.graph.output)) == ["x_output", "rest"]


def test_dynamic_axes_by_name_and_without_a_batch() -> None:
    module = nn.Conv2d(3, 2, 3)
    model = onnxqat.export(
        module, image(), exporter="torchscript", dynamic_shapes={"input": {2: "height", -1: torch.export.Dim("width")}}
    )
    assert shapes(model.graph.input) == {"input": ["batch", 3, "height", "width"]}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"input": np.zeros((5, 3, 9, 7), np.float32)})[0].shape == (5, 2, 7, 5)
    fixed = onnxqat.export(module, image(), exporter="torchscript", dynamic_batch=False)
    assert shapes(fixed.graph.input) == {"input": [2, 3, 6, 6]}


def test_a_module_with_a_fixed_batch_says_so() -> None:
    found = run(Call(lambda x: x.reshape(2, 3, 36)), image(2), exporter="torchscript")
    assert any("batch size is fixed" in r.message for r in found.remarks)
    assert shapes(io.to_proto(found.model).graph.input) == {"x": [2, 3, 6, 6]}


@pytest.mark.filterwarnings("ignore:.*(DataParallel|torch.jit).*")
def test_wrappers_are_taken_off() -> None:
    model = onnxqat.export(nn.DataParallel(Block()), image(), exporter="torchscript")
    assert "first.0.weight" in {v.name for v in model.graph.initializer}
    compiled = torch.compile(Block())
    assert operators(onnxqat.export(compiled, image(), exporter="torchscript")) == operators(model)


@pytest.mark.parametrize("opset", [11, 13, 20])
def test_opset(opset: int) -> None:
    model = onnxqat.export(Block(), image(), exporter="torchscript", opset=opset)
    assert model.opset_import[0].version == opset


def test_half_precision() -> None:
    model = onnxqat.export(Call(lambda x: torch.relu(x) * 2), image().half(), exporter="torchscript")
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_without_onnxscript(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError) as failed:
        onnxqat.export(Block(), image(), exporter="dynamo")
    assert failed.value.code == "dependency-missing"
    with caplog.at_level(logging.WARNING):
        model = onnxqat.export(Block(), image())
    assert "exporter 'torchscript' was taken" in caplog.text
    with pytest.raises(UnsupportedError, match="svdvals"):
        onnxqat.export(Call(torch.linalg.svdvals), image())
    assert "torchscript" in {p.key: p.value for p in model.metadata_props}["onnxqat.exporter"]


def test_a_graph_that_computes_something_else_is_refused() -> None:
    module = Block().eval()
    model = io.load(onnxqat.export(module, image(), exporter="torchscript"))
    weight = model.graph.initializers["classifier.weight"]
    weight.const_value = ir.Tensor(weight.const_value.numpy() * np.float32(1.01), name=weight.name)
    with torch.no_grad(), pytest.raises(CheckError, match="'output'") as failed:
        check.Checker(model).compare([image()], [module(image())])
    assert failed.value.code == "parity-failed"


def test_rounding_passes_and_integers_are_compared_exactly() -> None:
    module = Call(lambda x: (x * 3).round().to(torch.int64))
    model = io.load(onnxqat.export(module, image(), exporter="torchscript"))
    checker = check.Checker(model)
    checker.compare([image()], [module(image())])
    wrong = module(image())
    wrong[0, 0, 0, 0] += 1
    with pytest.raises(CheckError, match="1 of 216 integers"):
        checker.compare([image()], [wrong])


WRONG = {
    "no module": (lambda: onnxqat.export(len, image()), UsageError),
    "no tensor": (lambda: onnxqat.export(Block(), 3.0), UsageError),
    "arguments": (lambda: onnxqat.export(Block(), (image(), image())), DataError),
    "shape": (lambda: onnxqat.export(Block(), torch.zeros(1, 1, 6, 6)), DataError),
    "result": (lambda: onnxqat.export(Call(lambda x: object()), image()), UnsupportedError),
    "names": (lambda: onnxqat.export(Block(), image(), output_names=["a", "b"]), UsageError),
    "axis": (lambda: onnxqat.export(Block(), image(), dynamic_shapes={"image": {7: "a"}}), UsageError),
    "input": (lambda: onnxqat.export(Block(), image(), dynamic_shapes={"imaeg": {2: "a"}}), UsageError),
    "batch_norm": (lambda: onnxqat.export(Block(), image(), batch_norm="merge"), UsageError),
    "exporter": (lambda: onnxqat.export(Block(), image(), exporter="script"), UsageError),
    "old opset": (lambda: onnxqat.export(Block(), image(), exporter="dynamo", opset=13), UsageError),
    "new opset": (lambda: onnxqat.export(Block(), image(), exporter="torchscript", opset=23), UsageError),
}


@pytest.mark.parametrize("case", WRONG)
def test_refusals(case: str) -> None:
    call, kind = WRONG[case]
    with pytest.raises(QatError) as failed:
        call()
    assert isinstance(failed.value, kind)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_module() -> None:
    scripted = torch.jit.script(Block())
    model = onnxqat.export(scripted, image(), exporter="torchscript", batch_norm="keep")
    assert operators(model).count("BatchNormalization") == 2
    assert "Dropout" not in operators(model)
    assert scripted.training


class Tokens(nn.Module):
    """A small transformer, whose evaluation torch computes with kernels of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(self.embedding(ids))
        return hidden


def test_attention_is_exported_by_its_parts() -> None:
    ids = torch.arange(10).reshape(2, 5)
    model = onnxqat.export(Tokens().eval(), ids, exporter="torchscript")
    assert operators(model).count("Softmax") == 2
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_module_may_write_into_its_input() -> None:
    def write(x: Tensor) -> Tensor:
        x[:, 0] = 0
        return x

    x = image()
    onnxqat.export(Call(write), x, exporter="torchscript")
    assert torch.equal(x, image())


class Tied(nn.Module):
    """Embedding and output layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(ids))
        return logits


def test_shared_weights_that_became_copies_are_told() -> None:
    found = run(Tied(), torch.zeros(2, 3, dtype=torch.long), exporter="torchscript")
    assert [r.nodes for r in found.remarks] == [("embedding.weight", "head.weight")]
    layer = nn.Linear(4, 4)
    assert run(nn.Sequential(layer, nn.ReLU(), layer), torch.zeros(2, 4), exporter="torchscript").remarks == ()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types_without_kernels_are_compared_in_float32(dtype: torch.dtype) -> None:
    found = run(Block().to(dtype), image().to(dtype), exporter="torchscript")
    assert found.remarks == ()
    kind = {torch.float64: ir.DataType.DOUBLE, torch.bfloat16: ir.DataType.BFLOAT16}[dtype]
    assert [value.dtype for value in io.load(found.model).graph.outputs] == [kind]
