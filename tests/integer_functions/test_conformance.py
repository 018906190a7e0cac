"""Every integer function gives the same codes in numpy, torch and onnxruntime, and keeps its bound."""

import dataclasses

import numpy as np
import pytest

from onnxqat.errors import UsageError
from onnxqat.integer_functions import library
from onnxqat.integer_functions.functions import softmax, weighted_sum
from tests.integer_functions import cases
from tools import integer_operators

OPERATORS = tuple(library.kinds())
PAIRS = [(operator, *types) for operator in OPERATORS for types in cases.TYPES]


@pytest.mark.parametrize(("operator", "x", "y"), PAIRS)
def test_same_bits_and_within_the_bound(operator: str, x: str, y: str) -> None:
    case = cases.case(operator, x, y)
    expected = case.in_numpy()
    np.testing.assert_array_equal(case.in_torch(), expected)
    np.testing.assert_array_equal(case.in_onnxruntime(21), expected)
    errors = case.errors
    assert errors.size > 100
    assert errors.max() <= case.function.error_bound(case.x, case.y, case.call)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("opset", [13, 18, 25])
def test_of_every_opset(operator: str, opset: int) -> None:
    case = cases.case(operator, "uint8", "int8", rows=8)
    np.testing.assert_array_equal(case.in_onnxruntime(opset), case.in_numpy())


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_body_has_no_float(operator: str) -> None:
    body = cases.case(operator, "int8", "int8", rows=8).model(18)
    kinds = {entry.type.tensor_type.elem_type for entry in body.graph.input}
    for node in body.functions[0].node:
        for attribute in node.attribute:
            kinds.add(attribute.t.data_type if attribute.name == "value" else 0)
            kinds.add(attribute.i if attribute.name == "to" else 0)
    floats = {1, 10, 11, 16}
    assert not kinds & floats


@pytest.mark.parametrize("operator", OPERATORS)
def test_stages_hold_what_is_reached(operator: str) -> None:
    """The widths are proofs, so no code may lead out of them; onnxruntime would wrap around there."""
    for stage in cases.case(operator, "uint8", "uint8", rows=8).function.stages():
        assert stage.low <= stage.high
        assert stage.bits <= 64


@pytest.mark.parametrize(("storage", "limit"), [("uint8", 1e-3), ("uint16", 1e-5)])
def test_softmax_of_ten_thousand_rows(storage: str, limit: float) -> None:
    """The mean error of softmax over random rows, against the float operator of the dequantized codes."""
    case = cases.case("Softmax", storage, storage, rows=10_000)
    assert case.errors.mean() <= limit


def test_softmax_of_one_large_code_among_many() -> None:
    """Rows where all but one lie so far away that their shift is the longest."""
    function = softmax.Function("int8", "uint8")
    x, y = cases.grid(-100, 100, "int8"), cases.grid(0, 1, "uint8")
    codes = np.full((1, 1000), -128)
    codes[0, 17] = 127
    constants = function.constants(x, y, cases.Call(length=1000))
    result = function.compute(codes, constants)
    assert result[0, 17] == 255
    assert result.sum() == 255


@pytest.mark.parametrize("storage", ["int8", "int16"])
def test_reciprocals_of_both_signs(storage: str) -> None:
    function = library.kinds()["Reciprocal"](storage, storage)
    x, y = cases.grid(-4, 4, storage), cases.grid(-8, 8, storage)
    codes = np.arange(x.low, x.high + 1)
    call = cases.Call()
    found = y.values(function.compute(codes, function.constants(x, y, call)))
    steps = codes - x.zero_point
    assert (np.sign(found[np.abs(steps) > 0]) == np.sign(steps[np.abs(steps) > 0])).mean() > 0.99
    assert found[steps == 0] == y.values(np.array(y.high))
    inside = np.abs(x.values(codes)) > 1 / 7.9
    errors = np.abs(found - 1 / np.where(inside, x.values(codes), 1.0))[inside]
    assert errors.max() <= function.error_bound(x, y, call)


def test_a_row_that_is_too_long_is_refused() -> None:
    function = softmax.Function("int8", "uint8")
    with pytest.raises(ValueError, match="a row has 65537 elements"):
        function.constants(
            cases.grid(-8, 8, "int8"), cases.grid(0, 1, "uint8"), cases.Call(length=softmax.LONGEST_ROW + 1)
        )


