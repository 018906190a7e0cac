"""Options of ``onnxqat finetune`` about what is minimized and how fast, and the keywords that they become."""

from __future__ import annotations

import ast
from typing import Any

import click

from onnxqat.cli import _headings, _options
from onnxqat.errors import UsageError

options = _options.Group(
    "objectives",
    _headings.under(
        "Optimizer",
        click.option("--optimizer", default="adamw", help="Optimizer, a class of torch.optim: adamw, sgd, radam, ..."),
        click.option(
            "--optimizer-option",
            multiple=True,
            metavar="NAME=VALUE",
            help="Option of the optimizer, as in betas=0.9,0.98; repeat it.",
        ),
        click.option(
            "--learning-rate",
            "--lr",
            type=_options.NOT_NEGATIVE,
            help="Learning rate of weights [default depends on optimizer and bit width].",
        ),
        click.option(
            "--scale-learning-rate",
            type=_options.NOT_NEGATIVE,
            help="Learning rate of scales [default depends on optimizer and bit width].",
        ),
        click.option(
            "--learning-rate-of",
            multiple=True,
            metavar="PATTERN=FACTOR",
            help="Factor on the learning rate of the tensors that match; repeat it.",
        ),
        click.option(
            "--weight-decay",
            type=_options.NOT_NEGATIVE,
            default=0.0,
            help="Weight decay of weights; scales and biases have none.",
        ),
        click.option(
            "--ema",
            type=_options.Number(min=0, max=1, max_open=True),
            help="Decay of a moving average of the weights, which is written in their place, as in 0.999.",
        ),
    ),
    _headings.under(
        "Schedule",
        click.option(
            "--schedule",
            default="cosine",
            help="Schedule of learning rates: cosine, linear, constant, step, multistep or plateau.",
        ),
        click.option(
            "--schedule-option",
            multiple=True,
            metavar="NAME=VALUE",
            help="Option of the schedule, as in milestones=10,15; repeat it.",
        ),
        click.option(
            "--warmup-steps",
            type=_options.ANY_COUNT,
            help="Number of first steps in which learning rates rise [a twentieth of the run].",
        ),
        click.option("--progressive", metavar="BITS,...", help="Wider bit widths to train at first, as in 8,4."),
    ),
    _headings.under(
        "Loss",
        click.option(
            "--loss",
            metavar="FILE",
            help="Python file with a function loss(outputs, labels, teacher), in place of the options below.",
        ),
        click.option(
            "--alpha",
            type=_options.SHARE,
            default=0.5,
            help="Share of the teacher in the loss where there are labels too.",
        ),
        click.option(
            "--temperature",
            type=_options.POSITIVE,
            help="Temperature of the softmax in kl, else 4; without labels, one that is given asks for kl.",
        ),
        click.option(
            "--distance",
            type=click.Choice(["auto", "kl", "mse"]),
            default="auto",
            help="Loss between student and teacher; auto takes kl for classes (labels, probabilities), else mse.",
        ),
        click.option(
            "--label-smoothing",
            type=_options.Number(min=0, max=1, max_open=True),
            default=0.0,
            help="Share of a label that is spread evenly over all classes.",
        ),
        click.option(
            "--feature",
            multiple=True,
            metavar="NAME[=TEACHER]",
            help="Name or pattern of an inner tensor to compare with the teacher's; repeat it.",
        ),
        click.option(
            "--feature-loss",
            type=click.Choice(["mse", "attention"]),
            default="mse",
            help="Loss between inner tensors of student and teacher.",
        ),
        click.option(
            "--feature-weight",
            type=_options.NOT_NEGATIVE,
            default=1.0,
            help="Weight of the loss between inner tensors.",
        ),
    ),
    _headings.under(
        "Gradients",
        click.option(
            "--gradient-norm",
            type=_options.POSITIVE,
            help="Norm that the gradient is clipped to.",
        ),
        click.option(
            "--gradient-value",
            type=_options.POSITIVE,
            help="Absolute value that the gradient's elements are clipped to.",
        ),
        click.option(
            "--grad-bits",
            type=_options.Whole(min=2, max=16),
            help="Bit width of gradients into layers with quantized weights, as in 6.",
        ),
    ),
    _headings.under(
        "Oscillating weights",
        click.option(
            "--dampening",
            type=_options.POSITIVE,
            help="Final weight of the loss term that dampens oscillating weights, as in 0.1.",
        ),
        click.option(
            "--freezing",
            type=_options.Number(min=0, min_open=True, max=0.1),
            help="Largest share of steps in which a weight may oscillate before it is frozen, as in 0.01.",
        ),
    ),
)
_LOSS = ("alpha", "temperature", "distance", "label_smoothing")


