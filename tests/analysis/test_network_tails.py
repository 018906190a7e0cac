"""What comes behind the last layer and a selection, or computes places, is on no grid."""

from tests.backends.planning import edges, plan, weight

SELECTED = """g (float[1,16,8] x) => (float[1,5,4] y) <float[8,4] w = W84, int64[1] k = {5}, int64[1] last = {2},
    int64[3] times = {1, 1, 4}, float two = {2}, float[4,4] u = W44> {
    b = MatMul(x, w) s = ReduceMax<keepdims = 0>(b, last) v, i = TopK(s, k) j = Unsqueeze(i, last)
    t = Tile(j, times) g = GatherElements<axis = 1>(b, t) m = Mul(g, two) p = Mul(m, m) BODY }"""
DECODE = """g (float[1,16,8] x) => (float[1,16,4] y) <float[8,2] w = W82, float[1,16,2] anchors = W162, float tenth = {0.1},
    float[2] factors = {2, 3}> {
    c = MatMul(x, w) d = MatMul(x, w) BODY y = Concat<axis = 2>(p, q) }"""


def filled(text: str, body: str) -> str:
    numbers = {"W84": weight(8, 4), "W44": weight(4, 4), "W82": weight(8, 2), "W162": weight(1, 16, 2)}
    for name, values in numbers.items():
        text = text.replace(name, values)
    return text.replace("BODY", body)


def test_behind_a_selection() -> None:
    found = plan(filled(SELECTED, "y = Identity(p)"), "qnn-htp")
    assert not set(edges(found)) & {"m", "p", "y"}
    assert "behind TopK" in dict(found.float_nodes)["m_Mul"]


def test_a_decoder_behind_a_selection_is_a_network() -> None:
    assert {"m", "p"} <= set(edges(plan(filled(SELECTED, "y = MatMul(p, u)"), "qnn-htp")))


def test_boxes_from_anchors() -> None:
    body = "l = Mul(c, tenth) p = Mul(l, anchors) e = Mul(d, tenth) q = Add(e, anchors)"
    found = set(edges(plan(filled(DECODE, body), "qnn-htp")))
    assert not found & {"l", "e", "p", "q", "y"}
    assert {"x", "w", "c", "d"} <= found


def test_a_factor_a_channel_is_no_place() -> None:
    found = set(edges(plan(filled(DECODE, "p = Mul(c, factors) q = Mul(d, tenth)"), "qnn-htp")))
    assert {"c", "d", "p", "q"} <= found