@pytest.mark.parametrize("storage", ["int8", "uint16"])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 1), (1, 0), (1, 1)])
def test_running_sums_of_every_kind(storage: str, exclusive: int, reverse: int) -> None:
    plain = cases.case("CumSum", storage, storage, rows=8)
    call = dataclasses.replace(plain.call, attributes={"exclusive": exclusive, "reverse": reverse})
    case = dataclasses.replace(plain, call=call)
    np.testing.assert_array_equal(case.in_torch(), case.in_numpy())
    np.testing.assert_array_equal(case.in_onnxruntime(17), case.in_numpy())
    assert case.errors.max() <= case.function.error_bound(case.x, case.y, call)
    assert not np.array_equal(case.in_numpy(), plain.in_numpy())


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceMean", "ReduceSum"])
def test_reductions_that_drop_their_axes(operator: str) -> None:
    case = cases.case(operator, "uint8", "int8", rows=8, keepdims=0)
    assert case.in_numpy().ndim == 1
    np.testing.assert_array_equal(case.in_onnxruntime(21), case.in_numpy())


@pytest.mark.parametrize("operator", ["MaxWithConstant", "MinWithConstant"])
def test_limits_outside_of_the_grid_and_without_end(operator: str) -> None:
    function = library.variadic(library.kinds()[operator], "uint8", "uint8", 1)
    grid = cases.grid(-1, 1, "uint8")
    codes = np.arange(256)
    limits = np.array([[-np.inf], [-7.0], [grid.scale * 3], [7.0], [np.inf]])
    constants = function.constants(grid, grid, cases.Call(parameters={"limit": limits}))
    found = function.compute((codes,), constants)
    chosen = np.maximum if operator.startswith("Max") else np.minimum
    np.testing.assert_array_equal(found, chosen(codes, np.array([[0], [0], [grid.zero_point + 3], [255], [255]])))
    with pytest.raises(ValueError, match="its constant is not a number"):
        function.constants(grid, grid, cases.Call(parameters={"limit": np.array(np.nan)}))


def test_names() -> None:
    assert library.chosen("all") == OPERATORS
    assert library.chosen("soft-max, Exp") == ("Softmax", "Exp", "MaskedSoftmax")
    with pytest.raises(UsageError, match="there is no integer function named 'softmacs'"):
        library.chosen("softmacs")
    found = library.named("Softmax_int8_uint8")
    assert isinstance(found, softmax.Function)
    assert (found.x, found.y) == ("int8", "uint8")
    assert library.named("Softmax_float_uint8") is None
    assert library.named("Nothing_int8_int8") is None
    named = library.named("ReduceL2_int8_int8")
    assert named is not None
    assert named.operator == "ReduceL2"


def test_the_page_of_bounds_is_current() -> None:
    assert integer_operators.PAGE.read_text(encoding="utf-8") == integer_operators.page(), (
        "run tools/integer_operators.py"
    )


@pytest.mark.parametrize("storage", ["int8", "uint16"])
def test_quotients_of_zero_and_of_both_signs(storage: str) -> None:
    function = library.kinds()["Div"](storage, storage)
    x, y = cases.grid(-4, 4, storage), cases.grid(-8, 8, storage)
    steps = np.array([-100, -7, 0, 7, 100])
    dividend, divisor = (part.reshape(-1) + x.zero_point for part in np.meshgrid(steps, steps))
    constants = function.constants_of([x, x], y, cases.Call())
    found = function.compute((dividend, divisor), constants) - y.zero_point
    wanted = np.sign(dividend - x.zero_point) * np.sign(divisor - x.zero_point)
    zero = divisor == x.zero_point
    np.testing.assert_array_equal(np.sign(found)[~zero], wanted[~zero])
    ends = {-1: y.low, 0: y.zero_point, 1: y.high}
    expected = [ends[int(sign)] for sign in np.sign(dividend - x.zero_point)[zero]]
    np.testing.assert_array_equal(found[zero] + y.zero_point, expected)


def test_names_of_functions_of_several_operands() -> None:
    found = library.named("WeightedSum12_uint8_int8")
    assert found is not None
    assert (found.operands, found.name) == (12, "WeightedSum12_uint8_int8")
    assert list(found.operand_names[:2]) == ["x", "x_2"]
    for unknown in (
        "WeightedSum_uint8_int8",
        "WeightedSum0_uint8_int8",
        "WeightedSum00_uint8_int8",
        "Div2_uint8_uint8",
        "Softmax3_uint8_uint8",
    ):
        assert library.named(unknown) is None


def test_sums_of_many_operands_stay_in_int32() -> None:
    for count in (1, 2, 7, 64):
        stages = library.variadic(library.kinds()["WeightedSum"], "uint8", "int8", count).stages()
        assert max(stage.bits for stage in stages) <= 32


