"""If, Loop and Scan against onnxruntime, and what torch.export and torch.compile make of them."""

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import parity

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parse(body: str, inputs: str = "float[3, 4] x", outputs: str = "float[a, b] y", opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


BRANCHES = """
    w = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()
    y = If(c) <then_branch = t () => (float[a, b] p) { p = Mul(x, w) },
               else_branch = e () => (float[a, b] q) { n = Neg(x) q = Add(n, w) }>
"""
# Doubles x until its largest value is above 10, at most n times; collects every x.
DOUBLING = """
    two = Constant<value_float = 2.0>()  ten = Constant<value_float = 10.0>()
    y, all = Loop({limit}, go, x) <body = b (int64 i, bool g, float[3, 4] s) => (bool h, float[3, 4] t, float[3, 4] u) {{
        t = Mul(s, two)  u = Identity(t)  m = ReduceMax<keepdims = 0>(t)  h = Less(m, ten)
    }}>
"""
DOUBLED = "float[3, 4] y, float[k, 3, 4] all"
COUNTING = """
    y, steps = Loop(n, , x) <body = b (int64 i, bool g, float[3, 4] s) => (bool h, float[3, 4] t, float[4] row) {
        h = Identity(g)  row = Gather(s, i)  f = Cast<to = 1>(i)  t = Add(s, f)
    }>
"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_on_data(condition: bool) -> None:
    model = parse(BRANCHES, "float[3, 4] x, bool c")
    module = parity.check(model, {"x": X, "c": np.array(condition)})
    assert list(module.state_dict()) == ["w"]
    module(torch.from_numpy(X), torch.tensor(condition)).sum().backward()
    assert module.w.grad is not None


@pytest.mark.parametrize("length", [3, 5])
def test_a_branch_on_a_shape_reads_no_tensor(length: int) -> None:
    body = "s = Shape(x) i = Constant<value = int64 {0}>() r = Gather(s, i) k = Constant<value = int64 {4}>()"
    model = parse(f"{body} c = Less(r, k) {BRANCHES}", "float[n, 4] x")
    module = parity.check(model, {"x": np.ones((length, 4), np.float32)})
    assert ".tolist" not in module.code
    assert "torch.lt" not in module.code


def test_an_empty_count_is_refused() -> None:
    """The checker takes it; onnxruntime reads beyond its end."""
    body = "<body = b (int64 i, bool g, float[3, 4] s) => (bool h, float[3, 4] t) { h = Identity(g)  t = Neg(s) }>"
    model = parse(f"n = Constant<value = int64[0] {{}}>() y = Loop(n, , x) {body}")
    with pytest.raises(UnsupportedError, match=r"Loop \(input 0 is empty"):
        to_torch(model)


@pytest.mark.parametrize("limit", [0, 1, 2, 100])
def test_a_loop_that_ends_by_count_or_on_data(limit: int) -> None:
    model = parse(DOUBLING.format(limit="n"), "float[3, 4] x, int64 n, bool go", DOUBLED)
    for go in (True, False):
        parity.check(model, {"x": X, "n": np.array(limit), "go": np.array(go)})


def test_a_loop_without_a_limit() -> None:
    model = parse(DOUBLING.format(limit=""), "float[3, 4] x, bool go", DOUBLED)
    parity.check(model, {"x": X, "go": np.array(True)})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_may_index_with_its_iteration(count: int) -> None:
    outputs = "float[3, 4] y, float[k, 4] steps"
    parity.check(parse(COUNTING, "float[3, 4] x, int64 n", outputs), {"x": X, "n": np.array(count)})


def test_the_iteration_of_a_loop_is_a_number() -> None:
    model = parse(f"n = Constant<value = int64 {{3}}>() {COUNTING}", outputs="float[3, 4] y, float[k, 4] steps")
    module = parity.check(model, {"x": X})
    assert ".tolist" not in module.code
    x = torch.from_numpy(X).requires_grad_()
    sum(result.sum() for result in module(x)).backward()
    assert torch.equal(x.grad, torch.full((3, 4), 2.0))


SCAN = """
    init = Constant<value_floats = [0.0, 0.0, 0.0, 0.0]>()
    last, y = Scan<num_scan_inputs = 1 {options}, body = b (float[4] s, float[4] e) => (float[4] t, float[4] o)
        {{ t = Add(s, e)  o = Mul(t, e) }}>(init, {source})
"""


@pytest.mark.parametrize(
    ("options", "transposed"),
    [
        ("", False),
        (", scan_input_directions = [1]", False),
        (", scan_output_directions = [1]", False),
        (", scan_input_axes = [1]", True),
        (", scan_input_axes = [-1], scan_output_axes = [1]", True),
        (", scan_output_axes = [-1], scan_input_directions = [1], scan_output_directions = [1]", False),
    ],
)
def test_scan(options: str, transposed: bool) -> None:
    source = "z" if transposed else "x"
    body = "z = Transpose(x)" if transposed else ""
    model = parse(f"{body} {SCAN.format(options=options, source=source)}", outputs="float[4] last, float[a, b] y")
    parity.check(model, {"x": X})


def test_scan_of_nothing() -> None:
    model = parse(SCAN.format(options="", source="x"), "float[n, 4] x", "float[4] last, float[a, b] y")
    last, y = to_torch(model)(torch.zeros(0, 4))
    assert torch.equal(last, torch.zeros(4))
    assert y.shape == (0, 4)


@pytest.mark.parametrize("lengths", [None, [3, 1]])
@pytest.mark.parametrize("backwards", [False, True])
def test_scan_8_has_a_batch_axis_and_lengths(lengths: list[int] | None, backwards: bool) -> None:
    model = parse(
        f"""last, y = Scan<num_scan_inputs = 1, directions = [{int(backwards)}], body = b (float[4] s, float[4] e) =>
        (float[4] t, float[4] o) {{ t = Add(s, e)  o = Mul(t, e) }}>({"" if lengths is None else "lengths"}, init, x)""",
        "float[2, 3, 4] x, float[2, 4] init" + ("" if lengths is None else ", int64[2] lengths"),
        "float[2, 4] last, float[2, 3, 4] y",
        opset=8,
    )
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    given = {"x": x, "init": np.ones((2, 4), np.float32)}
    if lengths is not None:
        given["lengths"] = np.array(lengths)
    parity.check(model, given)


@pytest.mark.filterwarnings("ignore")
def test_a_branch_on_data_exports_as_a_condition_of_torch() -> None:
    module = to_torch(parse(BRANCHES, "float[n, 4] x, bool c"))
    x = torch.from_numpy(X)
    shapes = ({0: torch.export.Dim("n")}, None)
    program = torch.export.export(module, (x, torch.tensor(True)), dynamic_shapes=shapes, strict=False)
    for condition in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(program.module()(x[:2], condition), module(x[:2], condition))
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for condition in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(compiled(x, condition), module(x, condition))


@pytest.mark.filterwarnings("ignore")
def test_a_loop_of_known_length_exports() -> None:
    model = parse(f"n = Constant<value = int64 {{3}}>() {COUNTING}", outputs="float[3, 4] y, float[k, 4] steps")
    module = to_torch(model)
    x = torch.from_numpy(X)
    program = torch.export.export(module, (x,), strict=False)
    for found, wanted in zip(program.module()(x), module(x), strict=True):
        torch.testing.assert_close(found, wanted)
    torch._dynamo.reset()
    for found, wanted in zip(torch.compile(module, fullgraph=True, backend="eager")(x), module(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_loops_and_branches_of_one_another() -> None:
    model = parse(
        """n = Constant<value = int64 {3}>()  one = Constant<value = int64 {1}>()
        y = Loop(n, , x) <body = b (int64 i, bool g, float[3, 4] s) => (bool h, float[3, 4] t) {
            h = Identity(g)  c = Less(i, one)
            t = If(c) <then_branch = p () => (float[3, 4] u) { u = Exp(s) },
                       else_branch = q () => (float[3, 4] v) {
                v = Loop(n, , s) <body = d (int64 j, bool k, float[3, 4] r) => (bool l, float[3, 4] m) {
                    l = Identity(k)  f = Cast<to = 1>(j)  e = Cast<to = 1>(i)  a = Mul(f, e)  m = Add(r, a) }> }>
        }>"""
    )
    parity.assert_close(parity.run_module(to_torch(model), {"x": X}), [np.exp(X) + 9])


# The shape of `row` is computed, and stated nowhere: its rank is known at run time only.
RESHAPING = """
    go = Constant<value = bool {{1}}>()  y = Loop(n, go) <body = b (int64 i, bool g) => (bool h, row) {{ h = Identity(g)  {body} }}>
"""


def without_stated_ranks(body: str) -> onnx.ModelProto:
    inputs, outputs = "float[3, 4] x, int64[m] s, int64 n", "float[k, a, b] y"
    return parse(RESHAPING.format(body=body), inputs, outputs)


@pytest.mark.parametrize("count", [0, 2])
def test_an_empty_scan_output_has_the_shape_of_an_iteration(count: int) -> None:
    module = to_torch(without_stated_ranks("row = Reshape(x, s)"))
    given = torch.from_numpy(X), torch.tensor([6, 2]), torch.tensor(count)
    assert module(*given).shape == (count, 6, 2)


def test_an_empty_scan_output_has_one_axis_where_no_iteration_can_run() -> None:
    # As in onnxruntime, which does not look at the body.
    model = without_stated_ranks("t = Reshape(x, s) row = Neg(t)")
    given = {"x": X, "s": np.array([5, 5]), "n": np.array(0)}
    wanted = parity.session(model).run(None, given)[0]
    assert parity.run_module(to_torch(model), given)[0].shape == wanted.shape == (0,)


def test_the_rank_that_a_body_states_is_that_of_an_empty_scan_output() -> None:
    model = without_stated_ranks("row = Reshape(x, s)")
    row = model.graph.node[1].attribute[0].g.output[1]
    row.CopyFrom(onnx.helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, [None, None]))
    parity.check(model, {"x": X, "s": np.array([6, 2]), "n": np.array(0)})
