"""Every row of the operator table: exported, quantized, imported, trained for a step, written back, run in onnxruntime."""

import functools
import re

import numpy as np
import onnx
import pytest
import torch

import onnxqat
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers, state
from onnxqat.from_torch.export import run
from onnxqat.graph import io
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.training import methods
from onnxqat.training.optim import optimizers
from onnxqat.validation.compare import FLOAT_ROUNDING, parts
from tests.bridge import parity
from tests.from_torch import operator_table as table
from tests.repetitions import pairs
from tests.source_tree import REPOSITORY
from tests.torch_releases import since_2_7

BACKENDS = ("onnxruntime-cpu", "tsqat")
RECURRENT = [title for title, row in table.ROWS.items() if row.shape == table.SEQUENCE]
BIAS_ROUNDING = 2.0**-10
MOST_APART = 0.02
"""Share of the values of an output that may lie on another side of a rounding tie, or behind one that does."""


@functools.cache
def documented() -> list[list[str]]:
    """The cells of the documentation's table."""
    text = (REPOSITORY / "docs" / "torch_operators.md").read_text(encoding="utf-8")
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in text.splitlines() if re.match(r"\| \d", line)]


def both(module, model: onnx.ModelProto, x: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    feeds = {"x": x.numpy()}
    wanted = parity.session(model).run(None, feeds)
    found = parity.run_module(module, feeds)
    assert [f.shape for f in found] == [w.shape for w in wanted]
    return list(zip(found, wanted, strict=True))


def assert_same_codes(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for found, wanted in pairs:
        if wanted.dtype.kind != "f":
            assert np.count_nonzero(found != wanted) <= MOST_APART * wanted.size
            continue
        apart = np.abs(found.astype(np.float64) - wanted) > FLOAT_ROUNDING * np.abs(wanted).max()
        assert np.count_nonzero(apart) <= MOST_APART * wanted.size


def train_one_step(module, x: torch.Tensor) -> None:
    groups = optimizers.parameter_groups(module, learning_rate=0.05)
    optimizer = torch.optim.SGD(groups)
    guard = optimizers.ScaleGuard(module)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(o.square().mean() for o in outputs if o.is_floating_point()).backward()
    guard.before()
    optimizer.step()
    guard.after()
    moved = [name for name, p in module.named_parameters() if not torch.equal(p, before[name])]
    assert moved
    assert all(torch.isfinite(p).all() for p in module.parameters())


def module_quantizers(module):
    return [q for _, q in quantizers(module)]


def assert_float_state(module, model: onnx.ModelProto, original: onnx.ModelProto, x: torch.Tensor) -> None:
    """The file without its pairs to float rounding; the original up to the grid that int32 biases lie on."""
    with state(module, "float"):
        for found, wanted in both(module, StripQdq().run(model).model, x):
            assert parts(found, wanted) <= FLOAT_ROUNDING
        for found, wanted in both(module, original, x):
            assert parts(found, wanted) <= BIAS_ROUNDING


@pytest.mark.parametrize(("title", "backend"), pairs([*table.ROWS], BACKENDS))
def test_row(title: str, backend: str) -> None:
    row = table.ROWS[title]
    assert {*row.forms} & {n.op_type for n in table.exported(title).graph.node}
    page = next(c for c in documented() if title == f"{int(c[0]):02} {c[1].strip('`')}")
    told = (table.told_operators(title), table.treatment(title, backend))
    assert told == (page[2], page[4 + BACKENDS.index(backend)]), "run tools/torch_operators.py"
    go_round(title, table.quantized(title, backend).model)


def go_round(title: str, model: onnx.ModelProto) -> None:
    x = table.example(table.ROWS[title])
    module = to_torch(model, quantizer_factory=methods.factory("lsq"))
    assert_float_state(module, model, table.exported(title), x)
    assert_same_codes(both(module, model, x))
    train_one_step(module.train(), x)
    tuned = onnxqat.write_back(module.eval(), model)
    onnx.checker.check_model(tuned)
    assert_same_codes(both(module, tuned, x))


@pytest.mark.parametrize("title", RECURRENT)
def test_recurrent_weights_train(title: str) -> None:
    """Knight's manual gives up here: its quantization has no effect on recurrent layers."""
    result = table.quantized(title, "academic")
    model = io.load(result.model)
    layers = [n for n in model.graph if n.op_type in ("RNN", "LSTM", "GRU")]
    assert [v.producer().op_type for n in layers for v in n.inputs[1:3]] == ["DequantizeLinear"] * 2 * len(layers)
    assert all(n.inputs[0].producer().op_type != "DequantizeLinear" for n in layers)
    module = to_torch(result.model, quantizer_factory=methods.factory("lsq"))
    module(table.example(table.ROWS[title])).square().mean().backward()
    for quantizer in module_quantizers(module):
        if quantizer.role == "weight":
            assert quantizer.scale.grad.abs().sum() > 0
    go_round(title, result.model)


def test_recurrent_weights_beside_another_backend() -> None:
    """A file for any backend takes the weights of its recurrent layers from the academic table."""
    title = next(title for title in RECURRENT if "LSTM" in title)
    first = table.quantized(title, "tsqat")
    calibration = {"x": table.example(table.ROWS[title]).numpy()}
    overrides = onnxqat.placement.table_overrides.Overrides(include=("/operator/*",), weight_bits=8)
    both_ = onnxqat.insert_qdq(first.model, "academic", data=calibration, keep=True, overrides=overrides, fast=True)
    assert both_.quantizers["weight"] == first.quantizers["weight"] + 2
    go_round(title, both_.model)


class Together(torch.nn.Module):
    """Rows on one input: torch's newer exporter takes seconds a call, however small the module."""

    def __init__(self, titles: list[str]) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(4, 4, 1)
        self.rows = torch.nn.ModuleList(table.ROWS[title].make() for title in titles)

    def forward(self, x):
        x = self.stem(x)
        found = [row(x) for row in self.rows]
        return tuple(f for result in found for f in (result if isinstance(result, tuple) else (result,)))


@pytest.mark.slow
@since_2_7
def test_rows_of_the_newer_exporter() -> None:
    titles = [t for t, row in table.ROWS.items() if row.shape == table.IMAGE and "RoIPool" not in t]
    x = table.example(table.ROWS[titles[0]])
    torch.manual_seed(0)
    found = run(Together(titles), x, exporter="dynamo", input_names=["x"])
    model = io.to_proto(found.model)
    operators = {n.op_type for n in model.graph.node}
    assert [t for t in titles if not operators & {*table.ROWS[t].forms} and "BatchNorm" not in t] == []
    result = onnxqat.insert_qdq(model, "onnxruntime-cpu", data={"x": x.numpy()}, equalize=False, fast=True)
    module = to_torch(result.model, quantizer_factory=methods.factory("lsq"))
    assert_float_state(module, result.model, model, x)
    assert_same_codes(both(module, result.model, x))
    train_one_step(module.train(), x)
    assert_same_codes(both(module, onnxqat.write_back(module.eval(), result.model), x))


def test_the_page_lists_the_table() -> None:
    rows = [(str(n), f"`{row.title}`", row.kind) for n, rows in table.TABLE.items() for row in rows]
    assert [(cells[0], cells[1], cells[3]) for cells in documented()] == rows
    assert {n for n, *_ in rows} == {str(n) for n in range(1, 63)}
