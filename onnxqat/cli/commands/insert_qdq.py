"""``onnxqat insert-qdq``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option("--backend", default="onnxruntime-cpu", help="Backend table: a name, or a YAML file.")
@click.option("-c", "--calibration", help=_options.DATA_HELP)
@_options.preprocess
@click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.qdq.onnx].")
@_options.batch_size
@_options.limit
@click.option("--exclude", multiple=True, help="Node or tensor name or glob to leave in float.")
@click.option("--include", multiple=True, help="Quantize only nodes that match.")
@click.option("--exclude-op", multiple=True, help="Operator type to leave in float.")
@click.option("--bits", help="Widths W,A of weights and activations: 2 to 8, or 16.")
@click.option("--bits-of", multiple=True, help="Widths of some nodes: PATTERN=W,A, pattern as in --exclude.")
@click.option("--per-channel/--per-tensor", default=None, help="Scales of weights.")
@click.option("--observer", help="Range observer: minmax, percentile, entropy, mse, ema-minmax, ...")
@click.option("--activation-type", help="int8, uint8, int16, uint16, int8-symmetric or int16-symmetric.")
@click.option("--reduce-range/--full-range", default=None, help="8-bit weights in -64..63, or all codes.")
@click.option("--exact", is_flag=True, help="Restrict scales so that torch and onnxruntime give the same bits.")
@click.option("--scale-bits", help="Significant bits W,A of scales at 8 bits; 24,24 leaves them free.")
@click.option(
    "--first-last-bits", type=int, help="Width of the first and last weighted layers; 0 leaves them in float."
)
@click.option(
    "--rounding", default="nearest", help="Of convolution weights: nearest, or compensated on the calibration data."
)
@click.option("--batch-norm", default="fold", help="Fold it into the weights, or keep it, to be trained.")
@_options.keep_io_types
@_options.random_data
@click.option("--replace", is_flag=True, help="Strip quantizers that the model already has.")
@click.option("--keep", is_flag=True, help="Keep such quantizers, and add what is missing.")
@click.option("--simplify", is_flag=True, help="Run onnxsim first, checked.")
@click.option("--equalize/--no-equalize", default=True, help="Bring unlike channels in front of a SiLU to one size.")
@click.option("--explain", is_flag=True, help="Print the rule behind every decision.")
@_options.html
@_options.as_json
def run(
    model: Path,
    backend: str,
    calibration: str | None,
    preprocess: str | None,
    output: Path | None,
    batch_size: int,
    limit: int | None,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    exclude_op: tuple[str, ...],
    bits: str | None,
    bits_of: tuple[str, ...],
    per_channel: bool | None,
    observer: str | None,
    activation_type: str | None,
    reduce_range: bool | None,
    exact: bool,
    scale_bits: str | None,
    first_last_bits: int | None,
    rounding: str,
    batch_norm: str,
    keep_io_types: bool,
    random_data: bool,
    replace: bool,
    keep: bool,
    simplify: bool,
    equalize: bool,
    explain: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Place and calibrate Q/DQ pairs by a backend's rules.

    MODEL is a float ONNX file.

    Example: onnxqat insert-qdq model.onnx --backend onnxruntime-cpu --calibration images/ -o model.qdq.onnx
    """
    from onnxqat.backends.selection import Overrides
    from onnxqat.cli import _output
    from onnxqat.insert import insert_qdq
    from onnxqat.report import build

    weight_bits, activation_bits = _options.parse_bits(bits)
    overrides = Overrides(
        exclude=exclude,
        include=include,
        exclude_ops=exclude_op,
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        per_channel=per_channel,
        observer=observer,
        activation_type=activation_type,
        reduce_range=reduce_range,
        exact=exact,
        scale_bits=_options.parse_pair(scale_bits, "--scale-bits"),
        first_last_bits=first_last_bits,
        node_bits=_options.parse_bits_of(bits_of),
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
            batch_norm=batch_norm,  # type: ignore[arg-type]
            keep_io_types=keep_io_types,
            progress=progress,
        )
    _output.show(build.from_insert(result, explain=explain, source=str(model)), as_json=as_json, html_path=html)
