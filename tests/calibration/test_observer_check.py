"""``extensions check`` of observers names the promise that one breaks, and each of them can be broken."""

from pathlib import Path

import pytest

from onnxqat.calibration.observers import _check

HEAD = """
import numpy as np
from onnxqat.calibration.observers import minmax

class Observer(minmax.Observer):
"""
BROKEN = {
    "range": """
    def _clipped(self):
        return self.high, self.low
""",
    "range ": """
    def _clipped(self):
        return self.low - 1, self.high
""",
    "qparams": """
    def qparams(self):
        found = super().qparams()
        found.scale[...] = -found.scale
        return found
""",
    "constants": """
    def _clipped(self):
        middle = (self.low + self.high) / 2
        with np.errstate(all="ignore"):
            return self.low, middle + (self.high - self.low) / (self.high - self.low) * (self.high - middle)
""",
    "types": """
    def update(self, x):
        super().update(np.asarray(x) / 2 if np.asarray(x).dtype == np.float16 else x)
""",
    "no data": """
    def update(self, x):
        super().update(x if np.size(x) else np.full((1, 3, 1), 100, np.float32))
""",
    "non-finite": """
    def update(self, x):
        super().update(np.nan_to_num(x, nan=0, posinf=0, neginf=0) if np.ndim(x) else x)
""",
    "batches": """
    last = None
    def _accumulate(self, rows):
        self.last = rows.min(axis=1), rows.max(axis=1)
    def _clipped(self):
        return self.last if self.last is not None else (self.low, self.high)
""",
    "merge": """
    def merge(self, other):
        super().merge(other)
        other.low = other.low / 2
""",
    "copy": """
    def __deepcopy__(self, memo):
        return self
""",
    "memory": """
    seen = ()
    def _accumulate(self, rows):
        self.seen = (*self.seen, rows)
""",
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise(promise: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + BROKEN[promise], encoding="utf-8")
    found = {f.name for f in _check.check(str(path)).findings if not f.passed and f.message}
    assert promise.strip() in found


@pytest.mark.parametrize(
    "name", ["absmax", "clip-std", "ema-quantile", "isotone", "lsq", "lsq-plus", "minmax", "percentile 99.9"]
)
def test_observers_of_the_package(name: str) -> None:
    assert [f for f in _check.check(name).findings if not f.passed] == []


def test_an_average_over_batches_says_so(tmp_path: Path) -> None:
    found = {f.name: f for f in _check.check("ema-minmax").findings}
    assert found["batches"].passed
    assert "depends_on_batches" in found["batches"].message
