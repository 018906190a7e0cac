"""Text as numbers: TfIdfVectorizer of integers."""

from __future__ import annotations

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView


def count_grams(
    tokens: torch.Tensor,
    pools: list[tuple[list[list[int]], list[int], list[float]]],
    skips: int,
    length: int,
    presence: bool,
) -> torch.Tensor:
    """Count the n-grams of each row, each count times the weight of the n-gram.

    Args:
        tokens: (C,) or (N, C) integers.
        pools: for each n, the n-grams and for each of them its place in the result and its weight.
        skips: most tokens that are left out between two of an n-gram; single tokens are counted once.
        length: of a row of the result.
        presence: whether an n-gram counts once however often it occurs.

    Returns:
        (length,) or (N, length) float32.
    """
    rows = tokens if tokens.dim() == 2 else tokens.reshape(1, -1)
    found = torch.zeros([rows.shape[0], length], dtype=torch.float32, device=tokens.device)
    for grams, places, weights in pools:
        pool = torch.tensor(grams, dtype=rows.dtype, device=tokens.device)
        place = torch.tensor(places, dtype=torch.int64, device=tokens.device)
        weight = torch.tensor(weights, dtype=torch.float32, device=tokens.device)
        size = pool.shape[1]
        count = torch.zeros([rows.shape[0], pool.shape[0]], dtype=torch.int64, device=tokens.device)
        for distance in range(1, (skips if size > 1 else 0) + 2):
            starts = rows.shape[1] - (size - 1) * distance
            if starts <= 0:
                continue
            hits = torch.ones([rows.shape[0], starts, pool.shape[0]], dtype=torch.bool, device=tokens.device)
            for k in range(size):
                part = rows[:, k * distance : k * distance + starts]
                hits = hits & (part.unsqueeze(2) == pool[:, k])
            count = count + hits.sum(1)
        found = found.index_add(1, place, (count.clamp(max=1) if presence else count) * weight)
    return found if tokens.dim() == 2 else found.reshape(length)


def tf_idf_vectorizer(n: NodeView) -> Lowered:
    """TfIdfVectorizer 9 on integers; strings are refused. A weight belongs to an n-gram, as the standard's text says."""
    items = n.attr("pool_int64s")
    if not items or n.attr("pool_strings"):
        raise n.refuse("strings")
    mode, starts, places = str(n.attr("mode")), n.attr("ngram_counts"), n.attr("ngram_indexes")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise n.refuse(f"mode {mode}")
    weights = n.attr("weights") if mode != "TF" else None
    weights = weights or [1.0] * len(places)
    if len(weights) != len(places):
        raise n.refuse(f"{len(weights)} weights for {len(places)} n-grams")
    if mode == "IDF" and len(set(places)) != len(places):
        raise n.refuse("mode IDF with two n-grams in one place")
    pools, number = [], 0
    for size, (start, end) in enumerate(zip(starts, [*starts[1:], len(items)], strict=True), 1):
        grams = [items[i : i + size] for i in range(start, end - size + 1, size)]
        wanted = int(n.attr("min_gram_length")) <= size <= int(n.attr("max_gram_length"))
        # Of an n-gram that is listed twice, the last one counts.
        chosen = {tuple(gram): index for index, gram in enumerate(grams, number)}
        number += len(grams)
        if wanted and chosen:
            indices = list(chosen.values())
            pools.append(([list(g) for g in chosen], [places[i] for i in indices], [weights[i] for i in indices]))
    skips = int(n.attr("max_skip_count"))
    return n.call(count_grams, n.tensor(0), pools, skips, max(places) + 1, mode == "IDF")
