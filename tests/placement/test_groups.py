"""Union-find of tied tensors."""

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxqat.placement.groups import Groups

TENSORS = st.sampled_from("abcdefgh")


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(st.tuples(TENSORS, TENSORS), max_size=20))
def test_groups_are_the_connected_components(pairs: list[tuple[str, str]]) -> None:
    groups = Groups()
    for first, second in pairs:
        groups.join(first, second)
    order = list(dict.fromkeys(t for pair in pairs for t in pair))
    components = {t: {t} for t in order}
    for first, second in pairs:
        joined = components[first] | components[second]
        components.update(dict.fromkeys(joined, joined))
    for tensor in order:
        assert groups.root(tensor) == next(t for t in order if t in components[tensor])
    expected = {}
    for tensor in order:
        if len(components[tensor]) > 1:
            expected.setdefault(groups.root(tensor), []).append(tensor)
    assert groups.members() == expected
    assert list(groups.members()) == list(expected)


def test_an_untied_tensor_is_its_own_root() -> None:
    groups = Groups()
    assert groups.root("a") == "a"
    groups.join("a", "a")
    assert groups.members() == {}
