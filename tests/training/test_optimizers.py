"""Parameter groups, optimizers by name, and the guard of scales."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import UsageError
from onnxqat.training.finetune import finetune
from onnxqat.training.optim import learning_rates, optimizers
from onnxqat.types import QParams, QType
from tests.training.test_finetune import data, network


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
        self.bias = torch.nn.Parameter(torch.ones(3))
        self.frozen = torch.nn.Parameter(torch.ones(3, 3), requires_grad=False)
        grid = QType.of(8, signed=True)
        first = QParams(np.float32(0.01), np.int64(0), grid)  # type: ignore[arg-type]
        second = QParams(np.full(3, 0.25, np.float32), np.zeros(3, np.int64), grid, 0)
        self.q = FakeQuantize(first, tensor="x", role="activation")
        self.w = FakeQuantize(second, tensor="w", role="weight")
        self.tied = FakeQuantize(first, tensor="y", role="activation")
        self.tied.register_parameter("scale", self.q.scale)


def test_groups() -> None:
    module = Small()
    groups = optimizers.parameter_groups(module, learning_rate=0.1, scale_learning_rate=0.01, weight_decay=0.5)
    found = {g["name"]: (len(g["params"]), g["lr"], g["weight_decay"]) for g in groups}
    assert found == {"weights": (1, 0.1, 0.5), "biases": (1, 0.1, 0.0), "scales": (2, 0.01, 0.0)}
    assert optimizers.parameter_groups(module, learning_rate=0.1)[-1]["lr"] == 0.1


def test_adam_moves_scales_relative_to_their_size() -> None:
    module = Small()
    optimizer = optimizers.make("adam", module, learning_rate=1e-3)
    rates = {g["name"]: g["lr"] for g in optimizer.param_groups}
    assert rates == {"weights": 1e-3, "biases": 1e-3, "scales of 2^-7": 1e-3 / 128, "scales of 2^-2": 1e-3 / 4}


ELEMENTWISE = [name for name in optimizers.names() if name != "muon"]  # which takes matrices only


def test_small_weights_learn_slowly_where_no_rate_is_given() -> None:
    """Those of a layer that reads pixels from 0 to 255; a rate of the user's is that of all weights."""
    module = to_torch(network(quantized=True))
    with torch.no_grad():
        module.get_parameter("w1").mul_(2.0**-8)  # a mean size of 1/4 at first
    rate = learning_rates.default("adamw", module, 8)
    assert rate == learning_rates.default("adamw", module) / 2
    rates = {g["name"]: g["lr"] for g in optimizers.make("adamw", module, batch=8).param_groups}
    assert (rates["weights"], rates["weights of 2^-10"]) == (rate, rate / 16)
    for given in ({"learning_rate": 1e-4}, {"optimizer": "sgd"}):
        names = {g["name"] for g in optimizers.make(**{"optimizer": "adamw", "module": module, **given}).param_groups}  # type: ignore[arg-type]
        assert "weights of 2^-10" not in names


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_optimizers_step(name: str) -> None:
    module = Small()
    before = [p.detach().clone() for p in module.parameters()]
    if name == "rprop":  # has no weight decay
        with pytest.raises(UsageError):
            optimizers.make(name, module, options={"weight_decay": 0.1})
    optimizer = optimizers.make(name, module, weight_decay=0.1)
    (module.q(module.weight).sum() + module.bias.sum() + module.w(module.weight).sum()).backward()
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert changed == [p.requires_grad for p in module.parameters()]


def test_options_reach_the_optimizer() -> None:
    assert set(optimizers.names()) >= {"sgd", "adam", "adamw", "radam", "nadam", "rmsprop", "adamax"}
    groups = optimizers.make("AdamW", Small(), options={"betas": (0.8, 0.9)}).param_groups
    assert {g["betas"] for g in groups} == {(0.8, 0.9)}
    assert {g["momentum"] for g in optimizers.make("sgd", Small()).param_groups} == {0.9}
    plain = optimizers.make("sgd", Small(), options={"momentum": 0.0, "nesterov": False})
    assert {g["momentum"] for g in plain.param_groups} == {0.0}


