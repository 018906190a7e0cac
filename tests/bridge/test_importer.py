"""What an imported module is: names, ties, copies, compilers, gradients, refusals."""

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxqat.bridge.importing.importer import capture, to_torch
from onnxqat.errors import UnsupportedError, UsageError
from tests.bridge import parity

RANDOM = np.random.default_rng(0)


def model(nodes, initializers, outputs=("y",), shape=("n", 4), opset=17, domains=()):
    """A float model with input ``x``."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in initializers.items()],
    )
    for value in graph.output:
        value.type.tensor_type.shape.SetInParent()
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.shape.dim.add().dim_param = "n"
        value.type.tensor_type.shape.dim.add()
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def weights(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["resnet20_cifar10", "mobilenetv2_imagenet_bn"])
def network(request, shared: Path):
    module = to_torch(shared / "data" / "models" / f"{request.param}.onnx")
    side = 32 if "cifar" in request.param else 64
    if side == 64:
        module.eval()
    return module, torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_copies_compute_the_same_and_keep_names(network) -> None:
    module, x = network
    expected = module(x)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(other(x), expected)
        assert other.input_names == module.input_names
        assert other.tensor_nodes == module.tensor_nodes
        assert [n.meta.get("onnx_name") for n in other.graph.nodes] == [
            n.meta.get("onnx_name") for n in module.graph.nodes
        ]
        assert not {id(p) for p in other.parameters()} & {id(p) for p in module.parameters()}


def test_state_dict_round_trip_is_strict(network) -> None:
    module, x = network
    expected = module(x)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    module.load_state_dict(state, strict=True)
    assert torch.equal(module(x), expected)


def test_gradients_reach_every_parameter(network) -> None:
    module, x = network
    module(x).square().sum().backward()
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.filterwarnings("ignore")
def test_exports_with_a_dynamic_batch(network) -> None:
    module, x = network
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
    three = torch.cat([x, x[:1]])
    torch.testing.assert_close(program.module()(three), module(three), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "network",
    ["resnet20_cifar10", pytest.param("mobilenetv2_imagenet_bn", marks=pytest.mark.repetition)],
    indirect=True,
)
def test_compiles_without_graph_breaks(network) -> None:
    module, x = network
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


def test_state_dict_keys_are_onnx_names(shared: Path) -> None:
    path = shared / "data" / "models" / "mobilenetv2_imagenet_bn.onnx"
    module = to_torch(path)
    floats = {i.name for i in onnx.load(path).graph.initializer if i.data_type == TensorProto.FLOAT}
    assert set(module.parameter_names.values()) <= floats
    assert all(key == name for key, name in module.parameter_names.items())
    assert "features.0.0.weight" in dict(module.named_parameters())
    assert "features.0.1.running_mean" in dict(module.named_buffers())


def test_code_is_readable(shared: Path) -> None:
    code = to_torch(shared / "data" / "models" / "resnet8_cifar10.onnx").code
    assert "torch.conv2d(input_1, " in code
    assert "torch.relu(" in code


def test_a_shared_weight_is_one_parameter() -> None:
    made = model(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])],
        {"w": weights(4, 4)},
    )
    module = parity.check(made)
    assert list(module.state_dict()) == ["w"]
    module(torch.randn(2, 4)).sum().backward()
    assert module.w.grad is not None


HOSTILE = [
    'a"b',
    "a'b",
    "a\nb",
    "",
    ".",
    ".a",
    "a..b",
    "a",
    "a.b",
    "forward",
    "training",
    "a\\",
    "{0}",
    "__init__",
    "é",
]


def test_hostile_names_stay_data() -> None:
    names = [n or "w" for n in HOSTILE]
    names += ["_parameters", "self.code", '"]; raise SystemExit("', "lambda", "blocks.0.global.weight"]
    nodes, last = [], "x"
    for index, name in enumerate(names):
        out = "y" if index == len(names) - 1 else f'"\n{index}'
        nodes.append(helper.make_node("Add", [last, name], [out]))
        last = out
    module = parity.check(model(nodes, {name: weights(4) for name in names}))
    assert sorted(module.parameter_names.values()) == sorted(names)
    assert set(module.parameter_names) == set(module.state_dict())
    assert len({id(p) for p in module.parameters()}) == len(names)
    module.load_state_dict(module.state_dict())
    copy.deepcopy(module)


@pytest.mark.parametrize(
    "name", ["0", "lambda", "self", "torch", "input", "x y", "\n", "é", "__class__", "forward", "1:0"]
)
def test_odd_names_of_inputs_and_outputs(name: str) -> None:
    made = model(
        [helper.make_node("Relu", [name], ["y"]), helper.make_node("Neg", ["y"], [f"{name}_"])], {}, (f"{name}_",)
    )
    made.graph.input[0].name = name
    module = parity.check(made)
    assert module.input_names == (name,)
    assert module.output_names == (f"{name}_",)
    copy.deepcopy(module)


def test_outputs_keep_order_repeats_inputs_and_initializers() -> None:
    made = model([helper.make_node("Mul", ["x", "w"], ["y"])], {"w": weights(1, 4)}, outputs=("w", "y", "x"))
    module = to_torch(made)
    x = torch.randn(2, 4)
    w, y, same = module(x)
    assert module.output_names == ("w", "y", "x")
    assert same is x
    assert torch.equal(y, x * w)


def test_capture_returns_inner_tensors_by_onnx_name() -> None:
    made = model([helper.make_node("Relu", ["x"], ["/inner/0"]), helper.make_node("Neg", ["/inner/0"], ["y"])], {})
    module = to_torch(made)
    x = torch.randn(2, 4)
    y, found = capture(module, ["/inner/0", "y"])(x)
    assert torch.equal(found["/inner/0"], x.relu())
    assert torch.equal(found["y"], y)
    with pytest.raises(UsageError, match="inner"):
        capture(module, ["inner"])


def test_everything_unsupported_is_in_one_message() -> None:
    made = model(
        [
            helper.make_node("Strange", ["x"], ["a"], name="first", domain="vendor"),
            helper.make_node("StringNormalizer", ["a"], ["b"], name="second"),
            helper.make_node("Strange", ["b"], ["y"], name="third", domain="vendor"),
        ],
        {},
        domains=("vendor",),
    )
    with pytest.raises(UnsupportedError) as caught:
        to_torch(made)
    assert caught.value.code == "operator-unsupported"
    assert "vendor.Strange at first and 1 more" in caught.value.message
    assert "StringNormalizer at second" in caught.value.message


def test_forms_that_are_not_exact_are_refused() -> None:
    made = model(
        [
            helper.make_node("Constant", [], ["text"], name="words", value_string="a"),
            helper.make_node("RNN", ["x3", "w", "r"], ["a"], name="layer", activations=["Sine"], hidden_size=2),
            helper.make_node("Relu", ["x"], ["y"]),
        ],
        {"x3": weights(3, 1, 4), "w": weights(1, 2, 4), "r": weights(1, 2, 2)},
    )
    with pytest.raises(UnsupportedError, match=r"Constant \(.*\) at words; RNN \(activations sine\) at layer"):
        to_torch(made)


def test_shape_arithmetic_is_not_tensors() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["a"]),
        helper.make_node("Flatten", ["a"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([2, -1])}
    module = parity.check(model(nodes, constants))
    assert "torch.reshape(x, [size, 2, -1])" in module.code
    assert not module.state_dict()


def test_the_callers_model_is_not_changed() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], {})
    before = made.SerializeToString()
    to_torch(made)
    assert made.SerializeToString() == before


def test_a_constant_condition_leaves_one_branch() -> None:
    text = """
    <ir_version: 9, opset_import: ["": 17]>
    g (float[n, 4] x) => (float[n, 4] y) {
        yes = Constant<value = bool {1}>()
        y = If(yes) <
            then_branch = t () => (float[n, 4] a) { two = Constant<value_float = 2.0>()  a = Mul(x, two) },
            else_branch = e () => (float[n, 4] b) { b = Relu(x) }
        >
    }
    """
    module = parity.check(onnx.parser.parse_model(text))
    assert "run_branch" not in module.code
    assert list(module.state_dict()) == ["two"]


def test_branches_at_run_time_share_the_outer_parameters() -> None:
    text = """
    <ir_version: 9, opset_import: ["": 17]>
    g (float[n, 4] x) => (float[n, 4] y) {
        zero = Constant<value_float = 0.0>()
        total = ReduceSum<keepdims = 0>(x)
        positive = Greater(total, zero)
        w = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()
        y = If(positive) <
            then_branch = t () => (float[n, 4] a) { a = Mul(x, w) },
            else_branch = e () => (float[n, 4] b) { v = Constant<value_float = 3.0>() c = Sub(x, w) b = Mul(c, v) }
        >
    }
    """
    made = onnx.parser.parse_model(text)
    module = parity.check(made, {"x": np.ones((2, 4), np.float32)})
    parity.check(made, {"x": -np.ones((2, 4), np.float32)})
    assert set(module.state_dict()) == {"zero", "w", "v"}
    other = pickle.loads(pickle.dumps(module))
    x = -torch.ones(2, 4)
    assert torch.equal(other(x), module(x))


def test_the_module_moves_with_its_constants() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["x", "zeros"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["y"]),
    ]
    module = to_torch(model(nodes, {"w": weights(4)})).to("meta")
    assert module(torch.empty(2, 4, device="meta")).device.type == "meta"


def test_training_code_may_replace_quantizers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w_codes", "s", "z"], ["w"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    codes = RANDOM.integers(-128, 128, (4, 4)).astype(np.int8)
    made = model(nodes, {"s": np.float32(0.05), "z": np.int8(0), "w_codes": codes})
    module = parity.check(made)
    assert module.quantizers == {"x": "x_quantizer", "w": "w_quantizer"}
    assert module.x_quantizer.scale is module.w_quantizer.scale
    assert module.w_quantizer.codes_name == "w_codes"
    assert module.x_quantizer.scale_names == ("s",)
    assert module.x_quantizer.zero_point_names == ("z",)
    np.testing.assert_allclose(module.w.detach().numpy(), codes * np.float32(0.05), rtol=1e-6)
    module(torch.randn(2, 4)).square().sum().backward()
    assert module.w.grad is not None
    assert module.x_quantizer.scale.grad is not None
    made_by_caller = to_torch(made, quantizer_factory=lambda quantizer, sources: nn.Identity())
    assert isinstance(made_by_caller.x_quantizer, nn.Identity)
