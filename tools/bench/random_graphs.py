"""Random graphs, the bridge against onnxruntime: our own, or the files of a folder.

    python tools/bench/random_graphs.py [--first 0] [--count 1000]
    python tools/bench/random_graphs.py --folder MODELS

Prints each graph whose outputs are not equal, with its seed, and the counts of all verdicts; see
:mod:`tools.random_graphs.compare` for what they mean. A seed gives the same graph every time. Each graph has a process
of its own, as some graphs end onnxruntime's with a segmentation fault.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import sys
import time

import numpy as np
import onnx
import torch
from onnx import helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools.random_graphs import compare, generate


def file_feeds(model: onnx.ModelProto, seed: int) -> compare.Feeds:
    """Random inputs of a file with static shapes; for every other seed from the range that suits Log and Sqrt."""
    random = np.random.default_rng(seed)
    low, high = ((-3, 3), (1, 2))[seed % 2]
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        drawn = np.asarray(random.uniform(low, high, [d.dim_value for d in kind.shape.dim]))
        feeds[value.name] = np.asarray(
            drawn > 0 if dtype.kind == "b" else drawn * (3 if dtype.kind in "iu" else 1), dtype
        )
    return feeds


def judge(case: int | pathlib.Path, seed: int) -> dict[str, object]:
    """Verdict on one graph, and its operators."""
    if isinstance(case, pathlib.Path):
        model = onnx.load(case)
        feeds = file_feeds(model, seed)
    else:
        model, feeds = generate.graph(case)
    verdict = compare.judge(model, feeds)
    return {"kind": verdict.kind, "detail": verdict.detail, "operators": [node.op_type for node in model.graph.node]}


def in_child(case: int | pathlib.Path, seed: int) -> dict[str, object]:
    """:func:`judge` in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            found = judge(case, seed)
        except Exception as error:
            found = {"kind": "error", "detail": f"{type(error).__name__}: {error}"[:300], "operators": []}
        with os.fdopen(writer, "w") as stream:
            json.dump(found, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"kind": "crash", "detail": f"status {status}", "operators": []}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--folder", type=pathlib.Path, help="ONNX files instead of our own graphs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    cases: list[int | pathlib.Path] = list(range(options.first, options.first + options.count))
    if options.folder:
        files = sorted(options.folder.glob("*.onnx"), key=lambda path: (len(path.stem), path.stem))
        cases = list(files[options.first : options.first + options.count])
    counts: collections.Counter[str] = collections.Counter()
    operators: collections.Counter[str] = collections.Counter()
    for seed, case in enumerate(cases, options.first):
        found = in_child(case, seed)
        counts[str(found["kind"])] += 1
        operators.update(found["operators"])  # type: ignore[arg-type]
        if found["kind"] != "equal":
            print(case, found["kind"], found["detail"], flush=True)
    print(f"{len(cases)} graphs from seed {options.first}: {dict(counts)}")
    print(f"{operators.total()} nodes of {len(operators)} operators; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
