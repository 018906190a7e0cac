"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from onnxqat import printing
from onnxqat.errors import UsageError

DATA_HELP = "Samples to read: a folder of images or .npz batches, an .npz or .npy file, or package.module:function."


class FilePath(click.Path):
    """A path; one that is written is looked at before the work begins.

    Args:
        written: refuse a place where no file can be written.
        folder: it is a folder that is written, which may be made.

    A file that is written is none that the command reads or writes under another name: it would replace that file.
    """

    def __init__(self, *, written: bool = False, folder: bool = False) -> None:
        super().__init__(path_type=Path)
        self._written, self._folder = written, folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.

        Raises:
            ModelError: ``output-not-writable``.
            UsageError: ``option-invalid``.
        """
        from onnxqat.graph import files_read

        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        name = param.opts[-1] if param is not None and param.opts[-1].startswith("-") else "the model"
        if not (self._written or self._folder):
            files_read.note_all((path,), name)  # whoever opens it looks at what it is
            return path
        if self._written:
            files_read.plan(path, name)
        from onnxqat.graph import io

        io.check_writable(path, folder=self._folder)
        return path


class Whole(click.IntRange):
    """A whole number within limits, which the help shows."""

    name = "integer"


class Finite(click.types.FloatParamType):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; click lets NaN through, which is within no limits."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Number(Finite, click.FloatRange):
    """A finite number within limits, which the help shows."""

    name = "float"


PATH = FilePath()
OUTPUT = FilePath(written=True)
FOLDER = FilePath(folder=True)

COUNT = Whole(min=1)
ANY_COUNT = Whole(min=0)
POSITIVE = Number(min=0, min_open=True)
NOT_NEGATIVE = Number(min=0)
SHARE = Number(min=0, max=1)
SEED = Whole(min=0)

data = click.option("--data", help=DATA_HELP)
preprocess = click.option(
    "--preprocess",
    metavar="STEPS",
    help="Preprocessing of images in folders, as in resize=256,crop=224,scale=1/255, a processor's JSON file, or a Python file with a function preprocess(image) [resize to the model's input, scale=1/255].",
)
batch_size = click.option(
    "--batch-size", type=COUNT, default=32, help="Number of samples in a batch, where the model does not fix it."
)
largest_batch = click.option(
    "--batch-size",
    type=COUNT,
    default=32,
    help="Largest number of samples in a batch, where the model does not fix it; fewer where their tensors would take over 512 MB.",
)
limit = click.option("--limit", type=COUNT, help="Largest number of samples to use [all].")
device = click.option(
    "--device", help="Device to train on: cpu, cuda, or cuda:1 for one of several GPUs [cuda where there is one]."
)
keep_io_types = click.option(
    "--keep-io-types/--float32-io",
    default=True,
    help="Keep the types of inputs and outputs of a model in float16, bfloat16 or double, or make them float32.",
)
SCORE_HELP = "Metric to judge by: a name, module:function or file.py:function; higher is better."
score = click.option("--score", metavar="NAME", help=SCORE_HELP)
scores = click.option("--score", "scores", metavar="NAME", multiple=True, help=f"{SCORE_HELP} Repeat it.")
labels = click.option(
    "--labels",
    type=PATH,
    help="Labels for the metric coco-map: a COCO file, or a folder of YOLO files [looked for beside the images].",
)
random_data = click.option("--random-data", is_flag=True, help="Use random numbers instead of data.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
html = click.option("--html", type=OUTPUT, help="Also write an HTML report to this file.")


class Group:
    """A decorator that adds options to a command, which gets their values as one mapping.

    Args:
        key: the argument of the command that gets them.
        options: what ``click.option`` returned.

    Attributes:
        names: what the options are called in the mapping.
    """

    def __init__(self, key: str, *options: Callable[[Any], Any]) -> None:
        def probe() -> None:
            """Nothing; click notes the options at it, the last first."""

        for option in reversed(options):
            option(probe)
        noted: list[click.Option] = getattr(probe, "__click_params__", [])
        self.names = tuple(str(parameter.name) for parameter in reversed(noted))
        self._key, self._options = key, options

    def __call__(self, command: Callable[..., None]) -> Callable[..., None]:
        """`command` with the options."""

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{self._key: {name: given.pop(name) for name in self.names}}, **given)

        for option in reversed(self._options):
            run = option(run)
        return run


def samples(most: int | None) -> Group:
    """Return the options of what a command measures on, by default at most `most` samples: its argument `samples`."""
    if most is None:
        count = limit
    else:
        count = click.option("--limit", type=COUNT, default=most, help="Largest number of samples to use.")
    return Group("samples", data, preprocess, largest_batch, count, random_data)


accuracy_limits = Group(
    "limits",
    click.option(
        "--max-drop",
        type=NOT_NEGATIVE,
        metavar="POINTS",
        help="Largest accepted loss of top-1 on labels, or of the score, in points; for a function in its own unit"
        " [5; 5 % for a function]. Without labels, largest accepted number of samples in 100 with another top-1 [20].",
    ),
    click.option(
        "--min-sqnr",
        type=Finite(),
        metavar="DB",
        help="Lowest accepted signal-to-noise ratio of an output against the float model [10, where neither labels nor a score decide].",
    ),
)

bits = click.option(
    "--bits",
    metavar="W,A",
    help="Bit widths of weights and activations, or one for both: 2 to 8, or 16 [the backend's].",
)
exclude = click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave the nodes that match in float: name of a node or tensor, with * and ?; repeat it.",
)
include = click.option(
    "--include", multiple=True, metavar="PATTERN", help="Quantize only the nodes that match; repeat it."
)
exclude_op = click.option(
    "--exclude-op", multiple=True, metavar="OPERATOR", help="Leave operators of this type in float; repeat it."
)


def parse_bits(text: str | None) -> tuple[int | None, int | None]:
    """``W,A`` as two widths; ``8`` means both.

    Raises:
        UsageError: ``option-invalid``.
    """
    found = parse_pair(text, "--bits")
    return (None, None) if found is None else found


def parse_pair(text: str | None, option: str) -> tuple[int, int] | None:
    """``W,A`` as a number for weights and one for activations; ``8`` means both.

    Raises:
        UsageError: ``option-invalid``.
    """
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(
            "option-invalid", f"{option} {text!r} is not of the form W,A", hint=f"for example {option} 4,8"
        )
    numbers = [int(part) for part in parts]
    return numbers[0], numbers[-1]


def parse_widths(text: str | None) -> tuple[int, ...] | None:
    """``BITS,...`` as widths.

    Raises:
        UsageError: ``option-invalid``.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError("option-invalid", f"--widths {text!r} is no list of widths", hint="for example --widths 4,8")
    return tuple(int(part) for part in parts)


