"""TfIdfVectorizer of integers."""

import numpy as np
import pytest

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node, parity
from tests.torch_releases import since_2_7

RANDOM = np.random.default_rng(0)
POOL = [0, 1, 2, 0, 1, 2, 3, 1, 1, 0, 1, 2, 4, 4, 4]  # three of one, three of two, two of three
GRAMS = {"ngram_counts": [0, 3, 9], "ngram_indexes": [3, 0, 7, 1, 2, 6, 5, 4], "opset": 9}


def vectorizer(x, **options):
    return one_node.make("TfIdfVectorizer", {"x": x}, **GRAMS, **({"pool_int64s": POOL} | options))


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("skips", [0, 1, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_counts_equal_onnxruntime(mode, lengths, skips, weighted) -> None:
    x = RANDOM.integers(0, 5, (3, 12))
    options = {"min_gram_length": lengths[0], "max_gram_length": lengths[1], "max_skip_count": skips}
    options |= {"mode": mode, "weights": RANDOM.random(8).tolist() if weighted else None}
    parity.check(vectorizer(x, **options), {"x": x})
    parity.check(vectorizer(x[0], **options), {"x": x[0]})


def test_strings_are_refused() -> None:
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    model = vectorizer(np.zeros(3, np.int64), **options, pool_int64s=None, pool_strings=["a"] * 15)
    with pytest.raises(UnsupportedError, match=r"TfIdfVectorizer \(strings\)"):
        to_torch(model)


@since_2_7
def test_counts_export() -> None:
    options = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 1, "pool_int64s": POOL}
    given, other = {"x": RANDOM.integers(0, 5, (3, 9))}, {"x": RANDOM.integers(0, 5, (2, 14))}
    lowering_checks.exports("TfIdfVectorizer", given, {"x": (0, 1)}, other, **GRAMS, **options)
