"""A LiteRT model computes what the deploy form does, in another layout; what it cannot say is refused by name."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat import insert_qdq, to_integer
from onnxqat.deployment.compilers import ethos_u, litert
from onnxqat.deployment.litert import convert, flatbuffer
from onnxqat.deployment.litert.convert import Converted
from onnxqat.deployment.litert.values import reshaped_layout
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import CheckError
from onnxqat.runtime.session import Session as OnnxSession
from tools.bench import litert_operators

NO_SCHEMA = importlib.util.find_spec("tflite") is None
NO_INTERPRETER = NO_SCHEMA or litert.Compiler.environment.version() is None
schema = pytest.mark.skipif(NO_SCHEMA, reason="the package tflite is not installed")
interpreter = pytest.mark.skipif(NO_INTERPRETER, reason="tflite or the environment of litert is not installed")

vela = pytest.mark.skipif(
    ethos_u.Compiler().version() is None, reason="tflite or the environment of ethos-u is missing"
)


def model_of(
    body: str, x: str, y: str, weights: dict[str, Any], grids: dict[str, tuple[float, int]]
) -> onnx.ModelProto:
    """A model from `x` to `y`; ``q_NAME`` and ``d_NAME`` of the body quantize and dequantize on a grid of `grids`."""
    lines = []
    for line in body.strip().splitlines():
        for name, (scale, zero_point) in grids.items():
            line = line.replace(f"Q[{name}]", f"QuantizeLinear(s_{name}, z_{name})")
            if f"on {name}" in line:
                target, source = (part.strip() for part in line.replace(f"on {name}", "").split("="))
                line = f"c_{target} = QuantizeLinear({source}, s_{name}, z_{name})\n{target} = DequantizeLinear(c_{target}, s_{name}, z_{name})"
            weights |= {f"s_{name}": np.float32(scale), f"z_{name}": np.int8(zero_point)}
        lines.append(line)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net (float[{x}] x) => (float[{y}] y) {{\n' + "\n".join(lines) + "}"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items())
    return model


def convolutional() -> onnx.ModelProto:
    """A convolution with padding of its own, a depthwise one, a sum, a pool, a layer of all positions, Softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8),
        "sk": rng.uniform(0.001, 0.004, 8).astype(np.float32),
        "zk": np.zeros(8, np.int8),
        "b": rng.integers(-4000, 4000, 8).astype(np.int32),
        "d": rng.integers(-127, 128, (8, 1, 3, 3)).astype(np.int8),
        "e": rng.integers(-127, 128, (5, 128)).astype(np.int8),
        "se": np.float32(0.002),
        "ze": np.int8(0),
    }
    weights["sb"] = (np.float32(0.02) * weights["sk"]).astype(np.float32)
    weights["zb"] = np.zeros(8, np.int32)
    weights["sd"] = weights["sk"]
    body = """
        x1 = x on i
        w = DequantizeLinear <axis = 0> (k, sk, zk)
        v = DequantizeLinear <axis = 0> (b, sb, zb)
        c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x1, w, v)
        r = Relu(c)
        r1 = r on r
        u = DequantizeLinear <axis = 0> (d, sd, zk)
        p = Conv <pads = [1, 1, 1, 1], group = 8> (r1, u)
        p1 = p on p
        a = Add(p1, r1)
        a1 = a on a
        m = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (a1)
        m1 = m on a
        f = Flatten(m1)
        f1 = f on a
        h = DequantizeLinear(e, se, ze)
        g = Gemm <transB = 1> (f1, h)
        g1 = g on g
        t = Softmax(g1)
        y = t on t
    """
    grids = {"i": (0.02, -3), "r": (0.03, -128), "p": (0.04, 5), "a": (0.05, -20), "g": (0.2, 3), "t": (1 / 256, -128)}
    return model_of(body, "1, 3, 16, 16", "1, 5", weights, grids)


def codes_of(converted: Converted) -> list[str]:
    return [operator.code for operator in converted.model.operators]


