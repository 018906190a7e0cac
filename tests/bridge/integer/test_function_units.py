"""Integer functions of a file in torch: its codes, a gradient, and constants that follow trained scales."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnxqat
from onnxqat.errors import CheckError
from onnxqat.graph import io
from onnxqat.integer_functions import library
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
from tests.bridge.integer.networks import with_weights

NETWORK = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 6, 16] image) => (float[N, 6, 16] out) <float[16, 16] w, float[16] gamma, float[16] beta, float[16, 16] v>
{
    h = MatMul (image, w)
    n = LayerNormalization <axis = -1, epsilon = 1e-5> (h, gamma, beta)
    a = Gelu (n)
    out = Softmax <axis = -1> (a)
}"""


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(0).standard_normal((48, 6, 16)).astype(np.float32)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, data: dict[str, np.ndarray]) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    onnx.save(with_weights(NETWORK), folder / "model.onnx")
    chosen = Overrides(integer="all", reduce_range=True)  # without saturation, whatever processor the session runs on
    result = onnxqat.insert_qdq(folder / "model.onnx", data=data, overrides=chosen, fast=True)
    assert result.quantizers["activation"] == 5
    return result.model


def session(path: Path, data: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(Session(io.load(path), optimize=True, what="the model").run(data)["out"])


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_codes_of_the_session(path: Path, data: dict[str, np.ndarray], engine: str) -> None:
    model = onnxqat.to_integer(path, engine="torch" if engine == "torch" else "numpy")
    assert [kernel for _, kernel in model.kernels] == ["Matrix", "LayerNormalization", "Gelu", "Softmax"]
    assert model.float_operators() == []
    np.testing.assert_array_equal(model.run(data).outputs["out"], session(path, data))


def test_operators_that_are_not_named_compute_in_float(tmp_path: Path, data: dict[str, np.ndarray]) -> None:
    onnx.save(with_weights(NETWORK), tmp_path / "model.onnx")
    made = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=Overrides(integer="softmax"), fast=True)
    report = onnxqat.simulate(made.model, data)
    assert {"n", "a"} <= set(report.floats)
    assert report.kernels["Softmax"] == 1


