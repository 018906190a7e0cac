"""Models in and out."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from onnxqat.errors import ModelError
from onnxqat.graph import io
from tests.passes.checks import compare_outputs, parse

TEXT = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"


def test_the_kind_given_comes_back(tmp_path: Path) -> None:
    proto = parse(TEXT)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source, kind in (
        (proto, onnx.ModelProto),
        (ir.from_proto(proto), ir.Model),
        (gs.import_onnx(proto), gs.Graph),
        (path, ir.Model),
        (str(path), ir.Model),
    ):
        model = io.load(source)
        assert isinstance(model, ir.Model)
        assert isinstance(io.like(source, model), kind)


@pytest.mark.parametrize("make", [lambda p: p, ir.from_proto, gs.import_onnx], ids=["proto", "ir", "gs"])
def test_the_callers_model_is_not_seen(make) -> None:
    source = make(parse(TEXT))
    model = io.load(source)
    model.graph[0].outputs[0].name = "z"
    model.graph.initializers.pop("w")
    again = io.load(source)
    assert [v.name for v in again.graph.outputs] == ["y"]
    assert "w" in again.graph.initializers


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def code_of(source) -> str:
    with pytest.raises(ModelError) as caught:
        io.load(source)
    return caught.value.code


def test_files_that_are_no_models(tmp_path: Path) -> None:
    assert code_of(tmp_path / "none.onnx") == "model-not-found"
    assert code_of(tmp_path) == "model-not-found"
    assert code_of(write(tmp_path / "a.onnx", b"")) == "model-empty"
    assert code_of(write(tmp_path / "b.onnx", b"PK\x03\x04 not a model")) == "model-not-onnx"
    assert code_of(write(tmp_path / "c.onnx", parse(TEXT).SerializeToString()[:-20])) == "model-not-onnx"
    assert code_of(onnx.ModelProto()) == "model-not-onnx"
    assert code_of(3) == "model-not-onnx"


def test_models_that_are_invalid() -> None:
    model = parse(TEXT)
    del model.opset_import[:]
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.node[0].input[0] = "ghost"
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.initializer[0].data_type = 99
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.sparse_initializer.add().values.name = "s"
    assert code_of(model) == "model-sparse-initializer"


@pytest.mark.parametrize(
    ("stated", "body", "named"),
    [
        (11, "y = DequantizeLinear <axis = 0> (x, s)", "opset 13"),
        (13, "f = Cast <to = 1> (x) g = Gelu(f) y = Mul(g, s)", "opset 20"),
        (13, "f = Cast <to = 1> (x) g = Unsqueeze <axes = [0]> (f) y = Mul(g, s)", "opset 12"),
        (13, "f = Cast <to = 1> (x) g = Relu <no = 0> (f) y = Mul(g, s)", ""),
    ],
)
def test_a_wrong_opset_is_told(stated: int, body: str, named: str) -> None:
    """Onnxruntime refuses such files too."""
    text = f'<ir_version: 8, opset_import: ["" : {stated}]> g (int8[4] x, float[4] s) => (float[4] y) {{ {body} }}'
    with pytest.raises(ModelError) as caught:
        io.load(onnx.parser.parse_model(text))
    assert (f"those of {named}" in caught.value.hint) if named else not caught.value.hint


def test_every_truncation_is_refused_or_valid(tmp_path: Path) -> None:
    content = parse(TEXT).SerializeToString()
    for length in range(len(content)):
        path = write(tmp_path / "cut.onnx", content[:length])
        try:
            io.load(path)
        except ModelError as error:
            assert error.code.startswith("model-")  # noqa: PT017 - a cut that leaves a valid model is fine


@pytest.mark.parametrize("external", [False, True])
def test_save_and_load(tmp_path: Path, external: bool) -> None:
    model = io.load(parse(TEXT))
    big = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(big, name="w")
    model.graph.initializers["w"].shape = ir.Shape(big.shape)
    model.graph.outputs[0].shape = ir.Shape(["N", 1000])
    path = io.save(model, tmp_path / "m.onnx", external_data=external)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names[0] == "m.onnx"
    assert len(names) == (2 if external else 1)
    compare_outputs(io.to_proto(model), io.to_proto(io.load(path)), 0.0)
    held = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    io.save(io.load(path), path, external_data=external)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == held


def test_saving_over_a_model_that_is_mapped(tmp_path: Path) -> None:
    model = io.load(parse(TEXT))
    values = np.arange(2000, dtype=np.float32).reshape(2, 1000)
    model.graph.initializers["w"].const_value = ir.tensor(values, name="w")
    path = io.save(model, tmp_path / "m.onnx", external_data=True)
    mapped = io.load(path)
    io.save(mapped, path, external_data=True)
    np.testing.assert_array_equal(io.load(path).graph.initializers["w"].const_value.numpy(), values)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = io.save(io.load(parse(TEXT)), tmp_path / "m.onnx")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError) as caught:
        io.save(io.load(parse(TEXT.replace("MatMul", "Add").replace("N", "2"))), path)
    assert caught.value.code == "output-not-writable"
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        io.save(io.load(parse(TEXT)), tmp_path / "none" / "m.onnx")
    assert caught.value.code == "output-not-writable"


def test_real_models_come_back_whole(shared) -> None:
    for name in ("resnet20_cifar10_dynamo", "silero_vad", "mobilenetv1_025_vww"):
        source = onnx.load(shared / "data" / "models" / f"{name}.onnx")
        result = io.to_proto(io.load(source))
        assert [n.output for n in result.graph.node] == [n.output for n in source.graph.node]
        assert [n.metadata_props for n in result.graph.node] == [n.metadata_props for n in source.graph.node]
        assert list(result.graph.input) == list(source.graph.input)


WEIGHTS = "g (float[N,2] x) => (float y) <float[2] w = {1, 2}> { %s }"


@pytest.mark.parametrize(
    ("body", "ir_version", "opset", "domain"),
    [
        ("y = GroupNormalization <num_groups = 2> (x, w, w)", 10, 18, ""),
        ("y = Mul(x, w)", 3, 8, ""),
        ("y = Mul(x, w)", 10, 18, "ai.onnx"),
    ],
    ids=["deprecated operator", "initializers that are no inputs", "long domain"],
)
def test_what_runtimes_accept_is_read(body: str, ir_version: int, opset: int, domain: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {WEIGHTS % body}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.node[0].domain = domain
    with pytest.raises((onnx.checker.ValidationError, onnx.shape_inference.InferenceError)):
        onnx.checker.check_model(proto)
    feeds = {"x": np.ones((3, 2), np.float32)}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    wanted = ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    assert wanted[0].shape == (3, 2)
    assert io.load(proto).graph.node(0).op_type == proto.graph.node[0].op_type


def test_a_sparse_constant_is_refused_by_name() -> None:
    proto = parse(TEXT)
    numbers = onnx.helper.make_tensor("", 1, [1], [1.0])
    sparse = onnx.helper.make_sparse_tensor(numbers, onnx.helper.make_tensor("", 7, [1], [0]), [4])
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    with pytest.raises(ModelError, match="sparse tensor of the Constant that makes 'c'"):
        io.load(proto)


@pytest.mark.parametrize("dims", [[], [1], [3], [2**40]])
def test_values_that_do_not_fit_the_shape_are_told(dims: list[int]) -> None:
    proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    tensor.dims[:] = dims
    with pytest.raises(ModelError, match=f"'w' of shape .* holds 8 bytes, not {4 * int(np.prod(dims))}"):
        io.load(proto)


def test_calls_of_calls_are_counted_before_they_are_inlined() -> None:
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("my", 1)]

    def doubling(depth: int) -> onnx.ModelProto:
        made = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        made.graph.node[0].domain, made.graph.node[0].op_type = "my", "F0"
        made.opset_import.extend(opsets[1:])
        for index in range(depth):
            inner = [(f"F{index + 1}", "my") if index < depth - 1 else ("Neg", "")] * 2
            ends = [("a", "b"), ("b", "c")]
            nodes = [onnx.helper.make_node(t, i[:1], o, domain=d) for (t, d), (i, o) in zip(inner, ends, strict=True)]
            made.functions.append(onnx.helper.make_function("my", f"F{index}", ["a"], ["c"], nodes, opsets))
        return made

    assert len(io.load(doubling(10)).functions) == 10
    with pytest.raises(ModelError, match=r"1\.1e\+12 nodes"):
        io.load(doubling(40))


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_call_with_more_values_than_its_function_has(kind: str) -> None:
    made = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("my", 1)]
    made.opset_import.extend(opsets[1:])
    made.functions.append(
        onnx.helper.make_function("my", "F", ["a"], ["b"], [onnx.helper.make_node("Neg", ["a"], ["b"])], opsets)
    )
    node = made.graph.node[0]
    node.domain, node.op_type, node.name = "my", "F", "call"
    io.load(made)
    getattr(node, kind).append("x" if kind == "input" else "z")
    with pytest.raises(ModelError, match=f"node 'call' calls function 'F' with .*2 {kind}s.*; it has 1 and 1"):
        io.load(made)


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/cpuinfo"])  # /proc has files of size 0 that never end
def test_a_device_is_no_model(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path}")
    with pytest.raises(ModelError, match="a pipe or a device"):
        io.load(path)


@pytest.mark.parametrize("named", [b"name of", b"key of", b"note of"])
def test_text_that_is_not_utf8_is_told(named: bytes, tmp_path: Path) -> None:
    proto = parse(TEXT)
    proto.graph.node[0].name = "name of it"
    proto.graph.node[0].doc_string = "note of it"
    proto.metadata_props.add(key="key of it", value="")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(named, named[:-1] + b"\xe9"))
    with pytest.raises(ModelError, match="UTF-8") as error:
        io.load(path)
    assert error.value.code == "model-invalid"


def external(folder: Path) -> Path:
    """A model whose Constant, in the main graph and in a branch, lies in a file beside it."""
    text = """g (float[N,2] x, bool c) => (float[N,2] y) { w = Constant <value = float[2,2] {1, 2, 3, 4}> ()  t = MatMul(x, w)
        y = If(c) <then_branch = b () => (float[N,2] p) { v = Constant <value = float[2] {5, 6}> () p = Add(t, v) },
                   else_branch = e () => (float[N,2] q) { q = Identity(t) }> }"""
    path = folder / "m.onnx"
    onnx.save_model(
        parse(text), path, save_as_external_data=True, location="m.bin", size_threshold=0, convert_attribute=True
    )
    return path


@pytest.mark.parametrize("external_data", [False, True])
def test_constants_in_files_come_along(tmp_path: Path, external_data: bool) -> None:
    (tmp_path / "in").mkdir()
    model = io.load(external(tmp_path / "in"))
    written = io.save(model, tmp_path / "out.onnx", external_data=external_data)
    feeds = {"x": np.ones((1, 2), np.float32), "c": np.array(True)}
    for proto in (written.read_bytes(), io.to_proto(model).SerializeToString()):
        (y,) = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, feeds)
        np.testing.assert_array_equal(y, [[9, 12]])


def test_a_link_stays_and_what_it_means_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "real" / "m.onnx")
    assert io.save(parse(TEXT), link) == link
    assert link.is_symlink()
    assert [v.name for v in io.load(tmp_path / "real" / "m.onnx").graph.outputs] == ["y"]


def test_no_file_takes_the_place_of_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        io.write_atomic(pipe, b"model")
        assert os.read(reader, 10) == b"model"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(ModelError, match="cannot be written"):
        io.write_atomic(pipe, b"model")  # nobody reads it: not until somebody does


def test_outputs_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    io.check_writable(tmp_path / "new.onnx")
    io.check_writable(tmp_path / "file")
    io.check_writable(tmp_path / "a" / "b", folder=True)
    for path, folder in (
        (tmp_path, False),
        (tmp_path / "no" / "new.onnx", False),
        (tmp_path / "file" / "new.onnx", False),
        (tmp_path / "file", True),
        (tmp_path / "file" / "folder", True),
    ):
        with pytest.raises(ModelError) as caught:
            io.check_writable(path, folder=folder)
        assert caught.value.code == "output-not-writable"
        assert str(path) in caught.value.message


def test_inputs_of_unknown_rank() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    assert io.load(model).graph.inputs[0].shape is None


def test_attributes_of_an_operator_that_the_opset_has_are_checked() -> None:
    graph = "g (float[1,2] x) => (float[1,2] y) <float[2] s = {1, 1}> { y = LayerNormalization<axis = 1.5>(x, s) }"
    broken = '<ir_version: 8, opset_import: ["" : %d]>' + graph
    with pytest.raises(ModelError, match="Mismatched attribute type"):
        io.load(onnx.parser.parse_model(broken % 17))
    io.load(onnx.parser.parse_model(broken % 16))  # onnxruntime's optimizer writes it there; it is not looked at


def test_an_output_declared_with_two_types_is_refused() -> None:
    proto = parse(TEXT)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT8, None))
    with pytest.raises(ModelError, match="output 'y' is declared twice, as float and as int8") as caught:
        io.load(proto)
    assert caught.value.code == "model-invalid"


def test_a_map_is_refused_with_the_way_to_export_without() -> None:
    """Classifiers of scikit-learn end in ZipMap by default: a sequence of maps from classes to probabilities."""
    kind = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
    maps = helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind))
    zipped = helper.make_node("ZipMap", ["x"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 2])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([zipped], "classifier", [x], [maps]), opset_imports=domains)
    with pytest.raises(ModelError, match="'probabilities' is a map") as caught:
        io.load(model)
    assert "zipmap" in (caught.value.hint or "")
