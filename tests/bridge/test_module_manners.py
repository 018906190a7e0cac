"""An imported module behaves like one that a person wrote."""

import copy
import io
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnxqat.bridge.importing.importer import OnnxModule, to_torch
from onnxqat.errors import UsageError
from tests.bridge import parity

MIXED = """<ir_version: 9, opset_import: ["": 17]> g (float[n, s, 8] x, int64[n, s] ids) => (float[n, s, 8] y) {
    e = Gather(table, ids)  a = Add(x, e)
    k = Cast<to = 1>(ids)  axis = Constant<value_ints = [-1]>()  u = Unsqueeze(k, axis)  b = Mul(a, u)
    h = LayerNormalization(b, gain, shift)
    m = MatMul(h, w)  l = Add(m, bias)  g = Sigmoid(l)
    t = Transpose<perm = [0, 2, 1]>(table3)  o = MatMul(g, t)
    d = Dropout(o)
    shape = Shape(x)  z = ConstantOfShape(shape)  y = Add(d, z)
}"""


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def parsed(text: str, initializers: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in initializers.items())
    return model


@pytest.fixture
def mixed() -> tuple[OnnxModule, tuple[torch.Tensor, torch.Tensor]]:
    """Embedding, integers cast to floats, normalization, dropout, constants made from shapes."""
    model = parsed(
        MIXED,
        {
            "table": weights(5, 8),
            "gain": weights(8),
            "shift": weights(8, seed=1),
            "w": weights(8, 6),
            "bias": weights(6),
            "table3": weights(1, 8, 6),
        },
    )
    ids = np.array([[0, 1, 4], [2, 2, 3]])
    module = parity.check(model, {"x": weights(2, 3, 8), "ids": ids})
    return module, (torch.from_numpy(weights(2, 3, 8)), torch.from_numpy(ids))


def test_every_parameter_is_there_once_under_its_name(mixed) -> None:
    module, _ = mixed
    assert sorted(module.state_dict()) == ["bias", "gain", "shift", "table", "table3", "w"]
    assert len(list(module.parameters())) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_casts_and_constants_follow_the_parameters(mixed, dtype: torch.dtype) -> None:
    module, (x, ids) = mixed
    wanted = module(x, ids)
    moved = copy.deepcopy(module).to(dtype)
    found = moved(x.to(dtype), ids)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.2)
    # Rounding of the weights stays, the arithmetic is float32 again.
    back = moved.float()(x, ids)
    assert back.dtype is torch.float32


def test_copies_of_a_half_module_are_half(mixed) -> None:
    module, (x, ids) = mixed
    half = module.half()
    for other in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        assert torch.equal(other(x.half(), ids), half(x.half(), ids))


def test_state_dict_is_strict_both_ways(mixed) -> None:
    module, (x, ids) = mixed
    wanted, buffer = module(x, ids), io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(torch.load(buffer), strict=True)
    assert torch.equal(other(x, ids), wanted)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({}, strict=True)


def test_dropout_follows_train_and_eval(mixed) -> None:
    module, (x, ids) = mixed
    wanted = module(x, ids)
    assert torch.equal(module.eval()(x, ids), wanted)
    torch.manual_seed(0)
    assert not torch.equal(module.train()(x, ids), wanted)
    assert torch.equal(module.eval()(x, ids), wanted)


