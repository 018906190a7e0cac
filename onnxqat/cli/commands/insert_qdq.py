"""``onnxqat insert-qdq``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxqat.cli import _options


def run(
    model: Annotated[Path, typer.Argument(help="Float ONNX file.")],
    backend: Annotated[str, typer.Option(help="Backend table: a name, or a YAML file.")] = "onnxruntime-cpu",
    calibration: Annotated[
        str | None, typer.Option("--calibration", "-c", help=_options.DATA_HELP, show_default=False)
    ] = None,
    preprocess: _options.PreprocessLine = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [MODEL.qdq.onnx].")] = None,
    batch_size: _options.BatchSize = 32,
    limit: _options.Limit = None,
    exclude: Annotated[list[str], typer.Option(help="Node or tensor name or glob to leave in float.")] = [],  # noqa: B006
    include: Annotated[list[str], typer.Option(help="Quantize only nodes that match.")] = [],  # noqa: B006
    exclude_op: Annotated[list[str], typer.Option(help="Operator type to leave in float.")] = [],  # noqa: B006
    bits: Annotated[str | None, typer.Option(help="Widths W,A of weights and activations: 2 to 8, or 16.")] = None,
    per_channel: Annotated[
        bool | None, typer.Option("--per-channel/--per-tensor", help="Scales of weights.", show_default=False)
    ] = None,
    observer: Annotated[str | None, typer.Option(help="Range observer: minmax, percentile, entropy or mse.")] = None,
    activation_type: Annotated[
        str | None, typer.Option(help="int8, uint8, int16, uint16, int8-symmetric or int16-symmetric.")
    ] = None,
    reduce_range: Annotated[
        bool | None,
        typer.Option("--reduce-range/--full-range", help="8-bit weights in -64..63, or all codes.", show_default=False),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Restrict scales so that torch and onnxruntime give the same bits.")
    ] = False,
    scale_bits: Annotated[
        str | None, typer.Option(help="Significant bits W,A of scales at 8 bits; 24,24 leaves them free.")
    ] = None,
    first_last_bits: Annotated[
        int | None, typer.Option(help="Width of the first and last weighted layers; 0 leaves them in float.")
    ] = None,
    rounding: Annotated[
        str, typer.Option(help="Of convolution weights: nearest, or compensated on the calibration data.")
    ] = "nearest",
    random_data: _options.RandomData = False,
    replace: Annotated[bool, typer.Option("--replace", help="Strip quantizers that the model already has.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep such quantizers, and add what is missing.")] = False,
    simplify: Annotated[bool, typer.Option("--simplify", help="Run onnxsim first, checked.")] = False,
    equalize: Annotated[
        bool, typer.Option("--equalize/--no-equalize", help="Bring unlike channels in front of a SiLU to one size.")
    ] = True,
    explain: Annotated[bool, typer.Option("--explain", help="Print the rule behind every decision.")] = False,
    html: _options.Html = None,
    as_json: _options.Json = False,
) -> None:
    """Place and calibrate Q/DQ pairs by a backend's rules.

    Example: onnxqat insert-qdq model.onnx --backend onnxruntime-cpu --calibration images/ -o model.qdq.onnx
    """
    from onnxqat.backends.selection import Overrides
    from onnxqat.cli import _output
    from onnxqat.insert import insert_qdq
    from onnxqat.report import build

    weight_bits, activation_bits = _options.parse_bits(bits)
    overrides = Overrides(
        exclude=tuple(exclude),
        include=tuple(include),
        exclude_ops=tuple(exclude_op),
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        per_channel=per_channel,
        observer=observer,
        activation_type=activation_type,
        reduce_range=reduce_range,
        exact=exact,
        scale_bits=_options.parse_pair(scale_bits, "--scale-bits"),
        first_last_bits=first_last_bits,
    )
    with _options.progress("calibrate", quiet=as_json) as progress:
        result = insert_qdq(
            model,
            backend,
            calibration=calibration,
            output=output,
            overrides=overrides,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            random_data=random_data,
            replace=replace,
            keep=keep,
            simplify=simplify,
            equalize=equalize,
            rounding=rounding,  # type: ignore[arg-type]  # insert_qdq refuses others by name
            progress=progress,
        )
    _output.show(build.from_insert(result, explain=explain, source=str(model)), as_json=as_json, html_path=html)
