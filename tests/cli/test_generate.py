"""generate: two decoders in one table, samples for the other commands, and mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.generation import tiny_decoder

Run = Callable[..., Any]


@pytest.fixture
def decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_decoder.model(), "decoder.onnx")
    np.savez("tokens.npz", input_ids=tiny_decoder.prompts(6))
    return tmp_path


def test_the_way_of_a_decoder(decoders: Path, onnxqat: Run) -> None:
    done = onnxqat("generate", "decoder.onnx", "--data", "tokens.npz", "--tokens", 3, "-o", "steps")
    assert done.status == 0, done.err
    assert "--calibration steps" in done.out
    assert onnxqat("insert-qdq", "decoder.onnx", "-c", "steps", "--fast", "-o", "decoder.qdq.onnx").status == 0
    done = onnxqat("generate", "decoder.onnx", "decoder.qdq.onnx", "--data", "tokens.npz", "--tokens", 20, "--json")
    assert done.status == 0, done.err
    assert np.shape(done.json["details"]["tokens_other"]) == (6, 20)
    assert done.json["figures"]["shortest"] == min(row["same"] for row in done.json["tables"]["sequences"])
    done = onnxqat("validate", "decoder.onnx", "decoder.qdq.onnx", "--data", "steps", "--score", "perplexity")
    assert "perplexity" in done.out


def test_mistakes(decoders: Path, onnxqat: Run) -> None:
    done = onnxqat("generate", "decoder.onnx", "--data", "tokens.npz", "-o", ".")
    assert (done.status, "is there already" in done.err) == (2, True)
    np.savez("other.npz", words=tiny_decoder.prompts(2))
    assert "input_ids" in onnxqat("generate", "decoder.onnx", "--data", "other.npz").err
    flat = onnx.load("decoder.onnx")
    for node in flat.graph.node:
        node.input[:] = ["words" if name == "input_ids" else name for name in node.input]
    next(each for each in flat.graph.input if each.name == "input_ids").name = "words"
    onnx.save(flat, "words.onnx")
    told = onnxqat("generate", "words.onnx", "--data", "other.npz").err
    assert "no 'input_ids'" in told
    assert "'words'" in told
