"""RNN, GRU and LSTM in every form against onnxruntime; gradients, layouts and export."""

import random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import parity

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# Names with the number of alphas and betas that they consume.
ACTIVATIONS = {
    "Relu": (0, 0),
    "Tanh": (0, 0),
    "Sigmoid": (0, 0),
    "Affine": (1, 1),
    "LeakyRelu": (1, 0),
    "ThresholdedRelu": (1, 0),
    "ScaledTanh": (1, 1),
    "HardSigmoid": (1, 1),
    "Elu": (1, 0),
    "Softsign": (0, 0),
    "Softplus": (0, 0),
}
INPUTS, HIDDEN = 3, 4


def weights(generator: random.Random, *shape: int) -> np.ndarray:
    """Small, so that unbounded activations stay bounded over the steps."""
    made = np.random.default_rng(generator.getrandbits(32)).standard_normal(shape)
    return (0.4 * made).astype(np.float32)


def layer(kind: str, inputs: dict[str, Any], x: tuple[int, ...], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one layer; `inputs` by name in their order, None where one is left out."""
    names = ["x", *(name if array is not None else "" for name, array in inputs.items())]
    outputs = ["y", "last_h", "last_c"][: 3 if kind == "LSTM" else 2]
    graph = helper.make_graph(
        [helper.make_node(kind, names, outputs, hidden_size=HIDDEN, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in inputs.items() if a is not None],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def random_form(kind: str, seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """A layer with some of everything."""
    generator = random.Random(f"{kind}{seed}")
    direction = generator.choice(["forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    steps, batch = generator.choice([1, 4]), generator.choice([1, 3])
    attributes: dict[str, Any] = {"direction": direction}
    if generator.random() < 0.5:
        names = generator.choices(list(ACTIVATIONS), k=FUNCTIONS[kind] * directions)
        alphas, betas = (sum(ACTIVATIONS[name][i] for name in names) for i in (0, 1))
        attributes |= {"activations": names}
        if alphas:
            attributes["activation_alpha"] = [generator.uniform(0.1, 1) for _ in range(alphas)]
        if betas:
            attributes["activation_beta"] = [generator.uniform(0.1, 1) for _ in range(betas)]
    if generator.random() < 0.4:
        attributes["clip"] = generator.uniform(0.1, 1)
    if kind == "GRU":
        attributes["linear_before_reset"] = generator.randint(0, 1)
    if kind == "LSTM":
        attributes["input_forget"] = int(generator.random() < 0.3)
    rows = GATES[kind] * HIDDEN
    optional = {
        "b": weights(generator, directions, 2 * rows),
        "lengths": np.array([generator.randint(1, steps) for _ in range(batch)], np.int32),
        "h": weights(generator, directions, batch, HIDDEN),
    }
    if kind == "LSTM":
        optional |= {
            "c": weights(generator, directions, batch, HIDDEN),
            "p": weights(generator, directions, 3 * HIDDEN),
        }
    inputs = {"w": weights(generator, directions, rows, INPUTS), "r": weights(generator, directions, rows, HIDDEN)}
    inputs |= {name: array if generator.random() < 0.5 else None for name, array in optional.items()}
    x = weights(generator, steps, batch, INPUTS)
    return layer(kind, inputs, x.shape, attributes), x


@pytest.mark.parametrize("kind", GATES)
def test_random_forms_equal_onnxruntime(kind: str) -> None:
    for seed in range(40):
        model, x = random_form(kind, seed)
        parity.check(model, {"x": x})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_both_ways_of_computing_agree_with_their_gradients(kind: str, direction: str) -> None:
    generator, directions = random.Random(0), 2 if direction == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN
    inputs = {
        "w": weights(generator, directions, rows, INPUTS),
        "r": weights(generator, directions, rows, HIDDEN),
        "b": weights(generator, directions, 2 * rows),
        "lengths": None,
        "h": weights(generator, directions, 2, HIDDEN),
    }
    attributes: dict[str, Any] = {"direction": direction}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    shape = (5, 2, INPUTS)
    fused = to_torch(layer(kind, inputs, shape, attributes))
    stepwise = to_torch(layer(kind, inputs | {"lengths": np.array([5, 5], np.int32)}, shape, attributes))
    assert "fused" in fused.code
    assert "stepwise" in stepwise.code
    x = torch.from_numpy(weights(generator, *shape))
    for module in (fused, stepwise):
        sum(result.square().sum() for result in module(x)).backward()
    others = dict(stepwise.named_parameters())
    for name, parameter in fused.named_parameters():
        torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", GATES)
def test_batch_first_is_the_same_layer_with_swapped_axes(kind: str) -> None:
    # onnxruntime refuses layout=1, so it is compared with layout=0.
    generator, rows = random.Random(0), GATES[kind] * HIDDEN
    inputs = {"w": weights(generator, 2, rows, INPUTS), "r": weights(generator, 2, rows, HIDDEN), "b": None}
    h = weights(generator, 2, 3, HIDDEN)
    attributes = {"direction": "bidirectional"}
    time_first = to_torch(layer(kind, inputs | {"s": None, "h": h}, (5, 3, INPUTS), attributes))
    other = inputs | {"s": None, "h": h.swapaxes(0, 1).copy()}
    batch_first = to_torch(layer(kind, other, (3, 5, INPUTS), attributes | {"layout": 1}))
    x = torch.from_numpy(weights(generator, 5, 3, INPUTS))
    y, *states = time_first(x)
    found, *found_states = batch_first(x.transpose(0, 1))
    torch.testing.assert_close(found, y.permute(2, 0, 1, 3))
    for f, s in zip(found_states, states, strict=True):
        torch.testing.assert_close(f, s.transpose(0, 1))


def test_alpha_and_beta_without_a_default_are_refused() -> None:
    inputs = {"w": np.ones((1, HIDDEN, INPUTS), np.float32), "r": np.ones((1, HIDDEN, HIDDEN), np.float32)}
    with pytest.raises(UnsupportedError, match="affine without activation_alpha"):
        to_torch(layer("RNN", inputs, (1, 1, INPUTS), {"activations": ["Affine"], "activation_alpha": [1.0]}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", GATES)
def test_exports_and_compiles(kind: str) -> None:
    generator, rows = random.Random(0), GATES[kind] * HIDDEN
    inputs = {"w": weights(generator, 2, rows, INPUTS), "r": weights(generator, 2, rows, HIDDEN)}
    attributes: dict[str, Any] = {"direction": "bidirectional"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    model = layer(kind, inputs, ("steps", "batch", INPUTS), attributes)
    module = to_torch(model)
    x = torch.from_numpy(weights(generator, 5, 3, INPUTS))
    shapes = ({1: torch.export.Dim("batch")},)
    program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
    torch.testing.assert_close(program.module()(x[:, :2]), module(x[:, :2]))
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_layers_run_and_learn_under_autocast(kind: str, dtype: torch.dtype) -> None:
    """In float32, since torch's own LSTM fails there on CPUs without oneDNN's kernels of half precision."""
    generator = random.Random(kind)
    inputs = {
        "w": weights(generator, 1, GATES[kind] * HIDDEN, INPUTS),
        "r": weights(generator, 1, GATES[kind] * HIDDEN, HIDDEN),
    }
    attributes = {"linear_before_reset": 1} if kind == "GRU" else {}  # the form that is torch's
    module = to_torch(layer(kind, inputs, (2, 3, INPUTS), attributes))
    x = torch.from_numpy(weights(generator, 2, 3, INPUTS))
    with torch.autocast("cpu", dtype):
        found = module(x)
    assert torch.equal(found[0], module(x)[0])
    found[0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())