def test_write_back_of_nothing_is_the_same_file(path: Path, tmp_path: Path) -> None:
    onnxqat.write_back(onnxqat.to_torch(path), path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()


def test_training_moves_weights_scales_and_the_constants_of_calls(
    path: Path, data: dict[str, np.ndarray], tmp_path: Path
) -> None:
    module = onnxqat.to_torch(path, arithmetic="onnxruntime").train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    images = torch.from_numpy(data["image"])
    for _ in range(4):
        optimizer.zero_grad()
        module(images)[..., 0].sum().backward()
        optimizer.step()
    gradients = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {"w", "gamma", "beta", "h_quantizer.scale", "n_quantizer.scale"} <= gradients
    written = onnxqat.write_back(module, path, tmp_path / "tuned.onnx")
    module.eval()
    with torch.no_grad():
        expected = module(images).numpy()
    np.testing.assert_array_equal(session(written, data), expected)
    before, after = ({i.name: i for i in onnx.load(p).graph.initializer} for p in (path, written))
    assert {name for name in before if before[name] != after[name]} >= {
        "gamma_quantized",
        "a_QuantizeLinear_Output_table",
        "out_QuantizeLinear_Output_exp_multiplier",
    }


def test_operators_behind_a_call_know_its_shape(data: dict[str, np.ndarray]) -> None:
    """A LayerNormalization in float counts its axis from the first, of a tensor whose rank the bridge has to know."""
    text = NETWORK.replace("(float[N, 6, 16] out)", "(float[] out)").replace("out = Softmax <axis = -1> (a)", "")
    text = text.replace("n = LayerNormalization <axis = -1, epsilon = 1e-5> (h, gamma, beta)", "a = Gelu (h)")
    text = text.replace("a = Gelu (n)", "out = LayerNormalization <axis = 2> (a, gamma, beta)")
    chosen = Overrides(integer="gelu", reduce_range=True)
    made = onnxqat.insert_qdq(with_weights(text), data=data, overrides=chosen, fast=True, guard=False).model
    assert isinstance(made, onnx.ModelProto)
    del made.graph.value_info[:]
    model = onnxqat.to_integer(made)
    assert [kernel for _, kernel in model.kernels] == ["Matrix", "Gelu"]
    wanted = Session(io.load(made), optimize=True, what="the model").run(data)["out"]
    np.testing.assert_allclose(model.run(data).outputs["out"], wanted, rtol=1e-5, atol=1e-5)  # last bits of a mean


def test_reports_know_calls(path: Path) -> None:
    report = onnxqat.lint(path, backend="onnxruntime-cpu")
    assert [finding.code for finding in report.findings if finding.severity != "note"] == []
    assert {"normalization-quantized", "target-operator-float"} & {finding.code for finding in report.findings} == set()
    explained = onnxqat.explain(path, backend="onnxruntime-cpu")
    assert explained.float_nodes == ()
    activations = [pair.tensor for pair in explained.pairs if pair.role == "activation"]
    assert activations[:4] == ["image", "h", "n", "a"]
    assert len(activations) == 5


IMAGES = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3, H, W] image) => (float[N, 4, 1, 1] out) <float[4, 3, 3, 3] w>
{
    c = Conv (image, w)
    m = GlobalAveragePool (c)
    out = Sigmoid (m)
}"""


@pytest.mark.parametrize("arithmetic", ["onnxruntime", "fixed-point"])
def test_means_of_images_of_any_size(arithmetic: str) -> None:
    data = {"image": np.random.default_rng(0).standard_normal((16, 3, 9, 7)).astype(np.float32)}
    chosen = Overrides(integer="global-average-pool,sigmoid", reduce_range=True)
    model = onnxqat.insert_qdq(with_weights(IMAGES), data=data, overrides=chosen, fast=True).model
    assert isinstance(model, onnx.ModelProto)
    assert [node.op_type for node in model.graph.node if node.domain] == [
        "GlobalAveragePool_uint8_uint8",
        "Sigmoid_uint8_uint8_lut8",
    ]
    small = {"image": data["image"][:, :, :5, :4]}
    for feeds in (data, small):
        found = [onnxqat.to_integer(model, arithmetic=arithmetic, engine=e) for e in ("torch", "numpy")]  # type: ignore[arg-type]
        first, second = (each.run(feeds) for each in found)
        assert found[0].float_operators() == []
        np.testing.assert_array_equal(first.outputs["out"], second.outputs["out"])
        if arithmetic == "onnxruntime":
            wanted = Session(io.load(model), optimize=True, what="the model").run(feeds)["out"]
            np.testing.assert_array_equal(first.outputs["out"], wanted)


MIXED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 3, 8, 8] image) => (float[N, 4, 6, 6] out)
<float[4, 3, 3, 3] w, float[4, 3, 3, 3] v, float half = {0.5}, float rest = {0.375}, float[4, 1, 1] scale, float[4, 1, 1] b, float one = {1.0}>
{
    p = Conv (image, w)
    o = Conv (image, v)
    pw = Mul (p, half)
    ow = Mul (rest, o)
    s = Add (pw, ow)
    r = Add (s, p)
    t = Tanh (r)
    n = Mul (t, scale)
    m = Add (n, b)
    a = Abs (o)
    d = Add (a, one)
    out = Div (m, d)
}"""
"""A MixedOp with a residual, a BatchNormalization that stands alone, which becomes a convolution, and a quotient."""


