"""One search for each of several backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxqat.autotune.auto import AutoResult, auto
from onnxqat.errors import UsageError
from onnxqat.graph import io


def auto_several(
    model: io.ModelSource,
    backends: Sequence[str],
    *,
    output: str | os.PathLike[str],
    budget: float = 600.0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> tuple[AutoResult, ...]:
    """Run :func:`onnxqat.auto` for each backend, one after the other.

    Args:
        model: float model.
        backends: names of backend tables, or paths of some.
        output: folder; with a folder in it for each backend, where there are several.
        budget: seconds of wall time for all of them together; what one leaves is the next ones'.
        progress: called with a line at the beginning of each phase.
        options: of :func:`onnxqat.auto`.

    Raises:
        UsageError: ``option-invalid``: a backend that is there twice; and what :func:`onnxqat.auto` raises.
    """
    names = [Path(backend).stem for backend in backends]
    if len(set(names)) < len(names):
        raise UsageError("option-invalid", f"a backend is named twice: {', '.join(names)}", hint="name each once")
    left, results, alone = budget, list[AutoResult](), len(names) == 1
    for place, (name, backend) in enumerate(zip(names, backends, strict=True)):

        def tell(line: str, name: str = name) -> None:
            if progress is not None:
                progress(line if alone else f"{name}: {line}")

        share = max(left, 0.001) / (len(names) - place)
        folder = Path(output) if alone else Path(output) / name
        result = auto(model, backend, output=folder, budget=share, progress=tell, **options)
        left -= result.seconds
        results.append(result)
    return tuple(results)
