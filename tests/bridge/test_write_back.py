"""Write-back: only what changed, byte for byte the rest."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat import numerics
from onnxqat.bridge.export.write_back import FINETUNED, write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import QatError, UsageError
from onnxqat.types import QParams, QType

Array = npt.NDArray[Any]


@dataclasses.dataclass
class Style:
    """How the test model is written."""

    stored: bool = False
    weight: str = "int8"
    raw: bool = True
    constants: bool = False
    copies: bool = False


def qdq_model(style: Style | None = None) -> onnx.ModelProto:
    """x -> Q/DQ -> Gemm(weight Q/DQ or stored, bias int32 stored) -> Relu."""
    style = style or Style()
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 8)).astype(np.float32)
    s_x, s_w = np.float32(0.021), (np.abs(weight).max(1) / 7).astype(np.float32)
    kind = getattr(TensorProto, style.weight.upper())
    codes = np.clip(np.rint(weight / s_w[:, None]), -8, 7).astype(np.int8)
    bias = np.asarray([100, -7, 2**24 + 1, 0], np.int32)
    held: dict[str, onnx.TensorProto] = {
        "x_scale": numpy_helper.from_array(np.asarray(s_x), "x_scale"),
        "x_zero_point": numpy_helper.from_array(np.asarray(3, np.int8), "x_zero_point"),
        "w_scale": numpy_helper.from_array(s_w, "w_scale"),
        "w_zero_point": helper.make_tensor("w_zero_point", kind, (4,), [0] * 4),
        "b_codes": numpy_helper.from_array(bias, "b_codes"),
        "b_scale": numpy_helper.from_array(s_x * s_w, "b_scale"),
        "unused": numpy_helper.from_array(np.arange(3.0), "unused"),
    }
    if style.stored:
        held["w_codes"] = helper.make_tensor("w_codes", kind, codes.shape, codes.reshape(-1))
    else:
        held["w"] = numpy_helper.from_array(weight, "w")
    if not style.raw:
        for name, tensor in held.items():
            array = numpy_helper.to_array(tensor)
            held[name] = helper.make_tensor(name, tensor.data_type, tensor.dims, array.reshape(-1))
    second = "x_scale"
    if style.copies:
        second = "x_scale_copy"
        held[second] = numpy_helper.from_array(np.asarray(s_x), second)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero_point"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", second, "x_zero_point"], ["x_dq"]),
    ]
    source = "w_codes"
    if not style.stored:
        nodes.append(helper.make_node("QuantizeLinear", ["w", "w_scale", "w_zero_point"], ["w_q"], axis=0))
        source = "w_q"
    nodes += [
        helper.make_node("DequantizeLinear", [source, "w_scale", "w_zero_point"], ["w_dq"], axis=0),
        helper.make_node("DequantizeLinear", ["b_codes", "b_scale"], ["b_dq"], axis=0),
        helper.make_node("Gemm", ["x_dq", "w_dq", "b_dq"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    initializers = list(held.values())
    if style.constants:
        nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in initializers] + nodes
        initializers = []
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", 4))],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="me")
    model.metadata_props.add(key="author", value="somebody")
    onnx.checker.check_model(model)
    return model


def constants(model: onnx.ModelProto) -> dict[str, Array]:
    found = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def run(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def nudge(module: torch.nn.Module, seed: int = 0) -> None:
    """Change every parameter, scales by up to a tenth."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + 0.1 * torch.rand(parameter.shape, generator=generator))


STYLES = [
    Style(),
    Style(stored=True),
    Style(stored=True, weight="int4"),
    Style(stored=True, weight="int4", raw=False),
    Style(raw=False),
    Style(constants=True),
    Style(constants=True, stored=True),
    Style(copies=True),
]


@pytest.fixture(params=STYLES, ids=lambda s: "-".join(f"{k}={v}" for k, v in dataclasses.asdict(s).items()))
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return qdq_model(request.param)


