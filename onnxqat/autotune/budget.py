"""Time that a run may take, and what it has taken."""

from __future__ import annotations

import re
import time

from onnxqat.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse(text: str) -> float:
    """Seconds of ``90s``, ``10m``, ``1.5h`` or a plain number of seconds.

    Raises:
        UsageError: ``option-invalid``.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError("option-invalid", f"--budget {text!r} is no length of time", hint="for example 90s, 10m or 1h")
    return float(found[1]) * _UNITS[found[2] or "s"]


class Budget:
    """Counts from its making.

    Attributes:
        seconds: what may be taken, wall time.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise UsageError("option-invalid", f"a budget of {seconds} seconds; it must be above 0")
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that remain; negative once they are overdrawn."""
        return self.seconds - self.spent
