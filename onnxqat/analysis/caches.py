"""The cache of a decoder: inputs that hold keys and values so far, and the outputs that take their place in the next step."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PAST = re.compile(r"past(_key_values)?")


def is_past(name: str) -> bool:
    """Check whether the input `name` is a part of the cache, as optimum and onnxruntime-genai name it."""
    return _PAST.match(name) is not None


def present_of(name: str, outputs: Iterable[str]) -> str | None:
    """Return the output that belongs to an input of the cache: ``present.0.key`` for ``past_key_values.0.key``."""
    rest = _PAST.sub("", name, count=1)
    known = set(outputs)
    return next((present for word in ("present", "present_key_values") if (present := word + rest) in known), None)
