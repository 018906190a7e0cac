"""``extensions check`` of metrics names the promise that one breaks, and each of them can be broken."""

from pathlib import Path

import pytest

from onnxqat import kinds
from onnxqat.metrics import _check
from onnxqat.metrics._score import names

HEAD = """
import numpy as np
from onnxqat.metrics import top1

class Metric(top1.Metric):
"""
BROKEN = {
    "reads": """
    def update(self, batch):
        from onnxqat.metrics._base import wrong_outputs
        raise wrong_outputs("mine", "two outputs", batch.outputs)
""",
    "number": """
    def result(self):
        return super().result() if self.answers().right.size else 0.0
""",
    "better": """
    def result(self):
        return -super().result()
""",
    "better ": """
    @staticmethod
    def drop(before, after):
        return after - before
""",
    "batches": """
    last = None
    def update(self, batch):
        self._meter = type(self._meter)()
        super().update(batch)
""",
    "non-finite": """
    def update(self, batch):
        from dataclasses import replace
        usable = np.isfinite(batch.outputs["y"].reshape(len(batch.outputs["y"]), -1)).all(axis=1)
        labels = None if batch.labels is None else batch.labels[usable]
        reference = None if batch.reference is None else {k: v[usable] for k, v in batch.reference.items()}
        outputs = {k: v[usable] for k, v in batch.outputs.items()}
        super().update(replace(batch, outputs=outputs, labels=labels, reference=reference))
""",
    "input": """
    def update(self, batch):
        super().update(batch)
        batch.outputs["y"][...] = 0
""",
    "second run": """
    runs = [0]
    def __init__(self):
        super().__init__()
        self.runs[0] += 1
    def result(self):
        return super().result() / self.runs[0]
""",
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise(promise: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + BROKEN[promise], encoding="utf-8")
    found = {f.name for f in _check.check(str(path)).findings if not f.passed and f.message}
    assert promise.strip() in found


@pytest.mark.parametrize("name", names())
def test_metrics_of_the_package(name: str) -> None:
    if name == "coco-map":
        pytest.importorskip("pycocotools")
    assert [f for f in _check.check(name).findings if not f.passed] == []


def test_a_file_is_told_by_its_class(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + "    pass\n", encoding="utf-8")
    assert kinds.kind_of(str(path)) == "metric"
