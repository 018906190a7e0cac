"""DeformConv."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)


def inputs(groups=1, offset_groups=1, kernel=(3, 2), bias=True, mask=True, batch=2, **form):
    strides, dilations, pads = form["strides"], form["dilations"], form["pads"]
    rank, size = len(kernel), [7, 8, 5]
    out = [
        (size[a] + pads[a] + pads[a + rank] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1 for a in range(rank)
    ]
    taps = int(np.prod(kernel)) * offset_groups

    def normal(*shape):
        return RANDOM.standard_normal(shape).astype(np.float32)

    return {
        "x": normal(batch, 4, *size[:rank]),
        "weight": normal(6, 4 // groups, *kernel),
        "offset": normal(batch, taps * rank, *out) * 2,
        "bias": normal(6) if bias else None,
        "mask": normal(batch, taps, *out) if mask else None,
    }


FORMS = {
    "plain": {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]},
    "all": {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 2, 1]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("groups", "offset_groups"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize(("bias", "mask"), [(True, True), (False, False), (True, False)])
def test_deform_conv_equals_onnxruntime(form, groups, offset_groups, bias, mask) -> None:
    options = FORMS[form]
    given = inputs(groups, offset_groups, bias=bias, mask=mask, **options)
    model = one_node.make("DeformConv", given, opset=19, group=groups, offset_group=offset_groups, **options)
    parity.check(model, one_node.feeds(model, given))


@pytest.mark.parametrize("kernel", [(3,), (2, 3, 2)], ids=str)
def test_without_offsets_it_is_a_convolution_in_any_number_of_dimensions(kernel) -> None:
    rank = len(kernel)
    form = {"strides": [2, 1, 1][:rank], "dilations": [1, 2, 1][:rank], "pads": [1] * 2 * rank}
    given = inputs(groups=2, kernel=kernel, mask=False, **form)
    given["offset"][:] = 0
    deformable = one_node.make("DeformConv", given, opset=19, group=2, **form)
    plain = {name: given[name] for name in ("x", "weight", "bias")}
    wanted = parity.run_module(to_torch(one_node.make("Conv", plain, group=2, **form)), plain)[0]
    found = parity.run_module(to_torch(deformable), one_node.feeds(deformable, given))[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_deform_conv_has_all_gradients() -> None:
    form = FORMS["plain"]
    given = {n: a.astype(np.float64) for n, a in inputs(kernel=(2, 2), batch=1, **form).items()}
    given = {n: a[..., :3, :3] if n in ("offset", "mask") else a for n, a in given.items()} | {
        "x": given["x"][..., :4, :4]
    }
    model = one_node.make("DeformConv", given, outputs={"y": TensorProto.DOUBLE}, opset=19, **form)
    leaves = [t.requires_grad_() for t in lowering_checks.tensors(model, given)]
    assert torch.autograd.gradcheck(to_torch(model), leaves, atol=1e-4)


def test_deform_conv_exports() -> None:
    form = FORMS["all"]
    given, other = inputs(**form, batch=3), inputs(**form, batch=2)
    other |= {name: given[name] for name in ("weight", "bias")}
    axes = dict.fromkeys(("x", "offset", "mask"), (0,))
    lowering_checks.exports("DeformConv", given, axes, other, opset=19, constants=("weight", "bias"), **form)
