"""Noise of layers comes from the codes that the file will have, and not from nearest ones."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxqat
from onnxqat.bit_allocation.result import MixedPrecision

INPUTS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products beside each other: the inputs of the first go together, those of the second do not."""
    made, draw = tmp_path_factory.mktemp("rounding"), np.random.default_rng(0)
    weights = {name: draw.normal(size=(INPUTS, INPUTS)).astype(np.float32) for name in ("alike", "apart")}
    nodes = [helper.make_node("MatMul", [f"{name}_in", name], [f"{name}_out"], name=f"{name}_node") for name in weights]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", INPUTS])  # noqa: E731
    graph = helper.make_graph(
        nodes,
        "two",
        [value(f"{name}_in") for name in weights],
        [value(f"{name}_out") for name in weights],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), made / "model.onnx")
    few = draw.normal(size=(64, 2)) @ draw.normal(size=(2, INPUTS))
    np.savez(
        made / "data.npz",
        alike_in=(few + 0.05 * draw.normal(size=(64, INPUTS))).astype(np.float32),
        apart_in=draw.normal(size=(64, INPUTS)).astype(np.float32),
    )
    return made


def choose(folder: Path, rounding: str) -> MixedPrecision:
    return onnxqat.mixed_precision(
        folder / "model.onnx",
        "onnxruntime-cpu",
        folder / "data.npz",
        onnxqat.Budget(weight_bytes="60%"),
        rounding=rounding,  # type: ignore[arg-type]
        samples=16,
        output=folder / f"{rounding}.onnx",
    )


def noise(found: MixedPrecision, node: str, bits: int) -> float:
    options = next(layer.options for layer in found.layers if layer.node == node)
    return next(option.noise for option in options if option.weight_bits == bits and option.activation_bits == 8)


def test_what_rounding_makes_up_for_is_no_noise(folder: Path) -> None:
    """Inputs that go together let the error of one code be made up for by the next: nearest codes do not tell."""
    nearest, rounded = choose(folder, "nearest"), choose(folder, "gptq")
    gained = {node: noise(nearest, node, 4) / noise(rounded, node, 4) for node in ("alike_node", "apart_node")}
    assert gained["alike_node"] > 4 * gained["apart_node"]


def test_the_choice_follows_the_rounding(folder: Path) -> None:
    """The layer whose errors are made up for does with fewer bits, which nearest codes would share out alike."""
    widths = {layer.node: layer.weight_bits for layer in choose(folder, "gptq").layers}
    assert widths["alike_node"] < widths["apart_node"]
    nearest = {layer.node: layer.weight_bits for layer in choose(folder, "nearest").layers}
    assert nearest["alike_node"] - nearest["apart_node"] > widths["alike_node"] - widths["apart_node"]