@pytest.mark.parametrize(
    ("storage", "operands"), [("int8", 1), ("uint8", 1), ("int8", 3), ("uint8", 7), ("int16", 1), ("uint16", 5)]
)
def test_weights_that_are_read_back_give_the_same_multipliers(storage: str, operands: int) -> None:
    """Around the largest multiplier, where a weight next to it could take the next shift; float32 holds what is read."""
    function = library.variadic(library.kinds()["WeightedSum"], storage, storage, operands)
    assert isinstance(function, weighted_sum.Function)
    grid = cases.CodeGrid(0.1, 0, storage)
    end = function.bounds()["weight_1"][1]
    shift = end.bit_length() - 1
    for step in range(-12, 13):
        weight = (end + step / 4 * 2.0 ** max(shift - 21, 0)) / 2.0**shift
        given = {name: np.asarray(weight) for name in function.weights[:-1]}
        others = (grid,) * (operands - 1)
        made = [function.constants(grid, grid, cases.Call(parameters=given, others=others))]
        for _ in range(3):
            read = function.parameters(made[-1], [grid] * operands, grid)
            held = {name: np.asarray(np.float32(value), np.float64) for name, value in read.items()}
            made.append(function.constants(grid, grid, cases.Call(parameters=held, others=others)))
        assert all(one == made[0] for one in made)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("HardSigmoid", {"alpha": 1.6, "beta": 0.24}),
        ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
        ("Elu", {"alpha": 1.0}),
        ("Elu", {"alpha": 2.4}),
        ("Elu", {"alpha": 0.0}),
        ("Celu", {"alpha": 2.0}),
        ("Celu", {"alpha": 0.5}),
        ("Celu", {"alpha": -4.0}),
        ("Selu", {}),
        ("Selu", {"alpha": 0.5, "gamma": 2.0}),
    ],
)
def test_bounds_follow_attributes(operator: str, attributes: dict[str, float]) -> None:
    function = library.kinds()[operator]("int16", "int16")
    x, y = cases.grid(-17, 21, "int16"), cases.grid(-3, 3, "int16")
    call = cases.Call(attributes=attributes)
    codes = np.arange(x.low, x.high + 1)
    found = y.values(function.compute(codes, function.constants(x, y, call)))
    wanted = function.reference(x.values(codes), call)
    inside = np.abs(wanted) < 3
    error, bound = np.abs(found - wanted)[inside].max(), function.error_bound(x, y, call)
    assert bound / 50 < error <= bound


def test_exponentials_of_codes_far_beyond_the_result_are_refused() -> None:
    """All are counted from the largest: those that the result holds would be zero."""
    function = library.kinds()["Exp"]("uint8", "uint8")
    y = cases.grid(0, 8, "uint8")
    for scale in (0.1, 20.0):  # exp(25.5) is 2**33 times the range of the result, and exp(5100) beyond float64
        x = cases.CodeGrid(scale, 0, "uint8")
        with pytest.raises(ValueError, match="far beyond the range of the result"):
            function.constants(x, y, cases.Call())
        assert np.isfinite(function.error_bound(x, y, cases.Call()))


def test_an_epsilon_beyond_the_range_of_the_input_is_refused() -> None:
    """It was cut to what the sum of squares holds, and the result was many steps off."""
    function = library.kinds()["LayerNormalization"]("uint8", "uint8")
    x, y = cases.CodeGrid(3e-4, 128, "uint8"), cases.grid(-1, 1, "uint8")
    with pytest.raises(ValueError, match="its epsilon is larger"):
        function.constants(x, y, cases.Call(length=64, attributes={"epsilon": 0.02}))


@pytest.mark.parametrize("operator", ["Tanh", "Sin"])
def test_curves_that_cross_the_result_in_a_part_of_a_segment_are_refused(operator: str) -> None:
    """Their lines would have ends beyond what a table holds, and other slopes."""
    function = library.kinds()[operator]("int16", "int16")
    x, y = cases.grid(-134, 134, "int16"), cases.grid(-0.01, 0.01, "int16")
    with pytest.raises(ValueError, match="too steep"):
        function.constants(x, y, cases.Call())


@pytest.mark.parametrize("operator", ["Exp", "LogSoftmax", "Softmax"])
def test_steps_that_are_too_large_for_exponentials_of_16_bits_are_refused(operator: str) -> None:
    """Their factor was cut, so that two neighbouring codes were nearer to each other than they are."""
    x, call = cases.CodeGrid(17.0, 127, "int8"), cases.Call(length=7)
    wide, narrow = (library.kinds()[operator]("int8", storage) for storage in ("uint16", "uint8"))
    with pytest.raises(ValueError, match="too large for its exponentials"):
        wide.constants(x, cases.grid(0, 1, "uint16"), call)
    assert narrow.constants(x, cases.grid(0, 1, "uint8"), call)
