"""Spearman correlation of all-MiniLM-L6-v2 on STS-B in float, as a QDQ file, and executed in integers alone.

    python tools/bench/integer_minilm.py --minilm model.safetensors [--pairs N] [--activation-bits 16]

The file has ``--integer all``, weights of 8 bits and activations of 16, calibrated on 32 sentences of the training set;
``onnxruntime`` and ``fixed-point`` execute it with accumulators of 48 bits. Scored is the file's own output ``sentence``,
behind its pooling over the tokens that the mask keeps; ``in_float`` lists the operators that stay in float. A loss is that
against the float file, with its standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import integer_equality

RUNS = _shared.ROOT / "runs" / "integer_minilm"
BATCH = 16
RESAMPLED = 200
"""Draws of the pairs behind a standard error."""
Sentences = Callable[[dict[str, np.ndarray]], np.ndarray]


def feeds(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs for token ids, where 0 pads."""
    return {"input_ids": ids.astype(np.int64), "attention_mask": (ids > 0).astype(np.int64)}


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, the mean of equal ones."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def spearman(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Correlation of the ranks of two sets of numbers."""
    return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])


def cosines(sentences: Sentences, ids: np.ndarray) -> np.ndarray:
    """Cosine of the angle between the two sentences of each pair, read by length, so that there is little padding."""
    texts = ids.reshape(-1, ids.shape[-1])
    lengths = (texts > 0).sum(1)
    order = np.argsort(lengths, kind="stable")
    found = [np.empty(0)] * len(texts)
    for start in range(0, len(texts), BATCH):
        batch = order[start : start + BATCH]
        for index, vector in zip(batch, sentences(feeds(texts[batch, : lengths[batch].max()])), strict=True):
            found[index] = vector / np.linalg.norm(vector)
    sides = np.stack(found).reshape(len(ids), 2, -1)
    return np.asarray((sides[:, 0] * sides[:, 1]).sum(1))


def loss(reference: np.ndarray, other: np.ndarray, gold: np.ndarray) -> tuple[float, float]:
    """How much less `other` correlates than `reference`, and the standard error, over pairs drawn anew with replacement."""
    draws = np.random.default_rng(0).integers(0, len(gold), (RESAMPLED, len(gold)))
    losses = [spearman(reference[each], gold[each]) - spearman(other[each], gold[each]) for each in draws]
    return round(spearman(reference, gold) - spearman(other, gold), 4), round(float(np.std(losses)), 4)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, required=True, help="model.safetensors of all-MiniLM-L6-v2")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--activation-bits", type=int, default=16)
    parser.add_argument("--arithmetics", nargs="*", default=["onnxruntime", "fixed-point"])
    arguments = parser.parse_args()

    from minilm import export

    import onnxqat
    from onnxqat.arithmetic import Accumulator
    from onnxqat.placement.table_overrides import Overrides

    RUNS.mkdir(parents=True, exist_ok=True)
    source, made = RUNS / "minilm.onnx", RUNS / f"minilm_{arguments.activation_bits}.onnx"
    if not source.exists():
        export(arguments.minilm, source, dynamo=False)
    data = _shared.scorer().DATA
    with np.load(data / "stsb_train_minilm_tokens.npz") as archive:
        calibration = feeds(archive["ids"][:32, 0])
    with np.load(data / "stsb_test_minilm_tokens.npz") as archive:
        ids, gold = archive["ids"][: arguments.pairs], archive["score"][: arguments.pairs]
    overrides = Overrides(integer="all", activation_bits=arguments.activation_bits)
    onnxqat.insert_qdq(
        source, "onnxruntime-cpu", data=calibration, output=made, overrides=overrides, fast=True, guard=False
    )
    row: dict[str, object] = {"pairs": len(ids)}
    found: dict[str, np.ndarray] = {}

    def score(name: str, sentences: Sentences) -> None:
        found[name] = cosines(sentences, ids)
        row[name] = round(spearman(found[name], gold), 4)
        row[f"{name}_loss"] = loss(found["float"], found[name], gold)
        print(json.dumps(row), flush=True)

    for name, path in (("float", source), ("qdq", made)):
        session = integer_equality.session(str(path))
        score(name, lambda given, run=session.run: np.asarray(run(["sentence"], given)[0]))  # type: ignore[misc]
    for arithmetic in arguments.arithmetics:
        model = onnxqat.to_integer(made, arithmetic=arithmetic, accumulator=Accumulator(48))
        row["in_float"] = model.float_operators()
        score(arithmetic, lambda given, run=model.run: np.asarray(run(given).outputs["sentence"]))  # type: ignore[misc]


if __name__ == "__main__":
    main()