def test_nothing_changed_gives_the_same_bytes(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    # Bytes that this protobuf library would not write itself: an unknown field in front.
    path.write_bytes(b"\xfa\x7f\x01a" + model.SerializeToString())
    assert write_back(to_torch(path), path, tmp_path / "out.onnx") == tmp_path / "out.onnx"
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()
    assert write_back(to_torch(model), model).SerializeToString() == model.SerializeToString()


def test_trained_values_arrive_and_nothing_else_changes(model: onnx.ModelProto) -> None:
    before = model.SerializeToString()
    module = to_torch(model)
    nudge(module)
    tuned = write_back(module, model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(tuned)
    x = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(run(tuned, x), expected, rtol=1e-5, atol=1e-5)
    assert not np.allclose(run(model, x), expected, rtol=1e-3, atol=1e-3)
    old, new = constants(model), constants(tuned)
    for q in (q for _, q in quantizers(module)):
        for name in q.scale_names:
            assert np.array_equal(new[name], q.qparams().scale)
    assert np.array_equal(new["b_scale"], new["x_scale"] * new["w_scale"])
    for name in ("unused", "x_zero_point", "w_zero_point"):
        assert np.array_equal(new[name], old[name])
    assert {e.key: e.value for e in tuned.metadata_props} == {"author": "somebody", FINETUNED: "true"}
    strip(model)
    strip(tuned)
    assert tuned.SerializeToString() == model.SerializeToString(), "structure, dtypes and storage fields stay"


def strip(model: onnx.ModelProto) -> None:
    """Empty every data field that is in use, and the metadata, so that only structure is left."""
    tensors = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.name == "value")]
    for tensor in tensors:
        for field in ("float_data", "int32_data", "double_data"):
            getattr(tensor, field)[:] = [0] * len(getattr(tensor, field))
        if tensor.HasField("raw_data"):
            tensor.raw_data = bytes(len(tensor.raw_data))
    del model.metadata_props[:]


def test_a_round_trip_imports_the_trained_module(model: onnx.ModelProto) -> None:
    module = to_torch(model)
    nudge(module)
    again = to_torch(write_back(module, model))
    x = torch.randn(16, 8)
    assert torch.equal(again(x), module(x))


def test_integer_codes_are_those_of_the_master_weight() -> None:
    model = qdq_model(Style(stored=True, weight="int4"))
    module = to_torch(model)
    nudge(module)
    new = constants(write_back(module, model))
    (q,) = (q for _, q in quantizers(module) if q.role == "weight")
    master = next(p for p in module.parameters() if p.shape == (4, 8)).detach().numpy()
    assert new["w_codes"].dtype == ml_dtypes.int4
    assert np.array_equal(new["w_codes"].astype(np.int64), numerics.quantize(master, q.qparams()))


def test_only_what_changed_is_replaced() -> None:
    model = qdq_model()
    module = to_torch(model)
    (q,) = (q for _, q in quantizers(module) if q.role == "weight")
    with torch.no_grad():
        q.scale[1] *= 2
    old, new = constants(model), constants(write_back(module, model))
    assert sorted(n for n in old if not np.array_equal(old[n], new[n])) == ["b_codes", "b_scale", "w_scale"]
    assert new["b_codes"][1] == round(old["b_codes"][1] / 2)
    assert new["b_codes"][0] == old["b_codes"][0]


def test_scales_that_training_took_below_zero_are_refused() -> None:
    model = qdq_model()
    module = to_torch(model)
    with torch.no_grad():
        for _, q in quantizers(module):
            if not isinstance(q, DerivedFakeQuantize):
                q.scale.fill_(-1.0)
    with pytest.raises(QatError, match="the trained scale of tensor 'x'"):
        write_back(module, model)


def test_a_trained_bias_keeps_the_codes_that_did_not_move() -> None:
    """2**24 + 1 is no float32: dequantize and quantize would make it 2**24."""
    model = qdq_model()
    module = to_torch(model)
    bias = next(p for key, p in module.named_parameters() if module.parameter_names.get(key) == "b_dq")
    with torch.no_grad():
        bias[0] += 0.5
    old, new = constants(model), constants(write_back(module, model))
    assert [n for n in old if not np.array_equal(old[n], new[n])] == ["b_codes"]
    assert (new["b_codes"] == old["b_codes"]).tolist() == [False, True, True, True]


@pytest.mark.parametrize("kind", ["path", "proto", "ir", "gs"])
def test_the_kind_that_was_given_comes_back(kind: str, tmp_path: Path) -> None:
    proto = qdq_model()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    makers: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "proto": lambda: proto,
        "ir": lambda: ir.from_proto(proto),
        "gs": lambda: gs.import_onnx(proto),
    }
    given: Any = makers[kind]()
    module = to_torch(given)
    nudge(module)
    result: Any = write_back(module, given, tmp_path / "out.onnx")
    assert type(result).__name__ == type(path if kind == "path" else given).__name__
    written = constants(onnx.load(tmp_path / "out.onnx"))
    expected = constants(write_back(module, proto))
    assert all(np.array_equal(written[name], value) for name, value in expected.items() if name != "unused")
    if kind == "ir":
        assert result.graph.initializers["x_scale"].const_value.numpy() == expected["x_scale"]
        assert given.graph.initializers["x_scale"].const_value.numpy() != expected["x_scale"]


