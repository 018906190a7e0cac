"""Spearman correlation of all-MiniLM-L6-v2 on STS-B in float, as a QDQ file, and executed in integers alone.

    python tools/bench/integer_minilm.py --minilm model.safetensors [--pairs N] [--activation-bits 16]

The file has ``--integer all``, weights of 8 bits and activations of 16, calibrated on 32 sentences of the training set;
``onnxruntime`` and ``fixed-point`` execute it with accumulators of 48 bits. Scored is the file's own output ``sentence``,
behind its pooling over the tokens that the mask keeps; ``in_float`` lists the operators that stay in float.
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
Sentences = Callable[[dict[str, np.ndarray]], np.ndarray]


def feeds(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs for token ids, where 0 pads."""
    return {"input_ids": ids.astype(np.int64), "attention_mask": (ids > 0).astype(np.int64)}


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, the mean of equal ones."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def spearman(sentences: Sentences, ids: np.ndarray, gold: np.ndarray) -> float:
    """Correlation of the ranks of cosines and of the scores that people gave."""
    sides = []
    for side in (0, 1):
        batches = range(0, len(ids), BATCH)
        found = np.concatenate([sentences(feeds(ids[start : start + BATCH, side])) for start in batches])
        sides.append(found / np.linalg.norm(found, axis=1, keepdims=True))
    return round(float(np.corrcoef(ranks((sides[0] * sides[1]).sum(1)), ranks(gold))[0, 1]), 4)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", type=Path, required=True, help="model.safetensors of all-MiniLM-L6-v2")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--activation-bits", type=int, default=16)
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
    ids = ids[:, :, : int((ids > 0).any((0, 1)).sum())]  # padding behind the longest sentence
    overrides = Overrides(integer="all", activation_bits=arguments.activation_bits)
    onnxqat.insert_qdq(
        source, "onnxruntime-cpu", calibration=calibration, output=made, overrides=overrides, fast=True, guard=False
    )
    row: dict[str, object] = {"pairs": len(ids)}
    for name, path in (("float", source), ("qdq", made)):
        session = integer_equality.session(str(path))
        row[name] = spearman(lambda given, run=session.run: np.asarray(run(["sentence"], given)[0]), ids, gold)  # type: ignore[misc]
    print(json.dumps(row), flush=True)
    for arithmetic in ("onnxruntime", "fixed-point"):
        model = onnxqat.to_integer(made, arithmetic=arithmetic, accumulator=Accumulator(48))  # type: ignore[arg-type]
        row[arithmetic] = spearman(lambda given, run=model.run: np.asarray(run(given).outputs["sentence"]), ids, gold)  # type: ignore[misc]
        row["in_float"] = model.float_operators()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