def test_sums_and_quotients_on_codes(tmp_path: Path) -> None:
    data = {"image": np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32)}
    onnx.save(with_weights(MIXED), tmp_path / "model.onnx")
    chosen = Overrides(integer="all", reduce_range=True)
    path = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=chosen, fast=True, guard=False).model
    kinds = [node.op_type.partition("_")[0] for node in onnx.load(path).graph.node if node.domain]
    assert kinds == ["WeightedSum3", "Tanh", "Abs", "Div"]
    model = onnxqat.to_integer(path)
    assert model.float_operators() == []
    np.testing.assert_array_equal(model.run(data).outputs["out"], session(path, data))
    module = onnxqat.to_torch(path, arithmetic="onnxruntime")
    onnxqat.write_back(module, path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    optimizer = torch.optim.AdamW(module.train().parameters(), lr=1e-2)
    images = torch.from_numpy(data["image"])
    for _ in range(3):
        optimizer.zero_grad()
        module(images).square().mean().backward()
        optimizer.step()
    gradients = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {"m_factor", "w", "v"} <= gradients
    written = onnxqat.write_back(module, path, tmp_path / "tuned.onnx")
    with torch.no_grad():
        expected = module.eval()(images).numpy()
    np.testing.assert_array_equal(session(written, data), expected)
    report = onnxqat.lint(written, backend="onnxruntime-cpu")
    assert [finding.code for finding in report.findings if finding.severity == "error"] == []
    assert onnxqat.explain(written, backend="onnxruntime-cpu").float_nodes == ()


BEHIND = {
    "PRelu": "out = PRelu (c, slope)",
    "LeakyRelu": "out = LeakyRelu <alpha = 0.3> (c)",
    "Neg": "out = Neg (c)",
    "Sub": "s = Sigmoid (c) out = Sub (s, c)",
    "DepthToSpace": "out = DepthToSpace <blocksize = 2> (c)",
    "Tile": "out = Tile (c, repeats)",
    "Resize": 'out = Resize <mode = "nearest"> (c, , scales)',
    "ReduceMean": "out = ReduceMean <keepdims = 0> (c, channels)",
    "ReduceSum": "out = ReduceSum (c, channels)",
    "ReduceL2": "out = ReduceL2 (c)",
    "Max": "s = Sigmoid (c) t = Tanh (c) out = Max (c, s, t)",
    "Min": "s = Sigmoid (c) out = Min (s, c)",
    "Max with a constant": "out = Max (c, half)",
    "Max with a constant for each channel": "s = Sigmoid (c) out = Max (slope, s, c)",
    "Min with two constants": "out = Min (half, c, slope)",
    "CumSum": "out = CumSum (c, across)",
    "CumSum from the end": "out = CumSum <exclusive = 1, reverse = 1> (c, across)",
    "Einsum": 'out = Einsum <equation = "bchw,dc->bdhw"> (c, square)',
    "Pad by reflection": 'a = Relu (c) out = Pad <mode = "reflect"> (a, pads)',
    "ScatterElements": """s = Sigmoid (c) one = Gather <axis = 1> (s, channels) size = Shape (one) places = Expand (at, size)
        out = ScatterElements <axis = 1> (c, places, one)""",
    "LogSoftmax": "out = LogSoftmax <axis = 1> (c)",
    "InstanceNormalization": "out = InstanceNormalization (c, gamma, beta)",
    "GroupNormalization": "out = GroupNormalization <num_groups = 2> (c, gamma, beta)",
    "Slice": "a = Relu (c) out = Slice (a, starts, ends, axes, steps)",
    "Gather": "a = Relu (c) out = Gather <axis = 1> (a, some)",
    "GatherND": "a = Relu (c) out = GatherND (a, points)",
    "GroupNormalization in parts": """r = Reshape (c, rows) i = InstanceNormalization (r, ones, zeros) b = Reshape (i, back)
        m = Mul (b, slope) out = Add (m, slope)""",
}


@pytest.mark.parametrize("operator", BEHIND)
def test_operators_without_a_kernel_of_their_own(operator: str, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3, 8, 8] image) => (float[] out)
    <float[4, 3, 3, 3] w, float[4, 1, 1] slope, int64[4] repeats = {1, 1, 2, 2}, float[4] scales = {1, 1, 2, 2},
     int64[1] channels = {1}, float half = {0.5}, float[4] gamma, float[4] beta, int64[3] rows = {0, 2, -1}, int64[4] back = {-1, 4, 6, 6},
     float[2] ones = {1, 1}, float[2] zeros = {0, 0}, int64[1] starts = {-1}, int64[1] ends = {-9},
     int64[1] axes = {2}, int64[1] steps = {-1}, int64[2] some = {2, 0}, int64[2, 1] points = {1, 0},
     int64 across = {2}, float[4, 4] square, int64[8] pads = {0, 0, 1, 2, 0, 0, 2, 1}, int64[1, 1, 1, 1] at = {1}>
    { c = Conv (image, w) %s }"""
    onnx.save(with_weights(text % BEHIND[operator]), tmp_path / "model.onnx")
    data = {"image": np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)}
    chosen = Overrides(integer="all", reduce_range=True)
    path = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=chosen, fast=True, guard=False).model
    model = onnxqat.to_integer(path)
    assert model.float_operators() == []
    np.testing.assert_array_equal(model.run(data).outputs["out"], session(path, data))
    module = onnxqat.to_torch(path, arithmetic="onnxruntime")
    onnxqat.write_back(module, path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    explained = onnxqat.explain(path, backend="onnxruntime-cpu").float_nodes
    assert [node for node in explained if node.op_type in library.kinds()] == []
    images = torch.from_numpy(data["image"])
    optimizer = torch.optim.SGD(module.train().parameters(), lr=1e-2)
    module(images).square().mean().backward()
    gradient = module.get_parameter("w").grad
    assert gradient is not None
    assert gradient.abs().max() > 0
    optimizer.step()
    written = onnxqat.write_back(module, path, tmp_path / "tuned.onnx")
    with torch.no_grad():
        np.testing.assert_array_equal(session(written, data), module.eval()(images).numpy())


@pytest.mark.parametrize("operator", ["Div", "Max", "Min", "Sub"])
def test_operands_that_nothing_else_quantizes(operator: str) -> None:
    """The second one is a graph input, which no other operator puts on a grid."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3, 8, 8] image, float[N, 4, 6, 6] other) => (float[N, 4, 6, 6] out) <float[4, 3, 3, 3] w>
    { c = Conv (image, w) out = %s (c, other) }"""
    random = np.random.default_rng(0)
    data = {"image": random.standard_normal((16, 3, 8, 8)).astype(np.float32)}
    data["other"] = random.uniform(0.5, 1.5, (16, 4, 6, 6)).astype(np.float32)
    chosen = Overrides(integer="all", reduce_range=True)
    made = onnxqat.insert_qdq(with_weights(text % operator), data=data, overrides=chosen, fast=True, guard=False).model
    assert isinstance(made, onnx.ModelProto)
    model = onnxqat.to_integer(made)
    assert model.float_operators() == []
    wanted = Session(io.load(made), optimize=True, what="the model").run(data)["out"]
    np.testing.assert_array_equal(model.run(data).outputs["out"], wanted)


ATTENTION = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 6, 16] image, int64[N, 6] mask) => (float[N, 6, 16] out)
<float[16, 16] w, float root = {4.0}, float one = {1.0}, float least = {-3.4e38}, int64[1] first = {1}>
{
    q = MatMul (image, w)
    k = Transpose <perm = [0, 2, 1]> (image)
    s = MatMul (q, k)
    scaled = Div (s, root)
    kept = Cast <to = 1> (mask)
    left = Sub (one, kept)
    row = Unsqueeze (left, first)
    far = Mul (row, least)
    masked = Add (scaled, far)
    p = Softmax <axis = -1> (masked)
    out = MatMul (p, image)
}"""
"""Attention with the mask that exporters write for tokens to keep."""


