"""Random graphs with fixed seeds against onnxruntime; ``tools/bench/random_graphs.py`` runs as many as wanted."""

import pytest

from tools.random_graphs import compare, generate, standard

SEEDS = [*range(50)]


@pytest.mark.filterwarnings("ignore")  # onnxruntime computes what ONNX leaves open, such as overflowing casts
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_graph_gives_what_onnxruntime_gives(seed) -> None:
    model, feeds = generate.graph(seed)
    verdict = compare.judge(model, feeds)
    assert verdict.kind in ("equal", "unrounded", "amplified"), verdict


def test_the_seeds_cover_most_operators() -> None:
    used = {node.op_type for seed in SEEDS for node in generate.graph(seed)[0].graph.node}
    assert len(used) > 90


def test_a_wrong_result_is_a_mismatch(monkeypatch) -> None:
    model, feeds = generate.graph(SEEDS[0])
    right = compare.run
    monkeypatch.setattr(compare, "run", lambda module, given: [array + 1 for array in right(module, given)])
    assert compare.judge(model, feeds).kind == "mismatch"


ALIGNED = 767  # its graph resizes 3 rows to 4.5 with align_corners


def test_where_onnxruntime_departs_from_the_reference_is_told_apart(monkeypatch) -> None:
    model, feeds = generate.graph(ALIGNED)
    verdict = compare.judge(model, feeds)
    assert verdict.kind == "standard"
    assert standard.RESIZE_FRACTIONAL_LENGTH in verdict.detail
    right = compare.run
    monkeypatch.setattr(compare, "run", lambda module, given: [array * 1.01 for array in right(module, given)])
    assert compare.judge(model, feeds).kind == "mismatch"