def test_the_file_itself_may_be_the_output(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(qdq_model(), path)
    module = to_torch(path)
    nudge(module)
    write_back(module, path, path)
    assert torch.equal(to_torch(path)(torch.ones(1, 8)), module(torch.ones(1, 8)))
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_path_needs_an_output(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(qdq_model(), path)
    with pytest.raises(UsageError):
        write_back(to_torch(path), path)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save_model(qdq_model(), folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=16)
    return folder / "m.onnx"


@pytest.mark.parametrize("limit", [2**31, 10], ids=["inside", "in a file of its own"])
def test_a_file_written_does_not_read_the_data_of_the_model_that_it_was_made_from(
    external: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("onnxqat.graph.saving.PROTOBUF_LIMIT", limit)
    module, x = to_torch(external), torch.ones(1, 8)
    expected = module(x)
    written = write_back(module, external, external.with_name("out.onnx"))
    data = external.with_name("m.data")
    data.write_bytes(bytes(data.stat().st_size))
    assert torch.equal(to_torch(written)(x), expected)


def test_external_data_need_not_state_their_length(external: Path) -> None:
    proto = onnx.load(external, load_external_data=False)
    for tensor in proto.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    external.write_bytes(proto.SerializeToString())
    module, x = to_torch(external), torch.ones(1, 8)
    assert torch.equal(to_torch(write_back(module, external, external.with_name("out.onnx")))(x), module(x))


def test_a_model_with_external_data_that_is_written_over_itself_unchanged_stays(external: Path) -> None:
    before = {file.name: file.read_bytes() for file in external.parent.iterdir()}
    write_back(to_torch(external), external, external)
    assert {file.name: file.read_bytes() for file in external.parent.iterdir()} == before


def test_external_data_that_changed_comes_inside(external: Path, tmp_path: Path) -> None:
    module = to_torch(external)
    nudge(module)
    before = external.read_bytes(), (external.parent / "m.data").read_bytes()
    write_back(module, external, tmp_path / "out.onnx")
    assert (external.read_bytes(), (external.parent / "m.data").read_bytes()) == before
    assert torch.equal(to_torch(tmp_path / "out.onnx")(torch.ones(1, 8)), module(torch.ones(1, 8)))


def test_above_the_limit_external_data_stay_external(
    external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxqat.graph.saving.PROTOBUF_LIMIT", 10)
    module = to_torch(external)
    nudge(module)
    write_back(module, external, tmp_path / "out.onnx")
    assert torch.equal(to_torch(tmp_path / "out.onnx")(torch.ones(1, 8)), module(torch.ones(1, 8)))


def test_another_model_is_refused() -> None:
    module = to_torch(qdq_model())
    other = qdq_model()
    other.graph.initializer[0].name = "renamed"
    for node in other.graph.node:
        for index, name in enumerate(node.input):
            if name == "x_scale":
                node.input[index] = "renamed"
    with pytest.raises(QatError, match="x_scale") as error:
        write_back(module, other)
    assert error.value.code == "checkpoint-mismatch"


def test_another_shape_is_refused() -> None:
    module = to_torch(qdq_model())
    other = qdq_model()
    (weight,) = (t for t in other.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array(np.zeros((4, 9), np.float32), "w"))
    with pytest.raises(QatError) as error:
        write_back(module, other)
    assert error.value.code == "checkpoint-mismatch"


@pytest.mark.parametrize("value", [0.0, -0.5, 1e-40])
def test_a_scale_that_is_dead_is_refused_by_name(value: float) -> None:
    model = qdq_model()
    module = to_torch(model)
    quantizer = next(q for _, q in quantizers(module) if q.tensor == "w")
    with torch.no_grad():
        quantizer.scale[2] = value
    with pytest.raises(QatError, match=r"scale of tensor 'w' is .*, not a positive") as error:
        write_back(module, model)
    assert error.value.code == "training-diverged"


def test_a_subnormal_scale_of_the_file_itself_passes() -> None:
    model = qdq_model()
    next(t for t in model.graph.initializer if t.name == "x_scale").raw_data = np.float32(1e-40).tobytes()
    assert write_back(to_torch(model), model) == model


def test_a_diverged_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(qdq_model(), path)
    module = to_torch(path)
    with torch.no_grad():
        next(p for p in module.parameters() if p.shape == (4, 8)).fill_(float("nan"))
    with pytest.raises(QatError) as error:
        write_back(module, path, tmp_path / "out.onnx")
    assert error.value.code == "training-diverged"
    assert not (tmp_path / "out.onnx").exists()


def test_some_other_module_is_refused() -> None:
    with pytest.raises(UsageError):
        write_back(torch.nn.Linear(2, 2), qdq_model())


def test_wrapped_modules_are_seen_through() -> None:
    model = qdq_model()
    module = to_torch(model)
    nudge(module)
    wrapped: Any = torch.compile(module, backend="eager")
    assert write_back(wrapped, model).SerializeToString() == write_back(module, model).SerializeToString()


def hand_made(model: onnx.ModelProto) -> Any:
    """A module as the importer would make it, for a float bias on the derived grid."""
    held = constants(model)
    module: Any = torch.nn.Module()
    x = FakeQuantize(QParams(held["x_scale"], np.int64(3), QType.of(8, signed=True)), tensor="x", role="activation")  # type: ignore[arg-type]
    w = FakeQuantize(
        QParams(held["w_scale"], np.zeros(4, np.int64), QType.of(8, signed=True), 0), tensor="w", role="weight"
    )
    for q, name in ((x, "x"), (w, "w")):
        q.scale_names, q.zero_point_names = (f"{name}_scale",), (f"{name}_zero_point",)
    scale = held["x_scale"] * held["w_scale"]
    grid = QParams(scale, np.zeros(4, np.int64), QType("int32", -(2**31), 2**31 - 1), 0)
    module.x, module.w = x, w
    module.b = DerivedFakeQuantize(grid, activation=x, weight=w, tensor="unused4", stored_as="float")
    module.bias = torch.nn.Parameter(torch.from_numpy(held["unused4"].copy()))
    module.parameter_names = {"bias": "unused4"}
    return module


def test_a_float_bias_is_written_on_its_grid() -> None:
    model = qdq_model()
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([0.1, 1, -2, 3], np.float32), "unused4"))
    module = hand_made(model)
    assert write_back(module, model).SerializeToString() == model.SerializeToString()
    with torch.no_grad():
        module.bias += 0.1
    new = constants(write_back(module, model))["unused4"]
    assert np.array_equal(new, numerics.fake_quantize(module.bias.detach().numpy(), module.b.qparams()))
    assert not np.array_equal(new, module.bias.detach().numpy())


def test_values_that_share_a_constant_have_to_agree() -> None:
    model = qdq_model()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "unused4"))
    module = hand_made(model)
    module.w.scale_names = ("b_scale",)
    module.x.scale_names = ("b_scale",)
    with pytest.raises(QatError) as error:
        write_back(module, model)
    assert error.value.code == "checkpoint-mismatch"


