"""Block-wise reconstruction: where a graph is cut, what is learned, what is kept, and that the file has it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import ModelError, UsageError
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes._base import rewrite
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training import methods
from onnxqat.training.reconstruction import cache
from onnxqat.training.reconstruction import reconstruct as reconstruction
from onnxqat.training.reconstruction.blocks import regions
from onnxqat.training.reconstruction.execution import GraphRunner
from onnxqat.training.reconstruction.float_values import FloatValues
from onnxqat.training.reconstruction.reconstruct import reconstruct

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)
DATA = RANDOM.standard_normal((64, 3, 8, 8)).astype(np.float32)


def network(*, heads: bool = False) -> onnx.ModelProto:
    """A convolution, a residual block with a convolution as shortcut, and a classifier; with `heads` one more output."""
    more = "z = Conv <pads = [1,1,1,1]> (a, wz)" if heads else ""
    outputs = "float[N, 4] y, float[N, 4, 8, 8] z" if heads else "float[N, 4] y"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 3, 8, 8] x) => ({outputs}) {{
            s = Conv <pads = [1,1,1,1]> (x, w0, b0)
            a = Relu (s)
            {more}
            c1 = Conv <pads = [1,1,1,1]> (a, w1, b1)
            r1 = Relu (c1)
            c2 = Conv <pads = [1,1,1,1]> (r1, w2, b2)
            c3 = Conv (a, w3, b3)
            sum = Add (c2, c3)
            r2 = Relu (sum)
            p = GlobalAveragePool (r2)
            f = Flatten (p)
            y = Gemm <transB = 1> (f, w4, b4)
        }}""")
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 1, 1), "w4": (4, 8)}
    if heads:
        shapes["wz"] = (4, 8, 3, 3)
    for name, shape in shapes.items():
        values = RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
        if name != "wz":
            bias = (RANDOM.standard_normal(shape[0]) / 10).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(bias, name.replace("w", "b")))
    return model


def quantized(model: onnx.ModelProto, weight_bits: int = 2) -> onnx.ModelProto:
    overrides = Overrides(weight_bits=weight_bits, activation_bits=4, observer="mse", first_last_bits=4)
    return insert_qdq(model, "academic", data={"x": DATA}, overrides=overrides).model  # type: ignore[no-any-return]


