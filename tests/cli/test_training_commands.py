"""finetune with options of how it computes, and replay of what goes wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
TRAIN = ("finetune", "model.qdq.onnx", "--data", "data.npz", "--teacher", "model.onnx", "--batch-size", "4")


def test_options_of_the_step_and_the_log(qdq: Path, onnxqat: Run) -> None:
    how = (
        "--precision",
        "bfloat16",
        "--accumulate",
        "2",
        "--channels-last",
        "--recompute-segments",
        "3",
        "--rematerialize",
    )
    notes = ("--log-dir", "logs", "--log-every", "1", "--checkpoint-dir", "kept", "--save-every", "1")
    done = onnxqat(*TRAIN, "--max-steps", "2", *how, *notes, "--json")
    assert done.status == 0, done.err
    events = [json.loads(line)["event"] for line in Path("logs/log.jsonl").read_text().splitlines()]
    assert events.count("step") == 2
    assert Path("kept/last.safetensors").exists()
    again = onnxqat(*TRAIN, "--max-steps", "2", *how, *notes, "--resume", "--json")
    assert again.status == 0, again.err


def test_a_step_that_diverges_is_seen_again(qdq: Path, onnxqat: Run) -> None:
    failed = onnxqat(*TRAIN, "--temperature", "1e-42", "-o", "out.onnx")  # logits over that are infinite
    assert failed.status == 1
    assert "training-diverged" in failed.err
    assert "onnxqat replay out.onnx.black_box MODEL" in failed.err
    assert not Path("out.onnx").exists()
    seen = onnxqat("replay", "out.onnx.black_box", "model.qdq.onnx", "--json")
    assert seen.status == 0, seen.err
    assert seen.json["kind"] == "replay"
    assert seen.json["title"] == "Step 0 again: the gradient of 'logits' is the first that is not finite"
    text = onnxqat("replay", "out.onnx.black_box", "model.qdq.onnx")
    assert text.status == 0
    assert "not finite" in text.out
    wrong = onnxqat("replay", "nowhere", "model.qdq.onnx")
    assert wrong.status == 2
    assert "checkpoint-mismatch" in wrong.err


@pytest.mark.parametrize(
    "options",
    [("--precision", "int4"), ("--accumulate", "0"), ("--compile-backend", "nonsense"), ("--tensorboard",)],
)
def test_what_is_refused(options: tuple[str, ...], qdq: Path, onnxqat: Run) -> None:
    failed = onnxqat(*TRAIN, "--max-steps", "1", *options)
    assert failed.status == 2
    assert "option-invalid" in failed.err


def test_what_a_run_is_told_about(qdq: Path, onnxqat: Run) -> None:
    """Its length before it is over, the score before and after, and that it was short."""
    done = onnxqat(*TRAIN, "--max-steps", "6", "--score", "top1")
    assert done.status == 0, done.err
    assert "training 6 steps, about " in done.err
    for text in ("score before", "score after", "top1 of ", "samples held out of training", "too few steps"):
        assert text in done.out, text
    told = onnxqat(*TRAIN, "--max-steps", "6", "--json")
    assert told.err == ""
    assert {"start_score", "best_score", "helped"} <= set(told.json["figures"])