def test_operators_weights_and_layout() -> None:
    model = convolutional()
    converted = convert.convert(model)
    assert codes_of(converted) == [
        *("PAD", "CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "AVERAGE_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX")
    ]
    tensors = {tensor.name: tensor for tensor in converted.model.tensors}
    stored = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    np.testing.assert_array_equal(tensors["k"].data, stored["k"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(tensors["d"].data, stored["d"].transpose(1, 2, 3, 0))
    grids = {name: tensors[name].grid for name in ("k", "d", "e")}
    assert [grid.axis for grid in grids.values() if grid is not None] == [0, 3, None]
    # Maps lie channels last, so that the columns of the layer behind Flatten are in another order.
    columns = np.arange(128).reshape(8, 4, 4).transpose(1, 2, 0).reshape(-1)
    np.testing.assert_array_equal(tensors["e"].data, stored["e"][:, columns])
    assert converted.inputs[0].layout == (0, 2, 3, 1)
    assert {node.kind for node in converted.nodes} == {"integer", "moved"}
    relu = next(o for o in converted.model.operators if o.code == "CONV_2D")
    assert relu.options[1]["FusedActivationFunction"] == 1


@schema
def test_the_file_says_what_was_converted() -> None:
    import tflite  # type: ignore[import-not-found, unused-ignore]

    converted = convert.convert(convolutional())
    content = flatbuffer.to_bytes(converted.model)
    assert content == flatbuffer.to_bytes(converted.model)
    assert content[4:8] == b"TFL3"
    model = tflite.Model.GetRootAs(content, 0)
    graph = model.Subgraphs(0)
    names = [
        tflite.opcode2name(model.OperatorCodes(graph.Operators(i).OpcodeIndex()).BuiltinCode())
        for i in range(graph.OperatorsLength())
    ]
    assert names == codes_of(converted)
    for i, tensor in enumerate(converted.model.tensors):
        written = graph.Tensors(i)
        assert written.Name().decode() == tensor.name
        assert tuple(written.ShapeAsNumpy()) == tensor.shape
        if tensor.grid is not None:
            np.testing.assert_array_equal(written.Quantization().ScaleAsNumpy(), tensor.grid.scale)
        if tensor.data is not None:
            data = model.Buffers(written.Buffer()).DataAsNumpy()
            np.testing.assert_array_equal(data, np.frombuffer(tensor.data.tobytes(), np.uint8))


def test_refusals_name_the_nodes() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> net (float[1, 4, 6] x) => (float[1, 4, 6] y) {
        a = Erf(x)
        b = Relu(a)
        y = Selu(b) }""")
    model.graph.node[0].name = "the_erf"
    with pytest.raises(CheckError, match="the_erf") as error:
        convert.convert(model)
    assert "b = Relu" not in str(error.value)  # what only follows from a refusal is not one


def test_unsigned_codes_are_refused() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 4] x) => (float[1, 4] y) <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }""")
    with pytest.raises(CheckError, match="uint8"):
        convert.convert(model)


SHAPES = [
    ((2, 6, 4, 5), (2, 3, 2, 4, 5)),
    ((2, 3, 2, 4, 5), (2, 6, 4, 5)),
    ((2, 6, 1, 1), (2, 6)),
    ((1, 6, 4, 5), (6, 20)),
    ((2, 6, 4), (12, 4)),
    ((2, 6, 4), (2, 6, 4, 1)),
    ((4, 6), (3, 8)),
]


@pytest.mark.parametrize(("shape", "target"), SHAPES)
def test_memory_means_the_same_after_a_reshape(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    found = 0
    for layout in itertools.permutations(range(len(shape))):
        result = reshaped_layout(shape, layout, target)
        if result is None:
            continue
        found += 1
        stored = array.transpose(layout)
        expected = array.reshape(target).transpose(result)
        np.testing.assert_array_equal(stored.reshape(expected.shape), expected)
    assert reshaped_layout(shape, tuple(range(len(shape))), target) is not None
    assert found > 1 or shape == (4, 6)


CHAINS = {
    "shuffle": (
        """x1 = x on i
        a = Reshape(x1, five) b = Transpose <perm = [0, 2, 1, 3, 4]> (a) c = Reshape(b, four)
        d = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (c)
        y = d on i""",
        {"five": np.int64([1, 2, 4, 8, 8]), "four": np.int64([1, 8, 8, 8])},
    ),
    "padded average": (
        """x1 = x on i
        a = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x1)
        y = a on i""",
        {},
    ),
    "pieces": (
        """x1 = x on i
        a, b = Split <axis = 1> (x1)
        c = Concat <axis = 1> (b, a)
        d = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (c, , scales)
        y = d on i""",
        {"scales": np.float32([1, 1, 2, 2])},
    ),
    "curves": ("x1 = x on i\n a = Sigmoid(x1)\n a1 = a on s\n b = Mul(a1, x1)\n b1 = b on b\n y = Add(b1, b1)", {}),
    "means": ("x1 = x on i\n a = GlobalAveragePool(x1)\n y = a on b", {}),
}


@interpreter
@pytest.mark.parametrize("name", ["convolutional", *CHAINS])
def test_the_interpreter_gives_the_codes_of_execution_in_integers(name: str, tmp_path: Path) -> None:
    grids = {"i": (0.02, -3), "s": (1 / 256, -128), "b": (0.017, 4)}
    if name == "convolutional":
        model = convolutional()
    else:
        body, weights = CHAINS[name]
        model = model_of(body, "1, 8, 8, 8", "N, M, H, W", dict(weights), grids)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(1)
    batches = [{"x": rng.normal(0, 1, sizes).astype(np.float32)} for _ in range(4)]
    result = compile_in_process(litert.Compiler(), path, batches)
    executed = to_integer(model, arithmetic="litert")
    for feeds, found in zip(batches, result.outputs, strict=True):
        np.testing.assert_array_equal(found["y"], executed.run(feeds).outputs["y"])


NORMALIZATIONS = {
    "layer": ("1, 6, 16", "y = LayerNormalization <axis = -1, epsilon = 0.01> (x, w, b)", 17, 16),
    "layer of an image": ("1, 8, 4, 4", "a = Relu(x)\n y = LayerNormalization <axis = 1> (a, w, b)", 17, (8, 4, 4)),
    "root mean square": ("1, 6, 16", "y = RMSNormalization <axis = -1> (x, w)", 23, 16),
    "instance": ("1, 8, 4, 4", "a = MaxPool <kernel_shape = [3, 3]> (x)\n y = InstanceNormalization(a, w, b)", 17, 8),
    **{
        name: ("1, 6, 16", f"y = {name} {attributes} (x)", opset, 1)
        for name, attributes, opset in (
            ("Elu", "<alpha = 0.5>", 17),
            ("Celu", "<alpha = 2.0>", 17),
            ("Selu", "", 17),
            ("Softplus", "", 17),
            ("Softsign", "", 17),
            ("Mish", "", 18),
            ("Ceil", "", 17),
            ("Swish", "<alpha = 0.7>", 24),
        )
    },
    "Gelu written out": (
        "1, 6, 16",
        "d = Div(x, r)\n e = Erf(d)\n p = Add(e, o)\n m = Mul(x, p)\n y = Mul(m, h)",
        20,
        1,
    ),
}


@interpreter
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_functions_without_an_operator_are_written_out_in_float(name: str, tmp_path: Path) -> None:
    shape, body, opset, sizes = NORMALIZATIONS[name]
    rng = np.random.default_rng(0)
    weights = {key: rng.normal(1, 0.5, sizes).astype(np.float32) for key in ("w", "b")}
    weights |= {"r": np.float32(np.sqrt(2)), "o": np.float32(1), "h": np.float32(0.5)}
    model = model_of(
        body, shape, ", ".join(["N"] * len(shape.split(","))), {k: v for k, v in weights.items() if f"{k}" in body}, {}
    )
    model.opset_import[0].version = opset
    model.ir_version = 11 if opset > 20 else 8
    x = rng.normal(0.3, 1, [int(size) for size in shape.split(",")]).astype(np.float32)
    expected = OnnxSession(ir.from_proto(model), optimize=False).run({"x": x})["y"]
    path = tmp_path / "model.onnx"
    onnx.save(insert_qdq(model, "litert-int8", data={"x": x}, guard=False).model, path)
    assert {node.op_type for node in onnx.load(path).graph.node}.isdisjoint({"Erf"})
    result = compile_in_process(litert.Compiler(), path, [{"x": x}])
    # With pairs around a Relu or pool in front, their steps are all that the result may differ by.
    paired = any(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node)
    np.testing.assert_allclose(
        result.outputs[0]["y"], expected, atol=(0.03 if paired else 1e-5) * np.abs(expected).max()
    )


@interpreter
def test_the_second_factor_of_attention_lies_on_any_grid_and_codes_may_be_limited(tmp_path: Path) -> None:
    """Limits of codes are those of grids with as many on either side of zero, which a table can ask for."""
    body = """
        c = QuantizeLinear(x, s_i, z_i)
        n = Clip(c, low, high)
        k = DequantizeLinear(n, s_i, z_i)
        x1 = x on b
        t = Transpose <perm = [0, 2, 1]> (x1)
        m = MatMul(k, t)
        y = m on o"""
    numbers = {"low": np.int8(-90), "high": np.int8(100)}
    grids: dict[str, tuple[float, int]] = {"i": (0.02, -3), "b": (0.017, 4), "o": (0.1, -20)}
    model = model_of(body, "1, 6, 8", "N, M, H", dict(numbers), grids)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)}
    result = compile_in_process(litert.Compiler(), path, [feeds])
    np.testing.assert_array_equal(
        result.outputs[0]["y"], to_integer(model, arithmetic="litert").run(feeds).outputs["y"]
    )
    assert {node.name: node.kind for node in result.nodes}["m"] == "integer"


@interpreter
def test_codes_are_read_backwards_and_moved_to_places(tmp_path: Path) -> None:
    body = """
        x1 = x on i
        a = Slice(x1, first, last, axes, steps)
        y1 = a on i
        y = DepthToSpace <blocksize = 2> (y1)"""
    numbers = {"first": [-1, 6], "last": [-100, 1], "axes": [3, 2], "steps": [-2, -1]}
    model = model_of(body, "1, 8, 8, 8", "N, C, H, W", {k: np.array(v) for k, v in numbers.items()}, {"i": (0.02, -3)})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 8, 8, 8)).astype(np.float32)}
    result = compile_in_process(litert.Compiler(), path, [feeds])
    expected = OnnxSession(ir.from_proto(model), optimize=False).run(feeds)["y"]
    np.testing.assert_array_equal(result.outputs[0]["y"], expected)


