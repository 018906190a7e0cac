"""The data model of the model report, and its JSON schema: what page, terminal and notebook show."""

from __future__ import annotations

import json
import math
from typing import Any, Literal, TypeAlias

import pydantic

SCHEMA = 1
"""Version of the schema; a new key leaves it as it is, another meaning of one does not."""

Runs: TypeAlias = "Literal['integers', 'moved', 'float', 'rejected', 'absorbed']"
Decibel: TypeAlias = "float | Literal['exact'] | None"
"""A ratio of signal to noise: ``exact`` where there is no noise, None where nothing was measured."""


class Part(pydantic.BaseModel):
    """A part of the report: its keys are these and no others."""

    model_config = pydantic.ConfigDict(extra="forbid")


class Values(Part):
    """Values that a quantizer rounds, as they were seen in the data, or those of a weight.

    Attributes:
        low: smallest value.
        high: largest value.
        counts: numbers of values in bins of equal width from `low` to `high`.
        first_code: smallest code of the grid.
        codes_per_bin: codes that one entry of `code_counts` stands for.
        code_counts: numbers of values by code, saturated ones among those of the first and the last; empty for grids of
            small floats and of more than 16 bits.
        saturated: share of the values outside of the grid, 0..1.
        unused_codes: codes that no value has; None where codes are not counted.
        codes: number of codes; None where they are not counted.
        dead_channels: channels that are zero in all samples.
        channels: number of channels.
        values: number of values.
        own_db: signal to noise of this rounding alone.
    """

    low: float
    high: float
    counts: list[int]
    first_code: int
    codes_per_bin: int
    code_counts: list[int]
    saturated: float
    unused_codes: int | None
    codes: int | None
    dead_channels: int
    channels: int
    values: int
    own_db: Decibel = None


class Parameters(Part):
    """Parameters of a quantizer at one point of time.

    Attributes:
        scale: one per tensor, channel or block; evenly spread ones where there are more than `shown`.
        zero_point: the same of zero points; a single one where all are equal.
        shown: number of scales in `scale`.
        total: number of scales of the quantizer.
        scale_low: smallest scale.
        scale_high: largest scale.
        clip_low: smallest value that the grid holds, of all channels.
        clip_high: largest value that the grid holds, of all channels.
        values: None where no data were given.
    """

    scale: list[float]
    zero_point: list[int]
    shown: int
    total: int
    scale_low: float
    scale_high: float
    clip_low: float
    clip_high: float
    values: Values | None = None


class Cost(Part):
    """Cost of a quantizer or of all that a layer reads, at the model's outputs, as ``profile`` measured it.

    Attributes:
        alone_db: signal to noise of the output with only these on.
        off_db: the same with all others on and these off.
        share: part that these have in the noise of all, 0..1, from `alone_db`: it grows with what they cost.
        alone_score: score with only these on.
    """

    alone_db: Decibel = None
    off_db: Decibel = None
    share: float | None = None
    alone_score: float | None = None


class Quantizer(Part):
    """One quantizer of the file.

    Attributes:
        tensor: the float tensor.
        role: activation, weight or bias.
        grid: type and width.
        bits: width.
        granularity: tensor, channel or blocks, with the axis.
        rule: the rule that placed it, where the file says so.
        maker: number of the node that computes the tensor; None for inputs and constants.
        readers: numbers of the nodes that read it.
        now: its parameters in the file.
        before: those of the file before training, where one was given.
        cost: None where no profile was given.
        float_db: signal to noise of the tensor against the float model, all quantizers on.
        differing_codes: codes that differ between torch and onnxruntime for the same input.
    """

    tensor: str
    role: Literal["activation", "weight", "bias"]
    grid: str
    bits: int
    granularity: str
    rule: str
    maker: int | None
    readers: list[int]
    now: Parameters
    before: Parameters | None = None
    cost: Cost | None = None
    float_db: Decibel = None
    differing_codes: int | None = None


class Kernel(Part):
    """Execution of a node on one target.

    Attributes:
        target: number of the target.
        runs: integers, moved, float, rejected or absorbed by another node.
        kernel: what the compiler calls it.
        why: why it is not on integers.
        largest_lsb: largest difference behind it from the reference, in LSB.
        microseconds: time of one run, where the compiler measures it.
    """

    target: int
    runs: Runs
    kernel: str = ""
    why: str = ""
    largest_lsb: float | None = None
    microseconds: float | None = None


class Node(Part):
    """One operator, without the QuantizeLinear and DequantizeLinear around it.

    Attributes:
        name: its name, or that of its first output.
        op: operator, with its domain unless that is ONNX's own; ``Input`` and ``Output`` for those of the graph.
        block: the block that it lies in, from outer to inner with ``/`` between them.
        tensor: its first output.
        shape: of that, where it is known.
        arithmetic: widths of weight and activations, such as W8A8; ``float``; ``fused`` with the quantized layer in front; or ``data`` for shapes and indices.
        reads: numbers of the quantizers of its inputs.
        macs: multiplications of one sample.
        multiply_bits: the same times the widths of both factors.
        weight_bytes: size of its weights at their width.
        float_db: signal to noise of its output against the float model.
        reason: why it is left in float; empty where it is not.
        cost: of all quantizers that it reads.
        kernels: how each target runs it.
    """

    name: str
    op: str
    block: str
    tensor: str
    shape: list[int | str] | None
    arithmetic: str
    reads: list[int]
    macs: int | None = None
    multiply_bits: int | None = None
    weight_bytes: int | None = None
    float_db: Decibel = None
    reason: str = ""
    cost: Cost | None = None
    kernels: list[Kernel] = []


