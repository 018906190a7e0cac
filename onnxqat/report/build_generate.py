"""The report of ``generate``."""

from __future__ import annotations

from pathlib import Path

from onnxqat.generation.generate import Comparison
from onnxqat.report.model import Column, Figure, Report, Table
from onnxqat.shell import command

SHOWN = 12  # tokens of a sequence in a row


def from_comparison(found: Comparison, model: str, other: str | None, samples: Path | None) -> Report:
    """Build the report of ``generate``.

    Args:
        found: of :func:`onnxqat.generation.generate.generate`.
        model: its file.
        other: file of the second model.
        samples: folder that was written.
    """
    first, second = found.tokens
    figures = [
        Figure("sequences", "sequences", len(first), "count"),
        Figure("tokens", "new tokens of each", first.shape[1], "count"),
        Figure("perplexity", "perplexity of the sequences", found.perplexity[0], "number"),
    ]
    if second is not None:
        figures += [
            Figure("perplexity_other", "the same of the second model", found.perplexity[1], "number"),
            Figure("equal", "sequences continued alike", sum(n == first.shape[1] for n in found.same), "count"),
            Figure("shortest", "equal tokens, fewest of a sequence", min(found.same), "count"),
        ]
    return Report(
        kind="generate",
        title=f"Greedy tokens of {model}" + (f" and {other}" if other else ""),
        figures=tuple(figures),
        tables=(_tokens(found),),
        files=() if samples is None else (str(samples),),
        next_command=command("insert-qdq", model, calibration=samples) if samples is not None else "",
        details={"tokens": first.tolist(), "tokens_other": None if second is None else second.tolist()},
    )


def _tokens(found: Comparison) -> Table:
    """Return the first tokens of each sequence, and how many of the second model's are the same."""
    first, second = found.tokens
    columns = [Column("sequence", "sequence", "count"), Column("tokens", "tokens")]
    if second is not None:
        columns += [Column("other", "tokens of the second model"), Column("same", "equal at first", "count")]
    rows = []
    for index, row in enumerate(first):
        cells: list[str | int | float | bool | None] = [index, _text(row)]
        if second is not None:
            cells += [_text(second[index]), found.same[index]]
        rows.append(tuple(cells))
    return Table("sequences", "Tokens", tuple(columns), tuple(rows))


def _text(tokens: object) -> str:
    listed = [str(token) for token in tokens]  # type: ignore[attr-defined]
    return " ".join(listed[:SHOWN]) + (" ..." if len(listed) > SHOWN else "")