@interpreter
@pytest.mark.parametrize(("name", "steps"), [("fully connected", 0), ("mul", 0), ("softmax", 0), ("concat", 1)])
def test_single_operators_between_drawn_grids(name: str, steps: int) -> None:
    row = litert_operators.compared(name, draws=2, samples=2)
    assert row.codes > 100
    assert row.steps["litert"] <= steps


@pytest.mark.parametrize("name", litert_operators.CASES)
def test_models_of_single_operators_run_on_codes_that_they_are_fed(name: str) -> None:
    network = litert_operators.Network(litert_operators.CASES[name], 2, 0)
    feeds = network.feeds()
    executed = to_integer(network.model, arithmetic="litert").run(feeds)
    for tensor, value in feeds.items():
        scale, zero = network.grids[tensor]
        np.testing.assert_array_equal(executed.codes[tensor], np.rint(value / scale) + zero)
    assert all(np.unique(executed.codes[f"y{place}"]).size > 3 for place in range(2))


def test_what_vela_leaves_to_the_cpu_is_rejected() -> None:
    model = convolutional()
    facts = litert.facts_of(convert.convert(model))
    names = {code: tensor for _, _, codes, made in facts["nodes"] for code, tensor in zip(codes, made, strict=True)}
    rows = [f"   NPU: Conv2D = {names['CONV_2D']} (outputs [1, 8, 8, 8])", "NPU operators = 7 (87.5%)"]
    rows += [f"   CPU: Softmax = {names['SOFTMAX']} (outputs [1, 5])"]
    found = {node.op_type: node for node in ethos_u.Compiler().read_back(model, {**facts, "rows": rows})}
    assert (found["Softmax"].kind, found["Softmax"].why) == ("rejected", "Vela leaves SOFTMAX to the CPU")
    assert found["Relu"].kind == "integer"
    assert found["Flatten"].kind == "moved"


@vela
def test_vela_puts_a_small_network_on_the_npu(tmp_path: Path) -> None:
    onnx.save(convolutional(), tmp_path / "model.onnx")
    feeds = [{"x": np.zeros((1, 3, 16, 16), np.float32)}]
    result = compile_in_process(ethos_u.Compiler(), tmp_path / "model.onnx", feeds, artefacts=tmp_path)
    assert result.files == ("litert/model.tflite", "litert/model_vela.tflite")
    assert all((tmp_path / name).is_file() for name in result.files)
    assert {node.kind for node in result.nodes} == {"integer", "moved"}
