"""A part of a data source, named behind its name: ``images/#without-every-5`` and ``images/#every-5``."""

from __future__ import annotations

import dataclasses
import os
import re

from onnxqat.errors import UsageError

_PART = re.compile(r"(?P<source>.+)#(?P<others>without-)?every-(?P<share>\d+)")


@dataclasses.dataclass(frozen=True)
class Part:
    """Every `share`-th sample, counted from the `share`-th one, or with `others` all but those.

    Attributes:
        share: at least 2.
        others: see above.
    """

    share: int
    others: bool

    def __str__(self) -> str:
        return f"#{'without-' if self.others else ''}every-{self.share}"


def parse(name: str) -> tuple[str, tuple[Part, ...]]:
    """Name of the whole source, and the parts of it to take, the first one of the whole.

    A file or folder that has such a name itself is the whole source.

    Raises:
        UsageError: ``option-invalid``: every first sample.
    """
    parts: list[Part] = []
    while not os.path.exists(name) and (found := _PART.fullmatch(name)) is not None:
        part = Part(int(found["share"]), others=found["others"] is not None)
        if part.share < 2:
            raise UsageError("option-invalid", f"{name}: {part} is all or nothing", hint="for example #every-5")
        parts.insert(0, part)
        name = found["source"]
    return name, tuple(parts)
