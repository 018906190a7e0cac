"""``onnxqat simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onnxqat.cli import _headings, _options


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under("Data", _options.samples(32))
@_headings.under(
    "Arithmetic",
    click.option(
        "--arithmetic",
        default="onnxruntime",
        help="Arithmetic of the kernels: onnxruntime, fixed-point, litert or shift.",
    ),
    click.option(
        "--accumulator",
        type=_options.COUNT,
        default=32,
        help="Bit width of the accumulators of layers: 16, 24 or 32; 48 for 16-bit activations.",
    ),
    click.option(
        "--overflow",
        type=click.Choice(["wrap", "saturate", "error"]),
        default="wrap",
        help="Behaviour of a sum that needs more bits than its accumulator.",
    ),
    click.option(
        "--rounding", help="Rounding of results: half-even, half-up, half-away or truncate [the arithmetic's own]."
    ),
    click.option("--engine", default="torch", help="Engine that computes: torch, or numpy with the same bits, slower."),
)
@_headings.under(
    "Output",
    click.option("--codes", type=_options.OUTPUT, help="Write the codes of each tensor to this .npz file."),
    _options.html,
    _options.as_json,
)
def run(
    model: Path,
    samples: dict[str, Any],
    arithmetic: str,
    accumulator: int,
    overflow: str,
    rounding: str | None,
    engine: str,
    codes: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Execute a QDQ model in integers as a chip does, and compare it with onnxruntime.

    MODEL is an ONNX file with Q/DQ pairs. With arithmetic onnxruntime, every output is that of its default session.

    Example: onnxqat simulate model.qdq.onnx --data images/ --arithmetic fixed-point --accumulator 24 --overflow error
    """
    _options.need("torch", "train")
    from onnxqat.arithmetic import Accumulator
    from onnxqat.cli import _output
    from onnxqat.report import build_simulate
    from onnxqat.validation.simulate import simulate

    with _options.progress("simulate", quiet=as_json) as progress:
        found = simulate(
            model,
            arithmetic=arithmetic,
            accumulator=Accumulator(accumulator, overflow),  # type: ignore[arg-type]
            rounding=rounding,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            **samples,
            codes=codes,
            progress=progress,
        )
    _output.show(build_simulate.from_simulate(found), as_json=as_json, html_path=html)
