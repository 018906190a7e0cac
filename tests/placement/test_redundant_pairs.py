"""Pairs that repeat the grid of what was moved are left out where the table says so."""

from pathlib import Path

from onnxqat.types import Shared, TensorSpec
from tests.backends.planning import decision, edges, plan, root, table_file, weight

W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[4,4,1,1] v = {weight(4, 4, 1, 1)}"
CONCAT = f"""g (float[1,2,4,4] x) => (float[1,4,4,4] y) <{W}> {{
    a = Conv(x, w) b = Conv(a, w) c = Concat<axis = 1>(a, b) d = Transpose<perm = [0,1,3,2]>(c) y = Conv(d, v) }}"""


def table(folder: Path, keys: str) -> str:
    home = folder / keys.partition(":")[2].strip(" {}").replace(": ", "_")  # tables are remembered by their path
    home.mkdir()
    return table_file(home, f"backend: t\nextends: openvino-cpu\n{keys}\n")


def test_concat_and_movement_behind_it(tmp_path: Path) -> None:
    """One of the inputs becomes the root of the group, with the decision that the root had."""
    with_pairs = plan(CONCAT, table(tmp_path, "data_movement: pair"))
    without = plan(CONCAT, table(tmp_path, "data_movement: no_pair"))
    assert {root(with_pairs, t) for t in "abcd"} == {"c"}
    assert with_pairs.bare == ()
    assert without.bare == ("c", "d")
    assert set(edges(with_pairs)) - set(edges(without)) == {"c", "d"}
    assert isinstance(decision(without, "a"), TensorSpec)
    assert decision(without, "a") == decision(with_pairs, "c")
    assert decision(without, "b") == Shared("a")


def test_a_graph_input_that_is_cut_and_put_together() -> None:
    """The pair of the input has consumers of its own and is the heir all the same."""
    text = f"""g (float[1,2,4,4] x) => (float[1,4,4,4] y) <{W}> {{
        p = Transpose<perm = [0,1,3,2]>(x) c = Concat<axis = 1>(x, p) y = Conv(c, v) }}"""
    found = plan(text, "openvino-cpu")
    assert found.bare == ("p", "c")
    assert isinstance(decision(found, "x"), TensorSpec)
    assert set(edges(found)) == {"x", "v", "y"}


def test_results_and_untied_inputs_keep_their_pairs(tmp_path: Path) -> None:
    """A result of the model has its pair; behind a Concat of several grids, the pair is the only one."""
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{
        a = Conv(x, w) y = Transpose<perm = [0,1,3,2]>(a) }}"""
    assert "y" in edges(plan(text, "openvino-cpu"))
    found = plan(CONCAT, table(tmp_path, "ops: {Concat: {share: null}}"))
    assert "c" in edges(found)
    assert found.bare == ("d",)