def keywords(given: dict[str, Any], teachers: list[Any] | None) -> dict[str, Any]:
    """Return keywords of :func:`onnxqat.finetune` from the options above and the teachers; loads torch.

    Raises:
        UsageError: ``option-invalid``.
    """
    from onnxqat.training.config import DistillationConfig, OptimizerConfig, ScheduleConfig
    from onnxqat.training.objective.features import Features
    from onnxqat.training.objective.losses import Loss

    rates = _pairs(given["learning_rate_of"], "--learning-rate-of")
    names = _feature_names(given["feature"])
    features = Features(names, given["feature_loss"], given["feature_weight"]) if names else None
    return {
        "optimizer": OptimizerConfig(
            given["optimizer"],
            options=_settings(given["optimizer_option"], "--optimizer-option"),
            scale_learning_rate=given["scale_learning_rate"],
            learning_rates={pattern: _parsed_float(factor, "--learning-rate-of") for pattern, factor in rates},
            weight_decay=given["weight_decay"],
            ema=given["ema"],
        ),
        "learning_rate": given["learning_rate"],
        "schedule": ScheduleConfig(
            given["schedule"], given["warmup_steps"], _settings(given["schedule_option"], "--schedule-option")
        ),
        "loss": _loss(given, Loss(**{name: given[name] for name in _LOSS}), Loss()),
        "teacher": teachers if features is None else DistillationConfig(teachers, features),
    }


def _loss(given: dict[str, Any], built: Any, default: Any) -> Any:
    if given["loss"] is not None and built != default:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in _LOSS)
        raise UsageError("option-invalid", f"the loss is {given['loss']}, which {names} say nothing to")
    return given["loss"] or built


def callbacks(given: dict[str, Any]) -> list[Any]:
    """Return the callbacks that the options above ask for; loads torch.

    Raises:
        UsageError: ``option-invalid``.
    """
    from onnxqat.training.callbacks.dampening import Dampening
    from onnxqat.training.callbacks.freezing import Freezing
    from onnxqat.training.callbacks.progressive import Progressive
    from onnxqat.training.callbacks.value_clipping import ValueClipping

    kinds = {
        Progressive: _bits(given["progressive"]),
        Dampening: given["dampening"],
        ValueClipping: given["gradient_value"],
        Freezing: given["freezing"],
    }
    return [kind(value) for kind, value in kinds.items() if value is not None]


def _pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not (name and sign and value):
            raise UsageError("option-invalid", f"{option} {text!r} is not of the form NAME=VALUE")
        found.append((name, value))
    return found


def _settings(texts: tuple[str, ...], option: str) -> dict[str, Any]:
    """Values as Python writes them: numbers, ``True``, numbers with commas between them; anything else is text."""
    return {name: _parsed_literal(text) for name, text in _pairs(texts, option)}


def _parsed_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _parsed_float(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError("option-invalid", f"{option}: {text!r} is no number") from None


def _bits(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            "option-invalid", f"--progressive {text!r} is not of the form BITS,...", hint="for example 8,4"
        )
    return [int(part) for part in parts]


def _feature_names(texts: tuple[str, ...]) -> dict[str, str] | list[str]:
    """Names, or pairs of names where at least one is a pair."""
    if not any("=" in text for text in texts):
        return list(texts)
    return {student: teacher or student for student, _, teacher in (text.partition("=") for text in texts)}
