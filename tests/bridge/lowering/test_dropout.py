"""Dropout follows ``.train()`` and ``.eval()``."""

import copy
import pickle

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node

X = np.arange(1, 2001, dtype=np.float32).reshape(40, 50)
PLAIN, BOTH = {"y": TensorProto.FLOAT}, {"y": TensorProto.FLOAT, "mask": TensorProto.BOOL}


def module(ratio=0.25, mode=None, outputs=PLAIN, constants=("ratio", "mode"), opset=13, **options):
    inputs = {"x": X}
    if opset >= 12:
        inputs |= {"ratio": None if ratio is None else np.array(ratio, np.float32)}
        inputs |= {"mode": None if mode is None else np.array(mode)}
    else:
        options["ratio"] = ratio
    made = one_node.make("Dropout", inputs, outputs=outputs, constants=constants, opset=opset, rank=2, **options)
    return to_torch(made), lowering_checks.tensors(made, inputs)


def share_kept(y, scale):
    """The share of elements that are kept; the others are 0 and the kept ones scaled."""
    kept = y != 0
    torch.testing.assert_close(y[kept], torch.from_numpy(X)[kept] * scale)
    return float(kept.float().mean())


def test_the_imported_module_computes_the_file_and_drops_after_train() -> None:
    net, given = module()
    assert not net.training
    assert net(*given).equal(given[0])
    net.train()
    torch.manual_seed(0)
    assert abs(share_kept(net(*given), 1 / 0.75) - 0.75) < 0.05
    assert net.eval()(*given).equal(given[0])


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_every_version_drops_in_training_and_has_its_mask(opset) -> None:
    kind = TensorProto.FLOAT if opset < 10 else TensorProto.BOOL
    net, given = module(opset=opset, outputs={"y": TensorProto.FLOAT, "mask": kind})
    y, mask = net(*given)
    assert y.equal(given[0])
    assert mask.all()
    assert mask.dtype is (torch.float32 if opset < 10 else torch.bool)
    torch.manual_seed(0)
    y, mask = net.train()(*given)
    assert abs(share_kept(y, 1 / 0.75) - 0.75) < 0.05
    assert mask.bool().equal(y != 0)


def test_a_constant_training_mode_holds_in_both_states() -> None:
    net, given = module(mode=False)
    assert net.train()(*given).equal(given[0])
    net, given = module(mode=True)
    torch.manual_seed(0)
    for state in (True, False):
        assert abs(share_kept(net.train(state)(*given), 1 / 0.75) - 0.75) < 0.05


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_training_mode_that_is_an_input_holds_in_training(told, training) -> None:
    net, given = module(mode=told, outputs=BOTH, constants=())
    torch.manual_seed(0)
    y, mask = net.train(training)(*given)
    assert mask.equal(y != 0)
    if told and training:
        assert abs(share_kept(y, 1 / 0.75) - 0.75) < 0.05
    else:
        assert y.equal(given[0])


def test_a_ratio_of_zero_changes_nothing() -> None:
    for mode, constants in ((True, ("ratio", "mode")), (True, ())):
        net, given = module(0.0, mode, BOTH, constants)
        y, mask = net.train()(*given)
        assert y.equal(given[0])
        assert mask.all()


def test_the_ratio_is_a_half_where_none_is_given() -> None:
    net, given = module(ratio=None)
    torch.manual_seed(0)
    assert abs(share_kept(net.train()(*given), 2.0) - 0.5) < 0.05


def test_the_gradient_passes_where_elements_are_kept() -> None:
    for outputs in (PLAIN, BOTH):
        net, given = module(outputs=outputs)
        x = given[0].requires_grad_()
        y = lowering_checks.results(net.train(), (x,))[0]
        y.sum().backward()
        torch.testing.assert_close(x.grad, (y != 0) / 0.75)


def test_the_submodule_is_named_after_its_output_and_survives_copies() -> None:
    net, given = module()
    assert isinstance(net.get_submodule("y_dropout"), torch.nn.Dropout)
    assert "self.y_dropout(x)" in net.code
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert made(*given).equal(given[0])
        assert not made.train()(*given).equal(given[0])


def test_dropout_exports_as_nothing() -> None:
    inputs = {"x": X}
    lowering_checks.exports("Dropout", inputs, {"x": (0,)}, {"x": X[:3]}, opset=13)
