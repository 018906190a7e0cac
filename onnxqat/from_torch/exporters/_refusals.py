"""The errors of both exporters."""

from __future__ import annotations

from onnxqat.errors import UnsupportedError


def no_form(exporter: str, operator: str, path: str, *, other: str) -> UnsupportedError:
    """The exporter knows no ONNX operators for a torch `operator`, which the submodule `path` calls."""
    where = f", which {path} calls" if path else ""
    return UnsupportedError(
        "export-failed",
        f"torch's exporter {exporter!r} has no ONNX form of {operator}{where}",
        hint=f"replace it by other operators, or try exporter {other!r} or another opset",
    )


def failed(exporter: str, text: str, place: str = "") -> UnsupportedError:
    """Anything else, with the first line of torch's message."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return UnsupportedError(
        "export-failed",
        f"torch's exporter {exporter!r} failed{place}: {first[:300]}",
        hint="make the part that it names simpler, or leave it out of the exported module",
    )