def test_an_optimizer_of_your_own() -> None:
    made = optimizers.make(lambda groups: torch.optim.SGD(groups, momentum=0.5), Small(), weight_decay=0.25)
    assert [(g["name"], g["lr"], g["weight_decay"], g["momentum"]) for g in made.param_groups] == [
        ("weights", 1e-4, 0.25, 0.5),
        ("biases", 1e-4, 0.0, 0.5),
        ("scales of 2^-7", 1e-4 / 128, 0.0, 0.5),
        ("scales of 2^-2", 1e-4 / 4, 0.0, 0.5),
    ]
    with pytest.raises(UsageError, match="exactly the parameters"):
        optimizers.make(lambda groups: torch.optim.SGD(groups[:1]), Small())
    with pytest.raises(UsageError, match="NoneType"):
        optimizers.make(lambda groups: None, Small())  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="options"):
        optimizers.make(torch.optim.SGD, Small(), options={"momentum": 0.5})


@pytest.mark.parametrize(("bits", "rate"), [(8, 1e-4), (6, 1e-4), (4, 2e-4), (3, 5e-4), (2, 1e-3)])
def test_rates_by_width(bits: int, rate: float) -> None:
    """The grid that most weights have sets the rate; one small layer of another width does not."""
    model = network(quantized=True)
    module = to_torch(model)
    by_name = {q.tensor: q for _, q in quantizers(module)}
    by_name["w1"].qtype = QType.of(bits, signed=True)
    by_name["w2"].qtype = QType.of(5, signed=True)
    assert learning_rates.bits_of_weights(module) == bits
    assert learning_rates.default("adamw", module) == rate
    assert learning_rates.default("sgd", module) == 1e-3
    assert optimizers.make("radam", module).param_groups[0]["lr"] == rate
    assert learning_rates.high("adamw", rate, module) is None
    remark = learning_rates.high("adamw", 0.05, module)
    assert (remark is None) if bits > 4 else (f"{bits} bits" in str(remark))


def test_a_high_rate_is_remarked_on() -> None:
    x, y = data(32)
    remarks = [
        finetune(network(quantized=True), {"x": x}, labels=y, optimizer="sgd", learning_rate=rate, device="cpu").remarks
        for rate in (None, 1e-3, 0.1)
    ]
    assert remarks[:2] == [(), ()]
    assert "0.1 is high for weights of 3 bits" in remarks[2][0].message


def test_rates_by_pattern() -> None:
    module = Small()
    patterns = {"w*": 0.5, "weight": 0.0, "x": 2.0, "bias": 1.0}
    groups = optimizers.parameter_groups(module, learning_rate=0.1, weight_decay=0.5, factors=patterns)
    found = {g["name"]: (len(g["params"]), pytest.approx(g["lr"]), g["weight_decay"]) for g in groups}
    assert found == {
        "weights x 0": (1, 0.0, 0.5),
        "biases": (1, 0.1, 0.0),
        "scales x 0.5": (1, 0.05, 0.0),
        "scales x 2": (1, 0.2, 0.0),
    }
    with pytest.raises(UsageError, match="conv"):
        optimizers.make("sgd", module, factors={"conv*": 0.1})
    with pytest.raises(UsageError, match="-1"):
        optimizers.make("sgd", module, factors={"w": -1.0})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgdd", {}, "sgdd"),
        ("lbfgs", {}, "several times"),
        ("muon", {}, "matrices only"),
        ("adam", {"betas": (2.0, 0.9)}, "2.0"),
        ("adam", {"momentum": 0.9}, "momentum"),
        ("adam", {"lr": 0.1}, "lr"),
    ],
)
def test_optimizers_that_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        optimizers.make(name, Small(), options=options)


def test_bad_options() -> None:
    with pytest.raises(UsageError):
        optimizers.make("sgd", Small(), learning_rate=float("nan"))
    with pytest.raises(UsageError):
        optimizers.make("sgd", Small().requires_grad_(False))


def test_the_guard_halves_or_doubles_at_most() -> None:
    module = Small()
    guard = optimizers.ScaleGuard(module)
    guard.before()
    with torch.no_grad():
        module.q.scale.fill_(-5.0)
        module.w.scale.copy_(torch.tensor([0.3, 10.0, 0.2]))
    guard.after()
    assert module.q.scale.item() == pytest.approx(0.005)
    assert module.w.scale.tolist() == pytest.approx([0.3, 0.5, 0.2])
    assert int(guard.limited) == 2
    guard.before()
    guard.after()
    assert int(guard.limited) == 2
