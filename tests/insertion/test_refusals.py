"""Culprits that stay quantized: one line says how many, and names the worst."""

from onnxqat.insertion.refusals import Refusal, remarks
from onnxqat.types import Remark


def refusal(tensor: str, noise: float) -> Refusal:
    return Refusal(tensor, noise, (f"{tensor}_Conv",), 4, 3, 12)


def results(found: list[Remark]) -> list[str]:
    return [remark.message for remark in found if remark.concern == "result"]


def test_one_culprit_has_a_line_of_its_own() -> None:
    assert remarks([]) == []
    (only,) = remarks([refusal("a", 1.5), refusal("a", 2.0)])
    assert only.concern == "result"
    assert "'a' costs accuracy and stays quantized: 4 of 12 integer nodes" in only.message
    assert only.nodes == ("a_Conv",)


def test_many_share_one_line_that_names_the_worst() -> None:
    found = remarks([refusal(name, noise) for noise, name in enumerate("abcdefg")] + [refusal("a", 9.0)])
    (text,) = results(found)
    assert text.startswith("7 tensors cost accuracy and stay quantized, most of all 'a', 'g', 'f'")
    assert [remark.nodes[0] for remark in found if remark.concern == "detail"] == [f"{n}_Conv" for n in "agfedcb"]