def percentile_observer(observer: str | None, percentile: float | None) -> str | None:
    """The observer of activations that the options ask for.

    Raises:
        UsageError: ``option-invalid``: two of them.
    """
    if percentile is None:
        return observer
    if observer not in (None, "percentile"):
        raise UsageError("option-invalid", f"--percentile and --activation-observer {observer}: give one of them")
    return f"percentile {percentile:g}"


def parse_bits_of(texts: tuple[str, ...]) -> tuple[tuple[str, int, int], ...]:
    """``PATTERN=W,A`` as pattern and two widths.

    Raises:
        UsageError: ``option-invalid``.
    """
    found = []
    for text in texts:
        pattern, sign, bits = text.rpartition("=")
        pair = parse_pair(bits, "--bits-of") if pattern and sign else None
        if pair is None:
            hint = "for example --bits-of 'head/*=8,16'"
            raise UsageError("option-invalid", f"--bits-of {text!r} is not of the form PATTERN=W,A", hint=hint)
        found.append((pattern, *pair))
    return tuple(found)


LINE_EVERY = 10.0
"""Seconds between two lines of progress in a log: what is over sooner has none."""


def _lines(description: str) -> Callable[[int, int | None], None]:
    """Return a callback that prints how far the work is, now and then."""
    last = time.monotonic()

    def update(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_EVERY:
            last = time.monotonic()
            of = f" of {total:,}" if total else ""
            printing.echo(f"{description}: {done:,}{of}", err=True)

    return update


@contextmanager
def progress(description: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on standard error, or lines every few seconds where that is no terminal; silent with `quiet`."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield (lambda done, total: None) if quiet else _lines(description)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)

        def update(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield update


PLAN = "plan: "
"""Beginning of a phase's line that stays: what is to be done, and how long it will take."""


@contextmanager
def phases(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on standard error that names what is going on, on a terminal; a plan is a line of its own, on anything.

    Args:
        quiet: nothing is said at all.
    """
    if quiet:
        yield lambda phase: None
        return
    if not sys.stderr.isatty():
        yield lambda phase: click.echo(printing.printable(phase), err=True) if PLAN in phase else None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("") as status:

        def tell(phase: str) -> None:
            text = printing.printable(phase)
            if PLAN in phase:
                console.print(text, markup=False, highlight=False)
            else:
                status.update(text)

        yield tell


def beside(model: Path, suffix: str) -> Path:
    """Default output: `suffix` in place of the last extension, beside the bundle for a file of one.

    Raises:
        ModelError: ``output-not-writable``.
    """
    from onnxqat.graph import bundles, io

    output = bundles.outside(model).with_suffix(suffix)
    if model.is_file():
        io.check_writable(output, folder=not suffix.endswith(".onnx"))
    return output


def need(module: str, extra: str) -> None:
    """Refuse with a remedy where an optional dependency is missing.

    Raises:
        UsageError: ``dependency-missing``.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(
            "dependency-missing",
            f"this command needs {module}, which is not installed",
            hint=f"pip install 'onnxqat[{extra}]'",
        )
