"""``onnxqat insert-qdq``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from onnxqat.cli import _config, _headings, _options, _report_page

if TYPE_CHECKING:
    from onnxqat.placement.node_rules import NodeRule


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under(
    "Target",
    click.option("--backend", default="onnxruntime-cpu", help="Backend table of the target: a name, or a YAML file."),
)
@_headings.under(
    "Calibration data",
    click.option("-c", "--calibration", "--data", "calibration", help=_options.DATA_HELP),
    _options.preprocess,
    _options.largest_batch,
    _options.limit,
    _options.random_data,
)
@_headings.under("Configuration", *_config.options)
@_headings.under(
    "Nodes",
    _options.exclude,
    _options.include,
    _options.exclude_op,
    click.option("--replace", is_flag=True, help="Strip quantizers that the model already has."),
    click.option("--keep", is_flag=True, help="Keep quantizers that the model already has, and add what is missing."),
)
@_headings.under(
    "Types and widths",
    _options.bits,
    click.option(
        "--bits-of",
        multiple=True,
        metavar="PATTERN=W,A",
        help="Bit widths of the nodes that match, as in 'head/*=8,16'; repeat it.",
    ),
    click.option(
        "--weight-only",
        type=click.Choice(["int4", "uint4", "int8", "uint8"]),
        help="Quantize weights alone, in this type; the unsigned ones have a zero point.",
    ),
    click.option(
        "--block-size",
        type=int,
        metavar="N",
        help="Weights that share a scale along the summed axis; 0: one scale for each channel [the backend's].",
    ),
    click.option(
        "--activations",
        type=click.Choice(["static", "dynamic"]),
        help="Scales of activations: from calibration data, or from each tensor when the model runs [the backend's].",
    ),
    click.option(
        "--first-last-bits",
        type=int,
        metavar="BITS",
        help="Bit width of the first and last layers with weights: 2 to 8, or 16; 0 leaves them in float [as the others].",
    ),
    click.option(
        "--activation-type",
        metavar="TYPE",
        help="Type of activations: int8, uint8, int16, uint16, int8-symmetric or int16-symmetric [the backend's].",
    ),
    click.option(
        "--per-channel/--per-tensor",
        default=None,
        help="Give weights one scale per channel, or one for the whole tensor [the backend's].",
    ),
)
@_headings.under(
    "Ranges and scales",
    click.option(
        "--observer",
        help="Range observer: auto, minmax, percentile, entropy, mse, ..., or a Python file [the backend's].",
    ),
    click.option("--activation-observer", help="Range observer of activations, instead of that of --observer."),
    click.option("--weight-observer", help="Range observer of weights, instead of that of --observer."),
    click.option(
        "--percentile", type=float, metavar="P", help="Percentage of the values of an activation that its range covers."
    ),
    click.option(
        "--reduce-range/--full-range",
        default=None,
        help="Keep 8-bit weights within -64..63, or let them use all codes [the backend's].",
    ),
    click.option(
        "--safe-range",
        is_flag=True,
        help="Let 8-bit weights use all codes, with larger scales where products of any inputs could saturate without VNNI.",
    ),
    click.option(
        "--encodings",
        type=_options.PATH,
        multiple=True,
        help="File of scales or ranges that the tensors in it keep: AIMET, TensorQuantOverrides, a TensorRT cache or MQBench; "
        "repeat it.",
    ),
    click.option("--exact", is_flag=True, help="Restrict scales so that torch and onnxruntime give the same bits."),
    click.option(
        "--scale-bits",
        metavar="W,A",
        help="Significant bits of the scales of weights and activations at 8 bits, 1 to 24; 24 leaves them free.",
    ),
)
@_headings.under(
    "Accuracy",
    click.option(
        "--rounding",
        metavar="[auto|nearest|gptq|compensated]",
        default="auto",
        help="Rounding of weights: nearest, or gptq (also called compensated), so that errors on the calibration data cancel; "
        "auto takes what helps.",
    ),
    click.option(
        "--bias-correction/--no-bias-correction",
        default=None,
        help="Let biases take up the mean error of their channels, or leave them [where weights are rounded on the data].",
    ),
    click.option(
        "--equalize",
        is_flag=False,
        flag_value="auto",
        multiple=True,
        metavar="[NAMES]",
        help="Equalizations of channels of unlike size, with commas, or auto, which keeps what helps, or none [the backend's].",
    ),
    click.option("--no-equalize", is_flag=True, help="Leave channels as they are, as --equalize none."),
    click.option(
        "--guard/--no-guard",
        default=True,
        help="Relieve an output below 20 dB of the quantizers that cost it, or leave it.",
    ),
    click.option(
        "--fast",
        is_flag=True,
        help="Leave out comparing ranges and equalizations at the outputs and rounding weights on the data.",
    ),
)
@_headings.under(
    "Model",
    click.option(
        "--batch-norm",
        type=click.Choice(["auto", "fold", "keep"]),
        default="auto",
        help="Fold BatchNormalization into the weights, or keep it, to be trained; auto keeps it up to 3 bits.",
    ),
    click.option(
        "--pass",
        "passes",
        multiple=True,
        metavar="PASS",
        help="Pass of your own that prepares the model: NAME or FILE, with :before=NAME or :after=NAME; repeat it.",
    ),
    click.option("--simplify", is_flag=True, help="Run onnxsim first, and check that outputs stay the same."),
    _options.keep_io_types,
)
@_headings.under(
    "Operators in integers",
    click.option(
        "--integer",
        metavar="NAMES",
        help="Operators that become integer functions, as softmax,gelu, or all [the backend's].",
    ),
    click.option(
        "--lut",
        type=int,
        metavar="N",
        help="Segments of the tables of 16-bit codes, a power of two from 16 to 32768 [1024]; 8-bit codes have 256 entries.",
    ),
)
@_headings.under(
    "Accumulators",
    click.option(
        "--accumulator-bits",
        type=int,
        metavar="N",
        help="Bit width that sums of products stay within for any input, 8 to 32, as in 16 [the backend's, or none].",
    ),
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.qdq.onnx]."),
    click.option("--explain", is_flag=True, help="Print the rule behind every decision."),
    _options.html,
    _report_page.option,
    _options.as_json,
)
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
    activation_observer: str | None,
    weight_observer: str | None,
    percentile: float | None,
    activation_type: str | None,
    reduce_range: bool | None,
    safe_range: bool,
    encodings: tuple[Path, ...],
    exact: bool,
    scale_bits: str | None,
    weight_only: str | None,
    block_size: int | None,
    activations: str | None,
    first_last_bits: int | None,
    rounding: str,
    bias_correction: bool | None,
    fast: bool,
    batch_norm: str,
    keep_io_types: bool,
    passes: tuple[str, ...],
    integer: str | None,
    lut: int | None,
    accumulator_bits: int | None,
    random_data: bool,
    replace: bool,
    keep: bool,
    simplify: bool,
    equalize: tuple[str, ...],
    no_equalize: bool,
    guard: bool,
    explain: bool,
    html: Path | None,
    page: Path | None,
    as_json: bool,
    rules: tuple[NodeRule, ...],
    save_config: Path | None,
) -> None:
    """Place and calibrate Q/DQ pairs by a backend's rules.

    MODEL is a float ONNX file.

    Example: onnxqat insert-qdq model.onnx --backend onnxruntime-cpu --calibration images/ -o model.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.insertion.insert import insert_qdq
    from onnxqat.placement.table_overrides import Overrides
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
        activation_observer=_options.percentile_observer(activation_observer, percentile),
        weight_observer=weight_observer,
        activation_type=activation_type,
        reduce_range=reduce_range,
        safe_range=safe_range,
        exact=exact,
        scale_bits=_options.parse_pair(scale_bits, "--scale-bits"),
        weight_only=weight_only,
        block_size=block_size,
        activations=activations,
        first_last_bits=first_last_bits,
        node_bits=_options.parse_bits_of(bits_of),
        encodings=tuple(map(str, encodings)),
        rules=rules,
        integer=integer,
        lut=None if lut is None else _bits_of(lut),
        accumulator_bits=accumulator_bits,
    )
    with _options.progress("calibrate", quiet=as_json) as progress:
        result = insert_qdq(
            model,
            backend,
            data=calibration,
            output=output,
            overrides=overrides,
            preprocess=preprocess,
            batch_size=batch_size,
            limit=limit,
            random_data=random_data,
            replace=replace,
            keep=keep,
            simplify=simplify,
            equalize=(*equalize, *["none"] * no_equalize) or True,
            rounding=cast(Any, rounding),  # one of its names
            bias_correction=bias_correction,
            batch_norm=cast(Any, batch_norm),
            keep_io_types=keep_io_types,
            passes=passes,
            guard=guard,
            fast=fast,
            progress=progress,
        )
    _config.save(save_config, rules, result.plan)
    found = build.from_insert(result, explain=explain, source=str(model), data=calibration, preprocess=preprocess)
    report = _report_page.write(page, result.model, found, float_model=model, data=calibration)
    _output.show(report, as_json=as_json, html_path=html)


def _bits_of(segments: int) -> int:
    """Return `k` of ``2**k`` segments; 0, which is no size of a table, for other numbers."""
    return segments.bit_length() - 1 if segments > 0 and segments.bit_count() == 1 else 0
