"""Greedy generation: with a cache as without, two models beside each other, and the samples that it writes."""

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.data.data import open_data
from onnxqat.errors import UsageError
from onnxqat.generation.generate import generate
from onnxqat.metrics import Predictor
from tests.generation import tiny_decoder


def test_a_cache_changes_no_token() -> None:
    data = {"input_ids": tiny_decoder.prompts(3)}
    found = generate(tiny_decoder.model(), data, tiny_decoder.model(cache=False), tokens=9, batch_size=2)
    assert found.tokens[0].shape == (3, 9)
    assert found.same == (9, 9, 9)
    assert found.tokens[1] is not None
    assert found.perplexity[0] == pytest.approx(found.perplexity[1], rel=1e-5)


def test_perplexity_is_that_of_the_formula() -> None:
    tokens = tiny_decoder.prompts(4)
    logits = Predictor.of(tiny_decoder.model(cache=False))({"input_ids": tokens})["logits"].astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shares[:, :-1], tokens[:, 1:, None], axis=2)
    found = generate(tiny_decoder.model(), {"input_ids": tokens}, tokens=1)
    assert found.perplexity == (pytest.approx(math.exp(-np.log(chosen).mean()), rel=1e-5), None)


def test_where_two_models_part() -> None:
    data = {"input_ids": tiny_decoder.prompts(4)}
    found = generate(tiny_decoder.model(), data, tiny_decoder.model(scale=0.3), tokens=12)
    first, second = found.tokens
    assert second is not None
    for one, two, same in zip(first, second, found.same, strict=True):
        assert np.array_equal(one[:same], two[:same])
        assert same == 12 or one[same] != two[same]
    assert min(found.same) < 12


def test_samples_calibrate_and_are_scored(tmp_path: Path) -> None:
    onnx.save(tiny_decoder.model(), tmp_path / "decoder.onnx")
    data = {"input_ids": tiny_decoder.prompts(8)}
    found = generate(tmp_path / "decoder.onnx", data, tokens=4, batch_size=4, samples=tmp_path / "steps")
    assert len(found.files) == 2 * 4
    feeds = np.load(found.files[1])
    assert feeds["input_ids"].shape == (4, 1)
    assert feeds["past_key_values.0.key"].shape == (4, 1, 6, tiny_decoder.WIDTH)
    result = onnxqat.insert_qdq(tmp_path / "decoder.onnx", data=tmp_path / "steps", fast=True)
    quantized = {edge.tensor for edge in result.plan.edges}
    assert "past_key_values.0.key" in quantized
    predict = Predictor.of(result.model)
    score = onnxqat.metrics.resolve("perplexity", data=open_data(tmp_path / "steps", predict.inputs))
    again = generate(result.model, data, tokens=1, optimize=False)
    assert -score(predict) == pytest.approx(again.perplexity[0], rel=1e-4)


def test_no_folder_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        generate(tiny_decoder.model(), {"input_ids": tiny_decoder.prompts(1)}, samples=tmp_path / "kept")


def test_a_model_that_is_no_decoder() -> None:
    other = tiny_decoder.model()
    other.graph.input[0].name = "tokens"
    for node in other.graph.node:
        node.input[:] = ["tokens" if name == "input_ids" else name for name in node.input]
    with pytest.raises(UsageError, match="it has no 'input_ids'") as caught:
        generate(other, {"tokens": tiny_decoder.prompts(1)})
    assert caught.value.code == "option-invalid"
