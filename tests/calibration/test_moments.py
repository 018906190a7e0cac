"""Layers are rounded one behind the other where grids are narrow: each sees what those in front of it leave."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.calibration import moments
from onnxqat.data.data import open_data
from onnxqat.data.inputs import of_graph
from onnxqat.insertion import rounding_choice
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Placement, QParams, QType, Remark
from tests.passes.checks import ort_run

TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 8, 6, 6] x) => (float[N, 8, 6, 6] y) {
        [c1] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        r = Relu (a)
        [c2] b = Conv <pads = [1, 1, 1, 1]> (r, w2, b2)
        [c3] c = Conv (r, w3, b3)
        s = Add (b, c)
        t = Relu (s)
        [c4] y = Conv <pads = [1, 1, 1, 1]> (t, w4, b4)
    }"""


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    for index, size in enumerate((3, 3, 1, 3), start=1):
        weight = rng.standard_normal((8, 8, size, size)) / np.sqrt(8 * size * size)
        for name, value in ((f"w{index}", weight), (f"b{index}", rng.standard_normal(8) / 10)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    return model


def samples(count: int, seed: int) -> np.ndarray:
    """Channels that go together, so that the error of one can be made up for by others."""
    rng = np.random.default_rng(seed)
    mixed = np.einsum(
        "ck,nkhw->nchw", np.random.default_rng(9).standard_normal((8, 3)), rng.standard_normal((count, 3, 6, 6))
    )
    return (mixed + 0.1 * rng.standard_normal(mixed.shape)).astype(np.float32)


def test_stages_follow_the_chains_of_layers() -> None:
    model = ir.from_proto(network())
    layers = [node for node in model.graph if node.op_type == "Conv"]
    data = open_data({"x": samples(8, 1)}, of_graph(model.graph), batch_size=8)
    found = moments.in_turn(model, layers, (), lambda copy, remarks: None, data)
    assert [[node.name for node in stage] for stage, _ in found] == [["c1"], ["c2", "c3"], ["c4"]]


def test_nothing_is_taken_from_layers_that_stand_behind_no_quantizer() -> None:
    model = ir.from_proto(network())
    layers = [node for node in model.graph if node.op_type == "Conv"]
    data = open_data({"x": samples(8, 1)}, of_graph(model.graph), batch_size=8)
    alone = [each for _, found in moments.alone(model, layers, (), data) for each in found]
    in_turn = [
        each for _, found in moments.in_turn(model, layers, (), lambda copy, remarks: None, data) for each in found
    ]
    for one, two in zip(alone, in_turn, strict=True):
        assert one.count == two.count
        np.testing.assert_allclose(one.first, two.first, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(two.taken, 0, atol=1e-3)


def test_what_the_range_of_a_layers_input_clips_is_not_made_up_for() -> None:
    """A range is cut where the network does not miss it, and a bias that makes up for it moves all other values."""
    model = ir.from_proto(network())
    first = next(node for node in model.graph if node.name == "c1")
    data = open_data({"x": samples(8, 1)}, of_graph(model.graph), batch_size=8)
    bits = QType.of(8, signed=True)
    grid = QParams(np.float32(1 / 127), np.int8(0), bits)
    placed = [Placement("x", grid, "of the test")]

    def cut(copy: ir.Model, remarks: list[Remark]) -> None:
        """Clip the input and round nothing."""
        node = next(node for node in copy.graph if node.name == "c1")
        low, high = (ir.tensor(np.float32(end / 127)) for end in (bits.quant_min, bits.quant_max))
        ends = [ir.Value(name=name, const_value=tensor) for name, tensor in (("low", low), ("high", high))]
        for end in ends:
            copy.graph.initializers[str(end.name)] = end
        clip = ir.node("Clip", [node.inputs[0], *ends])
        clip.outputs[0].name = "cut"
        copy.graph.insert_before(node, clip)
        node.replace_input_with(0, clip.outputs[0])

    assert np.abs(samples(8, 1)).max() > 1.5
    (_, (moment,)), *_ = moments.in_turn(model, [first], placed, cut, data)
    np.testing.assert_allclose(moment.taken, 0, atol=1e-3)  # float32 sums of 288 places


def test_narrow_weights_see_more_places_of_a_sample() -> None:
    """The nine inputs of a depthwise filter ask for few places, but those of a hundred samples go together."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4, 32, 32] x) => (float[N, 4, 32, 32] y) {
        [deep] y = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 1, 3, 3), np.float32), "w"))
    model = ir.from_proto(proto)
    data = open_data({"x": np.ones((8, 4, 32, 32), np.float32)}, of_graph(model.graph), batch_size=8)
    counts = {}
    for narrow in (False, True):
        ((_, (moment,)),) = moments.alone(model, list(model.graph), (), data, narrow=narrow)
        counts[narrow] = moment.count
    assert counts == {False: 8 * moments.FEWEST, True: 8 * moments.PLACES_OF_NARROW}


def test_what_layers_in_front_lose_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fresh = network(), {"x": samples(64, 2)}
    wanted = ort_run(model, fresh)["y"]
    errors = {}
    for name, turns in (("in turn", lambda *given: given[-1]), ("alone", lambda *given: None)):
        monkeypatch.setattr(rounding_choice, "_turns", turns)
        made = onnxqat.insert_qdq(
            model,
            data={"x": samples(256, 1)},
            overrides=Overrides(weight_bits=2),
            rounding="compensated",
            guard=False,
        )
        errors[name] = float(np.square(ort_run(made.model, fresh)["y"] - wanted).mean())
    assert errors["in turn"] < 0.9 * errors["alone"]


@pytest.mark.parametrize(("bits", "in_turn"), [(8, False), (6, True), (4, True), (3, False), (2, False)])
def test_which_widths_are_rounded_in_turn(bits: int, in_turn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(rounding_choice, "compensate", lambda *given: seen.append(given[4]) or ((), {}))
    onnxqat.insert_qdq(
        network(),
        data={"x": samples(64, 1)},
        overrides=Overrides(weight_bits=bits),
        rounding="compensated",
        guard=False,
    )
    assert any(insert is not None for insert in seen) == in_turn


def test_large_filters_are_split_and_layers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(network())
    layers = [node for node in model.graph if node.op_type == "Conv"]
    data = open_data({"x": samples(8, 1)}, of_graph(model.graph), batch_size=8)
    [(_, whole)] = moments.alone(model, layers, (), data)
    monkeypatch.setattr(moments, "ELEMENTS", 2000)  # 72 x 72 inputs are more, 8 x 8 are not
    found = list(moments.alone(model, layers, (), data))
    assert [[node.name for node in stage] for stage, _ in found] == [["c1"], ["c2", "c3"], ["c4"]]
    for one, other in zip(whole, [moment for _, stage in found for moment in stage], strict=True):
        assert other.second is not None
        assert other.second.size <= 2000
        np.testing.assert_array_equal(one.first, other.first)
        length = other.second.shape[-1]
        for part in range(other.parts):
            corner = slice(part * length, (part + 1) * length)
            expected, _ = one.averages(0, centred=True)
            np.testing.assert_allclose(
                other.averages(part, centred=True)[0], expected[corner, corner], rtol=1e-5, atol=1e-6
            )  # float32 products


def test_split_filters_have_less_error_than_nearest_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "ELEMENTS", 2000)
    model, fresh, errors = network(), {"x": samples(64, 2)}, {}
    for name in ("gptq", "nearest"):
        options = {"data": {"x": samples(128, 1)}, "overrides": Overrides(weight_bits=3), "guard": False}
        made = onnxqat.insert_qdq(model, rounding=name, **options)
        errors[name] = float(np.square(ort_run(made.model, fresh)["y"] - ort_run(model, fresh)["y"]).mean())
    assert errors["gptq"] < 0.8 * errors["nearest"]
