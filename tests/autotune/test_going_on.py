"""`auto` ended before it was over: the best so far is in the folder, and a later run goes on from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.autotune import moves, reconstruction, tuning
from onnxqat.autotune.attempt import Attempt, Tried
from onnxqat.autotune.journal import Journal
from onnxqat.autotune.variants import Variant
from onnxqat.errors import UsageError
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from tests.validation import tiny

BITS = Overrides(weight_bits=2, activation_bits=2)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return tiny.write(None)


def test_an_interruption_leaves_the_best_so_far(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reconstruction, "MOST", 20)
    monkeypatch.setattr(tuning.Tuning, "run", interrupted)
    given = {"data": {"image": tiny.images(40)}, "overrides": BITS, "target_drop": 0.0}
    with pytest.raises(KeyboardInterrupt):
        onnxqat.auto(model, "academic", output=tmp_path, **given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["search", "so_far.qdq.onnx"]
    assert qdq.is_quantized(io.load(tmp_path / "so_far.qdq.onnx"))


def test_a_later_run_goes_on_where_the_first_was_ended(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def ended(line: str) -> None:
        told.append(line)
        if line == "observer percentile":
            raise KeyboardInterrupt

    given = {"data": {"image": tiny.images(40)}, "overrides": BITS, "target_drop": -1.0, "output": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        onnxqat.auto(model, "academic", progress=ended, **given)
    best = min((a.read_bytes() for a in (tmp_path / "search").glob("*.onnx")), key=len)
    assert best
    assert told[1:] == ["calibrated", "observer mse", "observer percentile"]
    monkeypatch.setattr(moves, "ORDER", moves.ORDER[:3])
    after: list[str] = []
    result = onnxqat.auto(model, "academic", progress=after.append, **given)
    assert after[1] == "observer percentile"
    assert [a.name for a in result.attempts][:3] == ["calibrated", "observer mse", "observer percentile"]
    assert any("2 attempts are those of an earlier run" in r.message for r in result.remarks)
    assert not (tmp_path / "so_far.qdq.onnx").exists()
    # Another target is the same search, other choices are not, and neither is one that is to begin anew.
    again = onnxqat.auto(model, "academic", **{**given, "target_drop": 1e9})
    assert again.attempts == result.attempts
    other = {**given, "overrides": dataclasses.replace(BITS, weight_bits=3), "target_drop": 1e9}
    assert len(onnxqat.auto(model, "academic", **other).attempts) == 1
    assert len(onnxqat.auto(model, "academic", restart=True, **{**given, "target_drop": 1e9}).attempts) == 1


@pytest.mark.parametrize(
    "damage", [lambda text: "", lambda text: "[]", lambda text: '{"key": 1}', lambda text: text[:-20]]
)
def test_a_record_that_is_none_is_left(tmp_path: Path, damage: Callable[[str], str]) -> None:
    record = Journal(tmp_path, "a key", ("", ""))
    record.path(0).write_bytes(b"of a run that was killed before its first attempt ended")
    assert Journal(tmp_path, "a key", ("", "")).read() == []
    made = [Tried(Attempt("calibrated", 1.0, 2.0), record.path(0), Variant("calibrated", BITS))]
    record.write(made, needed=())
    assert record.read() == made
    assert Journal(tmp_path, "another key", ("", "")).read() == []
    file = tmp_path / "search" / "search.json"
    file.write_text(damage(file.read_text()))
    assert record.read() == []


def test_a_folder_that_holds_something_else_is_not_touched(model: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "0.qdq.onnx").write_bytes(b"mine")
    with pytest.raises(UsageError, match="are not touched"):
        onnxqat.auto(model, data={"image": tiny.images(40)}, output=tmp_path, target_drop=1e9)
    assert (tmp_path / "search" / "0.qdq.onnx").read_bytes() == b"mine"


def test_the_best_of_a_training_that_was_ended_is_not_lost(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later runs that do not come as far end with it."""
    drops = [-0.3, -0.5, -0.2]

    def improved(self: tuning.Tuning, start: Path, *_: Any, **__: Any) -> None:
        better = io.load(start)
        assert isinstance(better, ir.Model)
        better.doc_string = "the best"
        self.better(Path(io.save(better, tmp_path / "better.onnx")), drops.pop(), 40)
        (tmp_path / "better.onnx").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(moves, "ORDER", ("calibrate", "finetune"))
    given = {"data": {"image": tiny.images(40)}, "overrides": BITS, "target_drop": -1.0, "output": tmp_path}
    monkeypatch.setattr(tuning.Tuning, "run", improved)
    for _ in range(len(drops)):
        with pytest.raises(KeyboardInterrupt):
            onnxqat.auto(model, "academic", **given)
    monkeypatch.setattr(tuning.Tuning, "run", lambda *_, **__: tuning.Tuned(False))
    result = onnxqat.auto(model, "academic", **given)
    assert (result.chosen, result.drop) == ("unfinished: fine-tuned", -0.5)
    assert "--max-steps 40" in result.commands[-1]
    assert io.load(result.model).doc_string == "the best"
    assert "onnxqat.search" not in io.load(result.model).metadata_props


def test_files_that_only_begin_like_those_of_a_run_stay(tmp_path: Path) -> None:
    record = Journal(tmp_path, "a key", ("", ""))
    record.write((), ())
    other, old = (tmp_path / "search" / f"unfinished{part}.qdq.onnx" for part in ("_mine", "7"))
    other.touch()
    old.touch()
    record.write((), ())
    assert other.exists()
    assert not old.exists()


def test_a_run_that_is_timed_is_no_attempt(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length says nothing of how its file is made."""

    def timed(self: tuning.Tuning, start: Path, *_: Any, **__: Any) -> None:
        self.better(start, -0.5, 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(moves, "ORDER", ("calibrate", "finetune"))
    monkeypatch.setattr(tuning.Tuning, "run", timed)
    given = {"data": {"image": tiny.images(40)}, "overrides": BITS, "target_drop": -1.0, "output": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        onnxqat.auto(model, "academic", **given)
    monkeypatch.setattr(tuning.Tuning, "run", lambda *_, **__: tuning.Tuned(False))
    assert onnxqat.auto(model, "academic", **given).chosen == "calibrated"
