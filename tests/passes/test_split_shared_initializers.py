"""split-shared-initializers: each group of readers has its own constant."""

import pytest

from onnxqat.errors import UsageError
from onnxqat.passes.split_shared_initializers import SplitSharedInitializers
from tests.passes.checks import check_pass, parse

TEXT = """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    [a] t = MatMul(x, w) [b] u = MatMul(t, w) [c] y = Add(u, w) }"""


def test_groups_get_copies() -> None:
    check_pass(
        SplitSharedInitializers({"w": [[("a", 1)], [("b", 1)], [("c", 1)]]}),
        TEXT.replace("N", "2"),
        """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] w_1 = {1, 2, 3, 4},
        float[2,2] w_2 = {1, 2, 3, 4}> { t = MatMul(x, w) u = MatMul(t, w_1) y = Add(u, w_2) }""",
        inside_if="skip",
    )


def test_readers_without_a_group_keep_the_constant() -> None:
    check_pass(
        SplitSharedInitializers({"w": [[("a", 1)], [("b", 1)]]}),
        TEXT.replace("N", "2"),
        """g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] w_1 = {1, 2, 3, 4}> {
        t = MatMul(x, w) u = MatMul(t, w_1) y = Add(u, w) }""",
        inside_if="skip",
    )


def test_one_group_is_left_alone() -> None:
    check_pass(SplitSharedInitializers({"w": [[("a", 1), ("b", 1)]]}), TEXT.replace("N", "2"), None)


@pytest.mark.parametrize("reader", [("nobody", 1), ("b", 7)])
def test_unknown_reader(reader: tuple[str, int]) -> None:
    with pytest.raises(UsageError) as caught:
        SplitSharedInitializers({"w": [[("a", 1)], [reader]]}).run(parse(TEXT.replace("N", "2")))
    assert caught.value.code == "name-unknown"