FUNCTION = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[N, 4] x) => (float[N, 4] y) { a = local.f(x)
 y = local.f(a) }
<domain: "local", opset_import: ["" : 21]>
f (x) => (y) { w = Constant <value_floats=[1.5, 2.5, 3.5, 4.5]>()
 y = Mul(x, w) }"""

BRANCHES = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 4] x, bool c) => (float[N, 4] y) { y = If (c) <
 then_branch = t () => (float[N, 4] z) <float[4] w = {1, 2, 3, 4}> { z = Mul(x, w) },
 else_branch = e () => (float[N, 4] z2) <float[4] w = {1, 2, 3, 5}> { z2 = Mul(x, w) }> }"""


def test_one_name_for_two_values_is_written_only_when_nothing_changed() -> None:
    model = onnx.parser.parse_model(BRANCHES)
    module = to_torch(model)
    assert write_back(module, model).SerializeToString() == model.SerializeToString()
    nudge(module)
    with pytest.raises(QatError) as error:
        write_back(module, model)
    assert error.value.code == "checkpoint-mismatch"


@pytest.mark.parametrize("calls", [1, 2])
def test_a_constant_of_a_function_is_written(calls: int) -> None:
    model = onnx.parser.parse_model(FUNCTION if calls == 2 else FUNCTION.replace("y = local.f(a)", "y = Relu(a)"))
    module = to_torch(model)
    assert write_back(module, model).SerializeToString() == model.SerializeToString()
    nudge(module)
    again = to_torch(write_back(module, model))
    assert torch.equal(again(torch.ones(1, 4)), module(torch.ones(1, 4)))


@pytest.mark.parametrize("stored", [False, True])
def test_nodes_out_of_order_stay_so(stored: bool, tmp_path: Path) -> None:
    model = qdq_model(Style(stored=stored))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for source in (path, model):
        module = to_torch(source)
        x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
        np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), run(model, x), rtol=1e-6)
    write_back(module, path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    nudge(module)
    write_back(module, path, tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx")
    assert [node.op_type for node in trained.graph.node] == [node.op_type for node in reversed(nodes)]
    assert constants(trained)["w_scale"].tolist() != constants(model)["w_scale"].tolist()