def test_batch_normalization_follows_train_and_eval() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[n, 3, 4] x) => (float[n, 3, 4] y)
    { y = BatchNormalization<momentum = 0.8>(x, scale, shift, mean, var) }"""
    initializers = {
        "scale": weights(3),
        "shift": weights(3, seed=1),
        "mean": weights(3, seed=2),
        "var": weights(3) ** 2,
    }
    module = parity.check(parsed(text, initializers))
    reference = torch.nn.BatchNorm1d(3, momentum=0.2)
    names = {"weight": "scale", "bias": "shift", "running_mean": "mean", "running_var": "var"}
    reference.load_state_dict(
        {key: torch.from_numpy(initializers[name]) for key, name in names.items()}
        | {"num_batches_tracked": torch.tensor(0)}
    )
    x = torch.from_numpy(weights(5, 3, 4, seed=3))
    for mode in (False, True, True, False):
        torch.testing.assert_close(module.train(mode)(x), reference.train(mode)(x))
    for key, name in names.items():
        torch.testing.assert_close(module.state_dict()[name], reference.state_dict()[key])


def test_code_reads_as_written_by_hand(mixed) -> None:
    code = mixed[0].code
    assert code.startswith("def forward(self, x, ids):\n")
    assert "= None" not in code
    assert "onnxqat" not in code
    assert "torch._C" not in code
    assert "l = torch.nn.functional.linear(h, " in code
    assert "g = torch.sigmoid(l)" in code


def test_code_keeps_the_names_of_helpers_short(shared: Path) -> None:
    code = to_torch(shared / "data" / "models" / "swift_f0.onnx").code
    assert "onnxqat" not in code


class Watched(TorchDispatchMode):
    """Counts what reads a number back from a tensor, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if "_local_scalar_dense" in name or "nonzero" in name:
            self.found[name] += 1
        copies = "_to_copy" in name or "copy_" in name
        if copies and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor):
            self.found["between devices"] += result.device != args[0].device
        return result


NETWORKS = {
    "ppocr_v2_cls": (1, 3, 48, 192),
    "resnet20_cifar10_dynamo": (2, 3, 32, 32),
    "yolox_nano_coco_416": (1, 3, 416, 416),
    "mtcnn_pnet": (1, 3, 24, 24),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_reads_nothing_back_and_stays_on_its_device(name: str, shared: Path) -> None:
    module = to_torch(shared / "data" / "models" / f"{name}.onnx").to("meta")
    watched = Watched()
    with watched:
        module(torch.empty(NETWORKS[name], device="meta"))
    assert +watched.found == Counter()


def test_the_watch_notices_what_it_looks_for() -> None:
    watched = Watched()
    with watched:
        torch.ones(1).item()
        torch.ones(1).to("meta")
    assert len(+watched.found) == 2


def test_hooks_by_tensor_name(mixed) -> None:
    module, (x, ids) = mixed
    wanted, seen = module(x, ids), []
    handle = module.register_tensor_hook("l", lambda tensor: seen.append(tensor))
    doubled = module.register_tensor_hook("x", lambda tensor: tensor * 2)
    changed = module(x, ids)
    assert seen[0].shape == (2, 3, 6)
    assert not torch.equal(changed, wanted)
    doubled.remove()
    assert torch.equal(module(x, ids), wanted)
    handle.remove()
    assert torch.equal(copy.deepcopy(module)(x, ids), wanted)
    assert len(seen) == 2
    assert sorted(module.state_dict()) == ["bias", "gain", "shift", "table", "table3", "w"]
    with pytest.raises(UsageError, match="nothing"):
        module.register_tensor_hook("nothing", lambda tensor: None)


def test_two_hooks_on_one_tensor_run_in_order(mixed) -> None:
    module, (x, ids) = mixed
    order = []
    module.register_tensor_hook("y", lambda tensor: order.append(1))
    module.register_tensor_hook("y", lambda tensor: order.append(2) or torch.zeros_like(tensor))
    assert not module(x, ids).any()
    assert order == [1, 2]


def test_capture_is_a_method(mixed) -> None:
    module, (x, ids) = mixed
    result, found = module.capture(["h", "y"])(x, ids)
    assert torch.equal(found["y"], result)
    assert found["h"].shape == (2, 3, 8)


@pytest.mark.filterwarnings("ignore")
def test_batch_and_sequence_are_dynamic_in_an_export_and_a_compiled_module(mixed) -> None:
    module, (x, ids) = mixed
    free = {0: torch.export.Dim("n"), 1: torch.export.Dim("s")}
    program = torch.export.export(module, (x, ids), dynamic_shapes=(free, free), strict=False)
    other = torch.randn(4, 7, 8), torch.randint(0, 5, (4, 7))
    torch.testing.assert_close(program.module()(*other), module(*other))
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for inputs in ((x, ids), other):
        torch.testing.assert_close(compiled(*inputs), module(*inputs))
