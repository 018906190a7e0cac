"""raise-opset: the same numbers at a newer opset, whatever changed in the operators."""

import onnx
import pytest
from onnx import helper

from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.graph import io
from onnxqat.passes.raise_opset import RaiseOpset
from tests.passes.checks import check_pass, compare_outputs, imports, parse, run_checked
from tests.repetitions import pairs


def at(opset: int, text: str, ir: int = 4) -> str:
    return f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}'


def test_attributes_become_inputs() -> None:
    result = check_pass(
        RaiseOpset(13),
        at(11, "g (float[2,1,3] x) => (float[2,3] y) { [n] y = Squeeze <axes = [1]> (x) }"),
        at(13, "g (float[2,1,3] x) => (float[2,3] y) <int64[1] n_axes = {1}> { [n] y = Squeeze(x, n_axes) }", 7),
    )
    assert result.model.ir_version == 7


def test_clip_of_unknown_type_in_a_function_is_refused() -> None:
    before = at(9, "g (float[4] x) => (float[4] y) { [n] y = Clip <min = -1.0, max = 1.0> (x) }")
    after = at(
        13,
        "g (float[4] x) => (float[4] y) <float n_min = {-1}, float n_max = {1}> { [n] y = Clip(x, n_min, n_max) }",
        7,
    )
    check_pass(RaiseOpset(13), before, after, inside_function="skip")


def test_softmax_over_the_last_axis_stays_one_node() -> None:
    check_pass(
        RaiseOpset(13),
        at(9, "g (float[2,3] x) => (float[2,3] y) { y = Softmax(x) }"),
        at(13, "g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = 1> (x) }", 7),
        inside_function="skip",
    )


def test_softmax_over_several_axes_is_flattened() -> None:
    check_pass(
        RaiseOpset(13),
        at(11, "g (float[2,3,4] x) => (float[2,3,4] z) { [n] y = Softmax(x) z = Neg(y) }"),
        at(
            13,
            """g (float[2,3,4] x) => (float[2,3,4] z) {
            n_Shape_output = Shape(x) n_Flatten_output = Flatten <axis = 1> (x)
            [n] n_Reshape_output = Softmax <axis = 1> (n_Flatten_output)
            y = Reshape(n_Reshape_output, n_Shape_output) z = Neg(y) }""",
            7,
        ),
    )


NODES = {
    "Unsqueeze": (9, "y = Unsqueeze <axes = [0, 2]> (x)", 5),
    "Split": (9, "y, b = Split <axis = 1, split = [1, 2]> (x)", 3),
    "Split equal": (11, "y, b = Split <axis = 0> (x)", 3),
    "ReduceSum": (9, "y = ReduceSum <axes = [1], keepdims = 0> (x)", 2),
    "ReduceMean": (9, "y = ReduceMean <axes = [1, 2]> (x)", 3),
    "ReduceMax all": (12, "y = ReduceMax(x)", 3),
    "Pad": (9, "y = Pad <pads = [0, 1, 0, 1, 0, 2], value = 3.0> (x)", 3),
    "Pad reflect": (9, 'y = Pad <mode = "reflect", pads = [0, 1, 0, 1, 0, 2]> (x)', 3),
    "Slice": (9, "y = Slice <axes = [1, 2], starts = [0, -3], ends = [2, 9]> (x)", 3),
    "Slice no axes": (7, "y = Slice <starts = [0, 1], ends = [2, 9]> (x)", 3),
    "TopK": (9, "y, i = TopK <axis = 2, k = 2> (x)", 3),
    "Dropout": (7, "y = Dropout <ratio = 0.3> (x)", 3),
    "LogSoftmax": (9, "y = LogSoftmax <axis = 2> (x)", 3),
    "Softmax 0": (11, "y = Softmax <axis = 0> (x)", 3),
    "Softmax -2": (11, "y = Softmax <axis = -2> (x)", 3),
    "Clip one end": (7, "y = Clip <max = 0.5> (x)", 3),
    "Clip no end": (7, "y = Clip(x)", 3),
    "Erf": (9, "y = Erf(x)", 3),
    "Squeeze no axes": (11, "u = Unsqueeze <axes = [0]> (x) y = Squeeze(u)", 3),
    "quantizer": (10, "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)", 3),
}