@pytest.mark.parametrize("written", ["products", "conditions"])
def test_softmax_behind_a_mask_of_whole_numbers(written: str, tmp_path: Path) -> None:
    text = ATTENTION
    if written == "conditions":
        text = text.replace("kept = Cast <to = 1> (mask)", "kept = Cast <to = 9> (mask)")
        text = text.replace("left = Sub (one, kept)", "left = Where (kept, zero, least)").replace(
            "float one = {1.0}", "float zero = {0.0}"
        )
        text = text.replace("row = Unsqueeze (left, first)", "far = Unsqueeze (left, first)").replace(
            "    far = Mul (row, least)\n", ""
        )
    onnx.save(with_weights(text), tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    mask = (np.arange(6) < random.integers(1, 7, (32, 1))).astype(np.int64)
    data = {"image": random.standard_normal((32, 6, 16)).astype(np.float32), "mask": mask}
    chosen = Overrides(integer="softmax,weightedsum", reduce_range=True)
    path = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=chosen, fast=True, guard=False).model
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert {"WeightedSum1_uint8_uint8", "MaskedSoftmax_uint8_uint8"} <= set(operators)
    assert not {"Sub", "Where", "Add", "Div", "Mul", "Softmax"} & set(operators)
    for engine in ("torch", "numpy"):
        model = onnxqat.to_integer(path, engine=engine)  # type: ignore[arg-type]
        assert model.float_operators() == []
        np.testing.assert_array_equal(model.run(data).outputs["out"], session(path, data))
    floating = Session(io.load(tmp_path / "model.onnx"), optimize=True, what="the model").run(data)["out"]
    assert np.abs(session(path, data) - floating).max() < 0.05 * np.abs(floating).max()
    module = onnxqat.to_torch(path, arithmetic="onnxruntime")
    onnxqat.write_back(module, path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    module.train()(*(torch.from_numpy(data[name]) for name in ("image", "mask"))).square().mean().backward()
    gradient = module.get_parameter("w").grad
    assert gradient is not None
    assert gradient.abs().max() > 0
    assert [f.code for f in onnxqat.lint(path, backend="onnxruntime-cpu").findings if f.severity == "error"] == []


POLES = ("out = Div (c, other)", "out = Reciprocal (other)", "e = Exp (c) out = Log (e)", "out = Sqrt (other)")


@pytest.mark.parametrize("body", POLES)
def test_codes_of_zero_where_the_float_operator_has_a_pole(body: str) -> None:
    """In float the code of zero, which stands for small numbers, would make infinities and NaN, and such slopes."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3, 8, 8] image, float[N, 4, 6, 6] other) => (float[N, 4, 6, 6] out) <float[4, 3, 3, 3] w>
    { c = Conv (image, w) %s }"""
    random = np.random.default_rng(0)
    data = {"image": 4 * random.standard_normal((16, 3, 8, 8)).astype(np.float32)}
    data["other"] = np.where(random.random((16, 4, 6, 6)) < 0.5, 1e-4, 1.0).astype(np.float32)
    chosen = Overrides(integer="all", reduce_range=True)
    made = onnxqat.insert_qdq(with_weights(text % body), data=data, overrides=chosen, fast=True, guard=False).model
    assert isinstance(made, onnx.ModelProto)
    model = onnxqat.to_integer(made)
    assert model.float_operators() == []
    found = Session(io.load(made), optimize=True, what="the model").run(data)["out"]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(model.run(data).outputs["out"], found)
    module = onnxqat.to_torch(made, arithmetic="onnxruntime").train()
    module(*(torch.from_numpy(data[name]) for name in module.input_names)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


POOLED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 6, 16] image, int64[N, 6] mask) => (float[N, 16] out)
<float[16, 16] w, int64[1] tokens = {1}, int64[1] last = {2}, float least = {1e-9}, int64[2] dims = {1, 2}>
{
    x = MatMul (image, w)
    kept = Cast <to = 1> (mask)
    wide = Unsqueeze (kept, last)
    inside = Mul (x, wide)
    total = ReduceSum <keepdims = 0> (inside, tokens)
    count = ReduceSum <keepdims = 0> (COUNTED, tokens)
    some = Clip (count, least)
    out = Div (total, some)
}"""
"""The mean over the tokens that a mask keeps, as sentence embeddings have it; the count in its two forms."""


@pytest.mark.parametrize("counted", ["wide", "kept"])
def test_the_mean_over_tokens_that_a_mask_keeps(counted: str) -> None:
    text = POOLED.replace("COUNTED", counted)
    if counted == "kept":
        text = text.replace("some = Clip (count, least)", "one = Clip (count, least) some = Unsqueeze (one, tokens)")
    random = np.random.default_rng(0)
    mask = (np.arange(6) < random.integers(1, 7, (32, 1))).astype(np.int64)
    data = {"image": random.standard_normal((32, 6, 16)).astype(np.float32), "mask": mask}
    chosen = Overrides(integer="all", reduce_range=True)
    made = onnxqat.insert_qdq(with_weights(text), data=data, overrides=chosen, fast=True, guard=False).model
    assert isinstance(made, onnx.ModelProto)
    onnx.checker.check_model(made, full_check=True)
    session = Session(io.load(made), optimize=True, what="the model")
    for engine in ("torch", "numpy"):
        model = onnxqat.to_integer(made, engine=engine)  # type: ignore[arg-type]
        assert model.float_operators() == []
        np.testing.assert_array_equal(model.run(data).outputs["out"], session.run(data)["out"])
    floating = Session(io.load(with_weights(text)), optimize=True, what="the model").run(data)["out"]
    assert np.abs(session.run(data)["out"] - floating).max() < 0.05 * np.abs(floating).max()


def test_a_mask_of_other_numbers_stays_in_float(tmp_path: Path) -> None:
    """A bias of positions is data, whatever it is computed from."""
    text = ATTENTION.replace("least = {-3.4e38}", "least = {-0.5}")
    random = np.random.default_rng(0)
    data = {"image": random.standard_normal((32, 6, 16)).astype(np.float32), "mask": np.ones((32, 6), np.int64)}
    chosen = Overrides(integer="softmax", reduce_range=True)
    made = onnxqat.insert_qdq(with_weights(text), data=data, overrides=chosen, fast=True, guard=False).model
    assert isinstance(made, onnx.ModelProto)
    assert not any(node.op_type.startswith("Masked") for node in made.graph.node)


def test_arithmetic_behind_data_movement_is_float(tmp_path: Path) -> None:
    """A Sqrt of reshaped codes, which no function takes here, is one of the operators in float."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3, 8, 8] image) => (float[] out) <float[4, 3, 3, 3] w, int64[2] flat = {0, -1}>
    { c = Conv (image, w) a = Relu (c) r = Reshape (a, flat) s = Shape (r) e = Sqrt (r) out = Expand (e, s) }"""
    data = {"image": np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)}
    made = onnxqat.insert_qdq(
        with_weights(text), data=data, overrides=Overrides(reduce_range=True), fast=True, guard=False
    )
    assert "e" in onnxqat.to_integer(made.model).float_operators()


def test_weights_that_diverged_are_nan_and_those_that_outgrew_the_sum_are_named(tmp_path: Path) -> None:
    data = {"image": np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)}
    onnx.save(with_weights(MIXED), tmp_path / "model.onnx")
    chosen = Overrides(integer="weightedsum", reduce_range=True)
    made = onnxqat.insert_qdq(tmp_path / "model.onnx", data=data, overrides=chosen, fast=True, guard=False).model
    module = onnxqat.to_torch(made)
    images = torch.from_numpy(data["image"])
    bias = module.get_parameter("r_QuantizeLinear_Output_bias")
    with torch.no_grad():
        bias.fill_(torch.nan)
        assert module(images).isnan().all()
        bias.fill_(1e30)
        with pytest.raises(CheckError, match=r"r: WeightedSum3_uint8_uint8: its weights reach .* and its bias"):
            module(images)
