"""GroupNormalization as torch's exporters write it."""

from onnxqat.analysis.groups.find import find
from tests.backends.planning import graph

TEXT = """g (float[1,4,3,3] x) => (float[1,4,3,3] y) <int64[3] rows = {0, 2, -1}, int64[4] whole = {1, 4, 3, 3},
    float[2] ones = {1, 1}, float[2] zeros = {0, 0}, float[4,1,1] gamma = {1, 2, 3, 4}, float[4,1,1] beta = {4, 3, 2, 1}> {
    r = Reshape(x, rows) i = InstanceNormalization <epsilon = 0.01> (r, ones, zeros) b = Reshape(i, whole)
    g = Mul(b, gamma) y = Add(g, beta) }"""


def test_form() -> None:
    (group,) = find(graph(TEXT))
    assert (group.kind, len(group.nodes), group.attributes["num_groups"]) == ("GroupNormalization", 5, 2)
    assert [v.name for v in group.inputs if v is not None] == ["x", "gamma", "beta"]


def test_an_instance_normalization_with_factors_of_its_own_is_none() -> None:
    assert find(graph(TEXT.replace("ones = {1, 1}", "ones = {1, 2}"))) == ()