@pytest.mark.parametrize("target", [13, 18, 21, 25])
@pytest.mark.parametrize(("opset", "nodes", "rank"), NODES.values(), ids=NODES)
def test_numbers_are_kept(opset: int, nodes: str, rank: int, target: int) -> None:
    out = ",".join("ABCDE"[:rank])
    text = at(opset, f"g (float[2,3,4] x) => (float[{out}] y) <float s = {{0.1}}> {{ {nodes} }}")
    model = parse(text)
    result = run_checked(RaiseOpset(target), model, 0.0)
    assert imports(result.model) == {"": target}


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 1.5, 1.0])
def test_upsample_becomes_resize(mode: str, scale: float) -> None:
    text = at(
        9,
        f"""g (float[1,2,4,4] x) => (float[A,B,C,D] y) <float[4] s = {{1, 1, {scale}, {scale}}}> {{
        y = Upsample <mode = "{mode}"> (x, s) }}""",
    )
    result = run_checked(RaiseOpset(13), parse(text), 0.0)
    assert result.model.graph.node[0].op_type == "Resize"


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [2.0, 0.5, 0.6, 1.7])
def test_first_resize(mode: str, scale: float) -> None:
    text = at(
        10,
        f"""g (float[1,2,5,5] x) => (float[A,B,C,D] y) <float[4] s = {{1, 1, {scale}, {scale}}}> {{
        y = Resize <mode = "{mode}"> (x, s) }}""",
    )
    run_checked(RaiseOpset(13), parse(text), 0.0)


def test_unused_training_outputs_of_batchnorm_go() -> None:
    text = at(
        9,
        """g (float[2,1,2] x) => (float[2,1,2] y) <float[1] a = {1}, float[1] b = {0}, float[1] m = {0}, float[1] v = {1}>
        { y, rm, rv, sm, sv = BatchNormalization(x, a, b, m, v) }""",
    )
    result = RaiseOpset(14).run(parse(text))
    assert list(result.model.graph.node[0].output) == ["y"]


@pytest.mark.parametrize(
    "text",
    [
        at(9, "g (float[4] x) => (float[4] y, float[4] m) { y, m = Dropout(x) }"),
        at(6, "g (float[4] x) => (float[4] y) { y = Relu(x) }"),
    ],
    ids=["mask", "old"],
)
def test_refused(text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        RaiseOpset(13).run(parse(text))
    assert caught.value.code == "operator-unsupported"


def test_never_lowers() -> None:
    check_pass(RaiseOpset(13), "g (float[4] x) => (float[4] y) { y = Relu(x) }", None)


@pytest.mark.parametrize("minimum", [6, 999])
def test_unknown_opset(minimum: int) -> None:
    with pytest.raises(UsageError):
        RaiseOpset(minimum)


def test_metadata_names_and_docs_are_kept() -> None:
    model = parse(at(11, "g (float[2,1,3] x) => (float[2,3] y) { [n] y = Squeeze <axes = [1]> (x) }"))
    model.doc_string, model.graph.node[0].doc_string = "model", "node"
    helper.set_model_props(model, {"key": "value"})
    model.graph.node[0].metadata_props.add(key="k", value="v")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    result = RaiseOpset(13).run(model).model
    assert (result.doc_string, result.graph.node[0].doc_string) == ("model", "node")
    assert result.metadata_props[0].value == "value"
    assert result.graph.node[0].metadata_props[0].key == "k"
    assert result.graph.input[0] == model.graph.input[0]


NETWORKS = [
    "autoencoder_ad", "mobilenetv1_025_vww", "nanodet_coco_320", "ppocr_v2_cls", "ultraface_rfb_320", "yolox_nano_coco_416",
    "light_squeezenet", "light_inception_v2", "resnet20_cifar10",
]  # fmt: skip


@pytest.mark.parametrize(("name", "target"), pairs(NETWORKS, [13, 21]))
def test_real_models(shared, name: str, target: int) -> None:
    model = io.load(shared / "data" / "models" / f"{name}.onnx")
    result = RaiseOpset(target).run(model)
    after = io.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    compare_outputs(io.to_proto(model), after, 0.0, size=1)
    assert not RaiseOpset(target).run(result.model).changed