class Variant(Part):
    """One of the models that stand side by side.

    Attributes:
        name: short name.
        file: path; empty for a model in memory.
        form: float, or how it is quantized.
        backend: table that it was made with.
        file_bytes: size of the file, with its external data.
        weight_bytes: size of all weights at their width.
        macs: multiplications of one sample.
        multiply_bits: the same times the widths of both factors.
        quantizers: number of quantizers.
        float_layers: convolutions and matrix products in float.
        output_db: signal to noise of the worst output against the float model.
        milliseconds: median time of one batch in onnxruntime on this machine.
        scores: by metric.
    """

    name: str
    file: str
    form: str
    backend: str
    file_bytes: int | None
    weight_bytes: int
    macs: int
    multiply_bits: int
    quantizers: int
    float_layers: int
    output_db: Decibel = None
    milliseconds: float | None = None
    scores: dict[str, float] = {}


class Judgement(Part):
    """One verdict with its reason.

    Attributes:
        name: parity, accuracy or deployment.
        status: green, amber or red.
        reason: in a sentence.
        remedy: the command to run, where there is one.
        source: which result says so.
    """

    name: Literal["parity", "accuracy", "deployment"]
    status: Literal["green", "amber", "red"]
    reason: str
    remedy: str = ""
    source: str = ""


class Curve(Part):
    """Points of one line.

    Attributes:
        name: legend.
        x: steps, or epochs.
        y: values; None where one is missing.
    """

    name: str
    x: list[float]
    y: list[float | None]


class Training(Part):
    """Course of a training run, from its ``log.jsonl``.

    Attributes:
        loss: by step, and the mean of each epoch.
        score: by epoch.
        rates: learning rate of each parameter group.
        gradient_norm: by step.
        scales: scale of each quantizer by epoch, over that of the first epoch; the mean of several channels.
        oscillation: share of the watched weights whose code turned back, by epoch.
    """

    loss: list[Curve] = []
    score: list[Curve] = []
    rates: list[Curve] = []
    gradient_norm: list[Curve] = []
    scales: list[Curve] = []
    oscillation: list[Curve] = []


class FrontPoint(Part):
    """One attempt of a search.

    Attributes:
        name: how it was made.
        x: cost.
        y: quality.
        chosen: whether it is the result.
        front: whether no other is better in both.
    """

    name: str
    x: float
    y: float
    chosen: bool = False
    front: bool = False


class Front(Part):
    """Attempts of ``auto`` or ``mixed-precision``, as cost against quality.

    Attributes:
        title: what was searched.
        x_label: unit of the cost; less is better.
        y_label: unit of the quality.
        y_better: whether more or less of it is better.
        points: all of them.
    """

    title: str
    x_label: str
    y_label: str
    y_better: Literal["more", "less"]
    points: list[FrontPoint]


class Target(Part):
    """One compiler that ran the model.

    Attributes:
        name: backend and compiler.
        integer: heavy nodes on integers.
        total: heavy nodes.
        largest_lsb: largest difference of an output from the reference, in LSB.
        milliseconds: time of one run, where it was measured.
        status: the worst of its verdicts; empty where there is none.
        reason: the line behind it.
    """

    name: str
    integer: int | None = None
    total: int | None = None
    largest_lsb: float | None = None
    milliseconds: float | None = None
    status: Literal["", "green", "amber", "red"] = ""
    reason: str = ""


class ModelReport(Part):
    """All of it. Numbers of nodes, quantizers and targets are positions in the lists.

    Attributes:
        schema_version: see :data:`SCHEMA`.
        made_by: version of onnxqat.
        title: file that is reported on.
        graph: name of its main graph.
        data: what was run through it; empty where nothing was.
        samples: number of samples.
        judgements: verdicts of the results that were given.
        variants: the model itself first, then those it is compared with.
        nodes: in graph order.
        edges: producer, consumer, and the quantizer between them or -1.
        quantizers: in graph order.
        targets: compilers.
        training: None where no log was given.
        fronts: one per search.
        curve: signal to noise of the output with the costliest in float, of ``profile``.
        sources: results that were joined.
        remarks: what is worth knowing.
    """

    schema_version: int = SCHEMA
    made_by: str
    title: str
    graph: str = ""
    data: str = ""
    samples: int = 0
    judgements: list[Judgement] = []
    variants: list[Variant]
    nodes: list[Node]
    edges: list[tuple[int, int, int]]
    quantizers: list[Quantizer]
    targets: list[Target] = []
    training: Training | None = None
    fronts: list[Front] = []
    curve: Curve | None = None
    sources: list[str] = []
    remarks: list[str] = []


def decibel(value: float | None) -> Decibel:
    """Return `value` as the report writes it, to a thousandth; None where it is undefined or infinitely bad."""
    if value is None or math.isnan(value) or value == -math.inf:
        return None
    return "exact" if value == math.inf else round(value, 3)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of :class:`ModelReport`, draft 2020-12."""
    found = ModelReport.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def schema_text() -> str:
    """Return :func:`json_schema` as the text of a file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
