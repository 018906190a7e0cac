"""Activations computed again: the same outputs and gradients, bit for bit, from less memory."""

import weakref
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UsageError
from onnxqat.training import methods
from onnxqat.training.execution.execution import Execution
from onnxqat.training.execution.recompute import Recomputed, cut
from tests.repetitions import pairs
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images


def gradients(module: nn.Module, called: nn.Module, *inputs: Tensor) -> list[Tensor]:
    module.zero_grad()
    torch.manual_seed(0)
    output = called(*inputs)
    first = output if isinstance(output, Tensor) else output[0]
    (first.square().sum() + first.sum()).backward()
    return [first.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize(("segments", "method"), pairs([None, 1, 3, 1000], ["lsq", "qdrop", "ema"]))
def test_gradients_have_the_same_bits(segments: int | None, method: str) -> None:
    """Also where quantizers draw random numbers, or follow the data that they see."""
    x = torch.from_numpy(images(4)[0])
    found = []
    for recomputed in (False, True):
        module = to_torch(convolutional(3), quantizer_factory=methods.factory(method, limit_steps=False)).train()
        called = Recomputed(module, segments) if recomputed else module
        found.append([*gradients(module, called, x), *module.state_dict().values()])
    assert len(found[0]) > 20
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Living(TorchDispatchMode):
    """Bytes of the tensors made within that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self._sizes:
                    self._sizes[key] = storage.nbytes()
                    weakref.finalize(storage, self._sizes.pop, key, None)
        return result

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())


def test_memory_falls() -> None:
    module = to_torch(convolutional(12))
    x = torch.from_numpy(images(16)[0])
    held = []
    for called in (module, Recomputed(module)):
        with Living() as living:
            output = called(x)
            held.append(living.bytes)
        del output
    assert held[1] < 0.5 * held[0]


def batch_normalized() -> onnx.ModelProto:
    """Sum and difference of the input after a BatchNormalization, with the batch's size computed on the way."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "gamma", "beta", "mean", "var"], ["b"]),
        helper.make_node("Shape", ["b"], ["shape"]),
        helper.make_node("Sigmoid", ["b"], ["c"]),
        helper.make_node("Mul", ["c", "b"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["e"]),
        helper.make_node("Add", ["e", "a"], ["y"]),
    ]
    values = {"gamma": 1.5, "beta": 0.1, "mean": 0.2, "var": 0.7}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 3, 4))],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, shape in {"y": ("N", 3, 4), "beta": (3,), "a": ("N", 3, 4)}.items()
        ],
        [numpy_helper.from_array(torch.full((3,), v).numpy(), k) for k, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_count_a_batch_once(training: bool) -> None:
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for segments in (None, 5):
        module = to_torch(batch_normalized()).train(training)
        called = module if segments is None else Recomputed(module, segments)
        found.append([*gradients(module, called, x), *module.buffers(), *called(x)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_cuts_are_where_few_values_cross() -> None:
    graph = to_torch(convolutional(6)).graph
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    parts = cut(nodes, 4)
    assert [n for part in parts for n in part] == nodes
    assert len(parts) == 4
    for index in range(1, len(parts)):
        before = {n for part in parts[:index] for n in part}
        assert sum(any(user not in before for user in n.users) for n in before) <= 2


def test_a_run_that_recomputes_writes_the_same_file() -> None:
    x, y = images(32)
    options: dict[str, Any] = {"labels": y, "epochs": 2, "batch_size": 16, "device": "cpu"}
    plain = finetune(convolutional(), x, **options)
    again = finetune(convolutional(), x, execution=Execution(recompute=True), **options)
    assert again.model.SerializeToString() == plain.model.SerializeToString()
    with pytest.raises(UsageError, match="graph"):
        Execution(recompute=3).segmented(nn.Linear(2, 2))


# Dynamo instantiates the class itself when it traces an autograd function.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_compiled_and_recomputed() -> None:
    torch.compiler.reset()
    module = to_torch(convolutional(3))
    x = torch.from_numpy(images(4)[0])
    execution = Execution(recompute=3, compile="aot_eager")
    called = execution.compiled(execution.segmented(module))
    assert all(
        torch.equal(a, b) for a, b in zip(gradients(module, module, x), gradients(module, called, x), strict=True)
    )
    with pytest.raises(UsageError, match="do not go together"):
        execution.segmented(to_torch(batch_normalized()))