def run(model: onnx.ModelProto, x: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def cut(model: onnx.ModelProto, order: Any) -> list[list[tuple[str, int]]]:
    module = to_torch(quantized(model), quantizer_factory=methods.factory("lsq", weights="adaround"))
    runner = GraphRunner(module, [torch.from_numpy(DATA[:4])])
    return [[(b.name, len(b.layers)) for b in region.blocks] for region in regions(runner, order)]


def test_blocks_end_where_branches_join() -> None:
    assert cut(network(), "block") == [[("a", 1)], [("f", 3)], [("y", 1)]]
    assert cut(network(), "layer") == [[("a", 1)], [("r1", 1), ("c2", 1), ("c3", 1)], [("y", 1)]]


def test_a_block_with_an_output_inside_is_learned_by_layers() -> None:
    found = cut(network(heads=True), "block")
    assert found[0] == [("a", 1)]
    assert sorted(found[1]) == [("c2", 1), ("c3", 1), ("r1", 1), ("z", 1)]


@pytest.mark.parametrize("recipe", ["adaround", "brecq", "qdrop", "lsq"])
def test_the_error_falls_and_the_file_has_it(recipe: Any, tmp_path: Path) -> None:
    float_model = network()
    model = quantized(float_model)
    result = reconstruct(model, {"x": DATA}, recipe=recipe, iterations=60, batch_size=16, learning_rate=0.05)
    assert result.samples == 64
    assert [b.kept for b in result.blocks].count(True) >= len(result.blocks) - 1
    held = RANDOM.standard_normal((128, 3, 8, 8)).astype(np.float32)
    wanted = run(float_model, held)
    before, after = (float(np.square(run(m, held) - wanted).mean()) for m in (model, result.model))
    assert after < 0.9 * before
    with torch.no_grad():
        trained = result.module(torch.from_numpy(held))
        assert torch.equal(to_torch(result.model)(torch.from_numpy(held)), trained)
    np.testing.assert_allclose(run(result.model, held), trained.numpy(), rtol=1e-4, atol=1e-4)
    assert [(n.op_type, list(n.input)) for n in result.model.graph.node] == [
        (n.op_type, list(n.input)) for n in model.graph.node
    ]
    if recipe != "lsq":
        assert_roundings_alone_moved(model, result.model)


def assert_roundings_alone_moved(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Every weight stays between the two codes that are next to it, and every scale of weights what it was."""
    old, new = ({i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in (before, after))
    for name in ("w1", "w2", "w3"):
        step = new[f"{name}_scale"].reshape(-1, *[1] * (new[name].ndim - 1))
        limit = np.clip(old[name], -2 * step, step)
        assert (np.abs(new[name] - limit) <= step * 1.001).all()
        assert np.array_equal(old[f"{name}_scale"], new[f"{name}_scale"])


def test_weights_learn_with_their_steps() -> None:
    """At 2 bits weights that move freely come closer than those that are rounded up or down."""
    model = quantized(network())
    options: dict[str, Any] = {"iterations": 100, "batch_size": 16}
    rounded, moved = (reconstruct(model, {"x": DATA}, recipe=recipe, **options) for recipe in ("brecq", "lsq"))
    assert moved.blocks[1].after < 0.9 * rounded.blocks[1].after
    old, new = ({i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in (model, moved.model))
    for name in ("w1", "w1_scale"):
        assert not np.array_equal(old[name], new[name])
    # A bias of small codes moves by less than one, and by some of it.
    biases = [dict(m.named_parameters())["b1_DequantizeLinear_Output"] for m in (to_torch(model), moved.module)]
    assert not torch.equal(*biases)


def test_worst_blocks_alone_learn() -> None:
    model = quantized(network())
    whole = reconstruct(model, {"x": DATA}, recipe="brecq", iterations=1, batch_size=16)
    worst = reconstruct(model, {"x": DATA}, recipe="brecq", iterations=1, batch_size=16, worst_blocks=1)
    assert [block.tensor for block in whole.blocks] == ["a", "f", "y"]
    assert [block.tensor for block in worst.blocks] == ["f"]


def test_the_same_seed_gives_the_same_file_and_what_is_no_better_is_not_kept() -> None:
    model = quantized(network(), 4)
    first, second = (
        reconstruct(model, {"x": DATA}, iterations=5, batch_size=16, seed=3, learning_rate=2.0) for _ in range(2)
    )
    assert first.model == second.model
    worse = [b for b in first.blocks if not b.kept]
    assert worse, "five steps of such a length help nothing"
    old, new = ({i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in (model, first.model))
    for block in worse:
        for name in block.layers:
            codes = [np.rint(v[name] / v[f"{name}_scale"].reshape(-1, *[1] * (v[name].ndim - 1))) for v in (old, new)]
            np.testing.assert_array_equal(np.clip(codes[0], -8, 7), codes[1])


def test_tied_scales_are_learned_once() -> None:
    """The pairs on both sides of the Flatten are one scale, and in one block where the last layer is in float."""
    overrides = Overrides(first_last_bits=0)
    model = insert_qdq(network(), "onnxruntime-cpu", data={"x": DATA}, overrides=overrides).model
    assert reconstruct(model, DATA, iterations=2, limit=32).blocks


def test_caches_go_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MEMORY", 100)
    held = cache.Cache(3, tmp_path)
    batches = torch.randn(3, 4, 5)
    for index, batch in enumerate(batches):
        held.store(index, batch)
    assert len(list(tmp_path.iterdir())) == 1
    place = torch.device("cpu")
    assert torch.equal(held.batch(1, place), batches[1])
    assert torch.equal(held.samples(np.asarray([0, 5, 11]), place), batches.reshape(12, 5)[[0, 5, 11]])


def test_what_is_refused() -> None:
    model = quantized(network(), 4)
    with pytest.raises(ModelError) as unquantized:
        reconstruct(network(), {"x": DATA})
    assert unquantized.value.code == "model-not-quantized"
    stored = io.load(model)
    rewrite(stored, [DeployForm()])
    for given, options in ((io.to_proto(stored), {}), (model, {"recipe": "gptq"}), (model, {"iterations": 0})):
        with pytest.raises(UsageError) as refused:
            reconstruct(given, {"x": DATA}, **options)  # type: ignore[arg-type]
        assert refused.value.code == "option-invalid"
    with pytest.raises(UsageError, match="no output path"):
        reconstruct("model.onnx", {"x": DATA})


@pytest.mark.parametrize("recipe", ["adaround", "qdrop"])
def test_a_recurrent_layer_is_a_layer_and_the_shape_of_what_it_gives_is_none(recipe: Any) -> None:
    """An LSTM gives three tensors; the Reshape behind it reads its shape, which its weights do not make."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 5, 6] x) => (float[N, 20] y) <float[1, 16, 6] w, float[1, 16, 4] r, float[20, 20] h,
            int64[1] one = {1}, int64[1] zero = {0}, int64[1] free = {-1}> {
            t = Transpose <perm = [1, 0, 2]> (x)
            a, last = LSTM <hidden_size = 4> (t, w, r)
            b = Transpose <perm = [2, 0, 3, 1]> (a)
            s = Shape (b)
            n = Slice (s, zero, one)
            shape = Concat <axis = 0> (n, free)
            f = Reshape (b, shape)
            y = MatMul (f, h)
        }""")
    for name, shape in {"w": (1, 16, 6), "r": (1, 16, 4), "h": (20, 20)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(RANDOM.standard_normal(shape, np.float32), name))
    data = {"x": RANDOM.standard_normal((16, 5, 6)).astype(np.float32)}
    overrides = Overrides(weight_bits=2, activation_bits=8, first_last_bits=2)
    qdq = insert_qdq(model, "academic", data=data, overrides=overrides).model
    result = reconstruct(qdq, data, recipe=recipe, iterations=30)
    assert [sorted(block.layers) for block in result.blocks] == [["r", "w"], ["h"]]


def test_blocks_imitate_the_float_file_and_not_the_rounded_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that were rounded on data compute another function when quantizers are off."""
    monkeypatch.setattr(sys.modules[__name__], "RANDOM", np.random.default_rng(4))
    path, model = tmp_path / "float.onnx", network()
    onnx.save(model, path)
    made = insert_qdq(
        path, data={"x": DATA}, overrides=Overrides(weight_bits=3), rounding="compensated", guard=False
    ).model
    wanted = run(model, DATA)
    before = float(np.square(run(onnx.load(made), DATA) - wanted).mean())
    result = reconstruct(made, {"x": DATA}, iterations=60, output=tmp_path / "found.qdq.onnx")
    assert sum("the teacher is" in remark.message for remark in result.remarks) == 1
    found = run(onnx.load(result.model), DATA)
    assert float(np.square(found - wanted).mean()) < 1.2 * before  # against itself it ends at 30 times as much
    moved = path.rename(tmp_path / "elsewhere.onnx")
    with pytest.raises(UsageError, match="give the float model as the teacher"):
        reconstruct(made, {"x": DATA}, iterations=60, output=tmp_path / "none.qdq.onnx")
    result = reconstruct(made, {"x": DATA}, teacher=moved, iterations=60, output=tmp_path / "given.qdq.onnx")
    assert np.array_equal(run(onnx.load(result.model), DATA), found)


def test_a_tensor_that_means_something_else_in_the_float_file_is_no_target() -> None:
    """A pass may scale the channels of a tensor and keep its name."""
    model = network()
    scaled = onnx.ModelProto()
    scaled.CopyFrom(model)
    for initializer in scaled.graph.initializer:
        if initializer.name in ("w1", "b1"):  # of c1 alone, which a Relu and a Conv read
            initializer.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(initializer) * 4, initializer.name)
            )
    module, teacher = to_torch(model), to_torch(scaled)
    batches = [(torch.from_numpy(DATA[:8]),)]
    runner = GraphRunner(module, batches[0])
    nodes = {n.meta.get("onnx_name"): n for n in runner.nodes}
    found = {}
    for name in ("a", "r1"):
        found[nodes[name]] = cache.Cache(1, Path())
        (value,) = runner.run(
            runner.between(runner.inputs, [nodes[name]]), {runner.inputs[0]: batches[0][0]}, [nodes[name]]
        )
        found[nodes[name]].store(0, value + 0.001)
    before = {name: found[nodes[name]].batch(0, torch.device("cpu")) for name in ("a", "r1")}
    FloatValues(teacher, runner, batches).replace(found, torch.device("cpu"))
    after = {name: found[nodes[name]].batch(0, torch.device("cpu")) for name in ("a", "r1")}
    torch.testing.assert_close(after["a"], before["a"] - 0.001)
    assert torch.equal(after["r1"], before["r1"])


def test_what_the_outputs_are_worse_for_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What blocks gain can be lost behind them."""
    model = quantized(network())
    errors = iter((0.1, 0.2))
    monkeypatch.setattr(reconstruction._Run, "_error", lambda run, whole, wanted: next(errors))
    result = reconstruct(model, {"x": DATA}, iterations=20, batch_size=16)
    np.testing.assert_array_equal(run(result.model, DATA), run(model, DATA))
    assert not any(block.kept for block in result.blocks)
    assert any("the file is as it was" in remark.message for remark in result.remarks)
