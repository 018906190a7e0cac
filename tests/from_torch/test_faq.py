"""What the manuals of tools that trace call impossible: each exports, or the message names the place."""

import pytest
import torch
from torch import Tensor, nn

import onnxqat
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from onnxqat.from_torch.export import run
from onnxqat.graph import io
from tests.from_torch.modules import Call, image
from tests.torch_releases import since_2_7


def operators(found) -> list[str]:
    return [node.op_type for node in found.model.graph.all_nodes()]


class Gate(nn.Module):
    """Decides by the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


# C1: control flow that depends on data


@pytest.mark.parametrize("exporter", [None, "torchscript", "dynamo"])
def test_a_decision_by_values_is_refused_by_name(exporter: str | None) -> None:
    module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(Gate()))
    with pytest.raises(UnsupportedError, match=r"1\.0 \(Gate\) at test_faq\.py:\d+: if x\.sum\(\) > 0:") as failed:
        onnxqat.export(module, image(), exporter=exporter)
    assert failed.value.code == "export-failed"
    assert "torch.where" in failed.value.hint


def test_a_number_taken_out_of_a_tensor_is_refused_where_it_would_be_frozen() -> None:
    with pytest.raises(UnsupportedError, match="by the values of tensors"):
        onnxqat.export(Call(lambda x: x * float(x.max())), image(), exporter="torchscript")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_decision_stays_an_if(tmp_path) -> None:
    found = run(nn.Sequential(nn.Conv2d(3, 3, 1), torch.jit.script(Gate())), image(), exporter="torchscript")
    assert "If" in operators(found)
    module = to_torch(found.model)
    positive, negative = torch.full((1, 3, 6, 6), 9.0), torch.full((1, 3, 6, 6), -9.0)
    assert not torch.equal(module(positive), module(negative))


@since_2_7
def test_torch_cond_stays_an_if() -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    assert "If" in operators(run(Call(choose), image(), exporter="dynamo"))


def test_a_loop_over_found_values_is_refused() -> None:
    def count(x: Tensor) -> Tensor:
        for _ in range(torch.nonzero(x.flatten() > 0).shape[0]):
            x = x + 1
        return x

    with pytest.raises(onnxqat.QatError) as failed:
        onnxqat.export(Call(count), image(), exporter="torchscript")
    assert failed.value.code == "parity-failed"
    with pytest.raises(UnsupportedError):
        onnxqat.export(Call(count), image())


# C2: control flow that does not


class Static(nn.Module):
    """Decides by flags, shapes and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(3))
        self.skip = True
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 2 == 0 or not self.skip else x + layer(x)
        if x.shape[1] == 3 and x.dim() == 4:
            x = x * float(self.factor)
        while x.shape[-1] > 3:
            x = nn.functional.max_pool2d(x, 2)
        return x


def test_static_control_flow_disappears() -> None:
    found = run(Static(), image(), exporter="torchscript")
    assert operators(found).count("MaxPool") == 1
    assert not {"If", "Loop"} & set(operators(found))
    assert found.remarks == ()


# C3: constructors of tensors, assert


def test_constructors_and_asserts() -> None:
    def build(x: Tensor) -> Tensor:
        assert x.shape[1] == 3, "three channels"
        assert (x.abs() < 100).all()
        grid = torch.zeros(x.shape[0], 1, 6, 6) + torch.ones_like(x) + torch.full((1, 3, 1, 1), 0.5)
        return x + grid + torch.arange(x.shape[-1]) + torch.linspace(0, 1, 6) + torch.eye(6)

    found = run(Call(build), image())
    assert found.exporter == "torchscript"  # an assert on values stops the other one
    assert [r.message.split(":")[0] for r in found.remarks] == [
        "an assert is not part of the graph",
        "exporter 'torchscript' was taken, since torch's exporter 'dynamo' failed at test_faq.py",
    ]


def test_random_numbers_stay_random() -> None:
    found = run(Call(lambda x: x + torch.rand(3, 1, 1) + torch.randn_like(x)), image(), exporter="torchscript")
    assert {"RandomUniform", "RandomNormalLike"} <= {*operators(found)} | {
        name.replace("UniformLike", "Uniform") for name in operators(found)
    }
    assert any("draws random numbers" in r.message for r in found.remarks)


def test_sparse_tensors_are_refused_by_name() -> None:
    with pytest.raises(onnxqat.QatError) as failed:
        onnxqat.export(
            Call(lambda x: torch.sparse.mm(torch.eye(6).to_sparse(), x[0, 0])), image(), exporter="torchscript"
        )
    assert failed.value.code == "export-failed"
    assert "sparse" in failed.value.message


# C4: detection: the decoding exports with the network; `cut` takes it off


def test_the_tail_of_a_detector() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            raw = self.head(x).flatten(2).transpose(1, 2)
            scores, index = raw[..., 4:].sigmoid().amax(-1).topk(5, 1)
            center, size = raw[..., :2], raw[..., 2:4].exp()
            boxes = torch.cat([center - size / 2, center + size / 2], -1)
            return boxes.gather(1, index.unsqueeze(-1).expand(-1, -1, 4)), scores

    assert "TopK" in operators(run(Detector(), image(), exporter="torchscript"))


# C5: leaf modules


class Twice(torch.autograd.Function):
    """An operator of one's own, with its ONNX form."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def symbolic(g, x):
        return g.op("my.domain::Twice", x)


def test_an_operator_of_ones_own_stays_opaque() -> None:
    found = run(nn.Sequential(nn.Conv2d(3, 3, 1), Call(Twice.apply), nn.ReLU()), image(), exporter="torchscript")
    assert operators(found) == ["Conv", "Twice", "Relu"]
    assert any("onnxruntime does not know" in r.message for r in found.remarks)
    with pytest.raises(UnsupportedError, match=r"my\.domain\.Twice"):
        to_torch(found.model)
    quantized = onnxqat.insert_qdq(io.to_proto(found.model), data={"input": image(4).numpy()})
    assert quantized.quantizers["weight"] == 1


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_an_operator_without_a_form_is_named_with_its_module(exporter: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(Call(torch.linalg.svdvals)))
    with pytest.raises(UnsupportedError, match=r"svd\w*, which 1\.0 calls") as failed:
        onnxqat.export(module, image(), exporter=exporter)
    assert failed.value.code == "export-failed"
