"""Data for calibration, training and evaluation: one way to open any source, one kind of batch out of it."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from onnxqat.counts import counted
from onnxqat.data import label_table, part, subset
from onnxqat.data.arrays import ArchiveFolder, Arrays, read_npy, read_npz
from onnxqat.data.identity import Identity
from onnxqat.data.inputs import Feeds, InputInfo, check_names, fitted, static_batch
from onnxqat.data.part import Part
from onnxqat.data.preprocess import ImageTransform, Preprocess, line
from onnxqat.data.sources import (
    IMAGE_SUFFIXES,
    Annotator,
    ImageFolder,
    RandomSource,
    RawBatch,
    Source,
    Stream,
    import_function,
)
from onnxqat.data.unusable_samples import Outliers, Repeats
from onnxqat.discover import suggestion
from onnxqat.errors import DataError, UsageError
from onnxqat.graph import files_read
from onnxqat.types import Remark

DataSource: TypeAlias = (
    "str | os.PathLike[str] | Data | Mapping[str, npt.NDArray[Any]] | Iterable[Any] | Callable[[], Iterable[Any]]"
)
_Labels: TypeAlias = "npt.NDArray[Any] | None"

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_DEFAULT_PREPROCESS = Preprocess(scale=1 / 255)


class Data:
    """Batches that fit a model, read lazily, from the start at each pass.

    Iterating yields dicts from input name to array; :meth:`labelled` yields the labels with them. Where all inputs
    prescribe the batch size, batches are cut and joined to it; samples left over at the end are left out with a
    remark. A limit takes samples from all over a folder that is sorted by class, the first ones elsewhere.

    Attributes:
        name: what messages call the source.
        inputs: the model's inputs.
        remarks: what was noticed so far: identical samples, damaged ones, samples left out, an assumed preprocessing.
        files: what is read, where the source lies in files.
    """

    def __init__(self, source: Source, inputs: Sequence[InputInfo], batch_size: int = 32, limit: int | None = None):
        for name, count in (("batch size", batch_size), ("limit", limit)):
            if count is not None and count < 1:
                raise UsageError("option-invalid", f"{name} {count} must be at least 1")
        self.name = source.name
        self.inputs = tuple(inputs)
        self.remarks: list[Remark] = []
        self.files = tuple(source.files)
        self._source, self._limit = subset.spread(source, limit), limit
        self._static = static_batch(inputs) if source.batched else None
        self._size = self._static or batch_size

    @property
    def batches(self) -> int | None:
        """Number of batches, where it is known before reading."""
        source, limit = self._source, self._limit
        if source.samples is None:
            as_they_come = self._static is None or isinstance(source, RandomSource)
            return source.known_batches if limit is None and as_they_come else None
        samples = source.samples if limit is None else min(limit, source.samples)
        if not source.batched:
            return samples
        return max(samples // self._size, 1) if self._static else -(-samples // self._size)

    @property
    def batch_size(self) -> int:
        """Number of samples in a batch; the last one may have fewer, and a source of batches may have its own."""
        return self._size

    @property
    def repeatable(self) -> bool:
        """True if the data can be read more than once; a bare generator cannot."""
        return self._source.repeatable

    def check_repeatable(self, why: str) -> None:
        """Raise DataError ``data-format`` where the data can be read only once; `why` that is not enough."""
        self._source.check_repeatable(why)

    def identity(self) -> Identity:
        """Name, fingerprint and preprocessing of the whole source, whatever part of it is read.

        Raises:
            DataError: ``data-format``: a file cannot be read.
        """
        try:
            return self._source.identity()
        except OSError as error:
            raise DataError("data-format", f"{self.name}: cannot be read: {error}") from None

    @property
    def transform(self) -> ImageTransform | None:
        """The preprocessing of images, with the model's input filled in; None where they are arrays."""
        return self._source.transform

    def __iter__(self) -> Iterator[Feeds]:
        for feeds, _ in self.labelled():
            yield feeds

    def labelled(self) -> Iterator[tuple[Feeds, _Labels]]:
        """Batches with their labels, None where the source has none.

        Raises:
            DataError: ``data-input-name``, ``data-shape``, ``data-format``, ``data-labels``; ``data-missing`` when
                there is no batch at all.
        """
        checks = (Repeats(), Outliers())
        seen = 0
        stream = (self._checked(raw) for raw in self._source.batches(self._size))
        for feeds, labels in stream if self._static is None else self._rebatched(stream, self._static):
            samples = self._samples_of(feeds)
            if self._limit is not None and seen + samples > self._limit:
                if self._static is None and seen < self._limit and samples > 1:
                    rest = self._limit - seen
                    feeds, labels = _cut(feeds, labels, 0, rest)
                    samples = rest
                elif seen:
                    break
            seen += samples
            for check in checks:
                check.add(feeds, samples)
            yield feeds, labels
            if self._limit is not None and seen >= self._limit:
                break
        if not seen:
            raise DataError("data-missing", f"{self.name}: there is no sample in it")
        for text in itertools.chain.from_iterable(check.remarks(self.name) for check in checks):
            self._remark(text)

    @property
    def sizes(self) -> list[int] | None:
        """Samples of each batch, where it is known before reading and :meth:`labelled` would cut the source so."""
        count, limit = self._source.samples, self._limit
        if count is None or not self._source.batched:
            return None
        count = count if limit is None else min(limit, count)
        if self._static is not None:
            return [self._static] * (count // self._static)
        return [min(self._size, count - start) for start in range(0, count, self._size)]

    @property
    def prescribed(self) -> int | None:
        """Batch size that the model prescribes."""
        return self._static

    @property
    def numbered(self) -> bool:
        """True if :meth:`pick` can read single samples."""
        return self._source.numbered

    @property
    def samples(self) -> int | None:
        """Number of samples in whole batches, where it is known before reading."""
        sizes = self.sizes
        return None if sizes is None else sum(sizes)

    def pick(self, indices: Sequence[int]) -> tuple[Feeds, _Labels] | None:
        """The samples of these numbers, in the order of the source, and their labels; None where it has no such access.

        Raises:
            DataError: as :meth:`labelled`.
        """
        raw = self._source.pick(indices)
        return None if raw is None else self._checked(raw)

    def divisible(self) -> tuple[int, int] | None:
        """Number of what :meth:`split` divides, and samples in each; None where it is not known before reading.

        These are samples, or the batches of a source that has batches of its own, all taken to be as large as the first.
        """
        source = self._source
        if source.numbered and source.samples is not None:
            return min(source.samples, self._limit or source.samples), 1
        if source.known_batches is None or not source.repeatable:
            return None
        each = subset.batch_size(source, self._size)
        return (source.known_batches, each) if each else None

    def split(self, share: int) -> tuple[Data, Data]:
        """All samples but every `share`-th, and those; batches where the source cannot be read by sample.

        Raises:
            DataError: ``data-format`` where the source can be read only once.
        """
        first, second = (
            Data(part, self.inputs, self._size, self._limit if part.samples is None else None)
            for part in subset.split(self._source, share, self._limit)
        )
        return first, second

    def first(self, limit: int) -> Data:
        """The first `limit` samples; at least one batch."""
        return Data(self._source, self.inputs, self._size, min(limit, self._limit or limit))

    def few(self, limit: int, batch_size: int | None = None) -> Data:
        """At most `limit` samples, or one batch; from all over the source where it can be counted before it is read.

        Args:
            limit: number of samples.
            batch_size: samples a batch, where the model does not fix it; None: as it is.
        """
        count, size = max(min(limit, self._limit or limit), self._static or 1), batch_size or self._size
        return Data(subset.evenly(self._source, count, size, self._limit), self.inputs, size, count)

    def in_batches(self, most: int) -> Data:
        """The same samples with at most so many in a batch, where neither source nor model prescribes the batches."""
        if self._size <= most:
            return self
        other = Data(self._source, self.inputs, most, self._limit)
        other.remarks = self.remarks
        return other

    def annotated(self, read: Annotator) -> Data | None:
        """The same samples with labels that `read` finds beside image files; None where they are no such files.

        Args:
            read: gives the labels of a list of files, with an entry for each along the first axis.

        Raises:
            DataError: what `read` raises.
        """
        source = self._source.annotated(read)
        return None if source is None else Data(source, self.inputs, self._size, self._limit)

    def _checked(self, raw: RawBatch) -> tuple[Feeds, _Labels]:
        check_names(raw.feeds, self.inputs, raw.origin)
        whole, images = self._static is None, isinstance(self._source, ImageFolder)
        feeds = {i.name: fitted(raw.feeds[i.name], i, raw.origin, batch=whole, images=images) for i in self.inputs}
        samples = self._samples_of(feeds)
        if not whole and len({array.shape[0] for array in feeds.values()}) != 1:
            found = ", ".join(f"{name!r} {list(array.shape)}" for name, array in feeds.items())
            raise DataError("data-shape", f"{raw.origin}: the inputs differ in batch size: {found}")
        labels = raw.labels
        if labels is not None and self._source.batched and samples > 1 and labels.shape[:1] != (samples,):
            raise DataError("data-labels", f"{raw.origin}: labels of shape {list(labels.shape)} for {samples} samples")
        return feeds, labels

    def _samples_of(self, feeds: Feeds) -> int:
        """Samples along the first axis; 1 where the inputs have no common one."""
        sizes = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
        return max(sizes.pop(), 1) if len(sizes) == 1 and self._source.batched else 1

    def _rebatched(self, stream: Iterable[tuple[Feeds, _Labels]], size: int) -> Iterator[tuple[Feeds, _Labels]]:
        """Yield batches of exactly `size`, cut and joined from those of `stream`; a remark counts the rest."""
        pending: tuple[Feeds, _Labels] | None = None
        whole = False
        for batch in stream:
            pending = batch if pending is None else _concatenated(pending, batch, self.name)
            count = self._count(pending)
            for start in range(0, count - size + 1, size):
                whole = True
                yield _cut(*pending, start, start + size)
            rest = count % size
            pending = _cut(*pending, count - rest, count) if rest else None
        if pending is not None and not whole:
            raise DataError(
                "data-shape",
                f"{self.name}: {self._count(pending)} samples do not fill one batch: the model takes {size} at a time",
            )
        if pending is not None:
            left = self._count(pending)
            self._remark(
                f"the end of {self.name}, {counted(left, 'sample')}, does not fill a batch of {size} and is left out"
            )

    @staticmethod
    def _count(batch: tuple[Feeds, _Labels]) -> int:
        return int(next(iter(batch[0].values())).shape[0])

    def _remark(self, message: str) -> None:
        remark = Remark(message, source="data", concern="result")
        if remark not in self.remarks:
            self.remarks.append(remark)


def _cut(feeds: Feeds, labels: _Labels, start: int, stop: int) -> tuple[Feeds, _Labels]:
    cut = {name: array[start:stop] for name, array in feeds.items()}
    return cut, None if labels is None else labels[start:stop]


def _concatenated(one: tuple[Feeds, _Labels], two: tuple[Feeds, _Labels], name: str) -> tuple[Feeds, _Labels]:
    try:
        feeds = {key: np.concatenate([array, two[0][key]]) for key, array in one[0].items()}
    except ValueError as error:
        raise DataError("data-shape", f"{name}: samples of different shape cannot share a batch: {error}") from None
    if (one[1] is None) != (two[1] is None):
        raise DataError("data-labels", f"{name}: some batches have labels and some have none")
    return feeds, None if one[1] is None or two[1] is None else np.concatenate([one[1], two[1]])


def open_data(
    source: DataSource,
    inputs: Sequence[InputInfo],
    *,
    preprocess: Preprocess | None = None,
    recorded: Preprocess | None = None,
    batch_size: int = 32,
    limit: int | None = None,
) -> Data:
    """Open a source of batches for a model.

    Behind a name, ``#every-5`` takes every fifth sample, and ``#without-every-5`` all others (:mod:`onnxqat.data.part`).

    1. A folder of images (jpg, png, bmp, webp; recursive), through `preprocess`; ``labels.csv`` in it, or sub-folders,
       give labels.
    2. ``.npz``: keys are input names, samples along the first axis; ``labels``, ``label`` or ``y`` are labels. Of a
       model with one input, the array needs no name (``numpy.savez(path, x)``).
    3. A folder of ``.npz`` files: each is one batch, of its own shape.
    4. ``.npy``, for a model with one input.
    5. ``package.module:function``, a callable or an iterable of batches (dicts; arrays for one input; pairs with
       labels); a mapping of arrays or one array, as in 2 and 4.

    Args:
        source: one of the above; a :class:`Data` is returned as it is.
        inputs: the model's inputs.
        preprocess: for images; without, as `recorded`, else they are resized to the model's input and scaled to 0..1; a
            remark says so.
        recorded: preprocessing that the model's file records, for images alone.
        batch_size: samples a batch, where the source can choose and the model does not prescribe it.
        limit: read at most so many samples (but at least one batch).

    Raises:
        DataError: ``data-not-found``, ``data-missing`` (empty), ``data-format``, ``data-input-name``,
            ``data-shape``, ``data-labels``.
        UsageError: ``option-invalid``: the preprocessing does not fit the input, the data are no images, or a part is none.
    """
    if isinstance(source, Data):
        files_read.note_all(source.files, "the data")
        return source
    parts: tuple[Part, ...] = ()
    if isinstance(source, (str, os.PathLike)):
        name, parts = part.parse(os.fspath(source))
        opened, remarks = _open_named(name, inputs, preprocess, recorded)
    else:
        opened, remarks = _open_object(source, inputs), []
    if preprocess is not None and not isinstance(opened, ImageFolder):
        raise UsageError(
            "option-invalid",
            f"{opened.name}: preprocessing is for folders of images, and these are arrays",
            hint="leave out --preprocess, and take it out of a --config (`onnxqat recipes show NAME` prints that of a recipe); "
            "give arrays as the model takes them",
        )
    data = Data(opened, inputs, batch_size, None if parts else limit)
    files_read.note_all(data.files, "the data")
    for taken in parts:
        data = data.split(taken.share)[0 if taken.others else 1]
    if parts and limit is not None:
        data = data.first(limit)
    data.remarks.extend(remarks)
    return data


def random_data(
    inputs: Sequence[InputInfo], batches: int, seed: int = 0, *, sizes: Mapping[str, int] | None = None
) -> Data:
    """Random batches, for a smoke test: ranges from them say nothing about a model.

    Args:
        inputs: the model's inputs.
        batches: their number.
        seed: the same seed gives the same numbers.
        sizes: sizes of dynamic dimensions by name; by default 1 for the first axis and 32 for others.
    """
    return Data(RandomSource(inputs, batches, seed, sizes or {}), inputs)


def _open_object(source: Any, inputs: Sequence[InputInfo]) -> Source:
    if isinstance(source, np.ndarray):
        return Arrays("the array", {_only(inputs, "an array").name: source}, inputs)
    if isinstance(source, Mapping):
        return Arrays("the arrays", {str(key): np.asarray(value) for key, value in source.items()}, inputs)
    if callable(source) or isinstance(source, Iterable):
        return Stream(getattr(source, "__name__", None) or f"the {type(source).__name__}", source, inputs)
    raise DataError("data-format", f"cannot read batches from {type(source).__name__}")


def _open_named(
    name: str, inputs: Sequence[InputInfo], preprocess: Preprocess | None, recorded: Preprocess | None
) -> tuple[Source, list[Remark]]:
    """Open a path, or `package.module:function`, as a source; the remarks say which preprocessing was taken."""
    path = Path(name)
    if not name:  # as of a shell variable that is not set; Path takes it for the working folder
        raise DataError("data-missing", "the path of the data is empty")
    if path.is_dir():
        return _open_folder(path, inputs, preprocess, recorded)
    if path.is_file():
        if path.suffix.lower() == ".npz":
            return Arrays(name, read_npz(path), inputs, path), []
        if path.suffix.lower() == ".npy":
            return Arrays(name, {_only(inputs, name).name: read_npy(path)}, inputs, path), []
        raise DataError(
            "data-format",
            f"{name}: not a kind of file that onnxqat reads",
            hint="pass the folder that holds the image"
            if path.suffix.lower() in IMAGE_SUFFIXES
            else "pass a folder of images, .npz, .npy or package.module:function",
        )
    if _FUNCTION.fullmatch(name):
        return Stream(name, import_function(name), inputs), []
    if path.exists():
        raise DataError("data-format", f"{name}: a device or a pipe, not a file of data", hint="copy it to a file")
    beside = sorted(map(str, path.parent.iterdir())) if path.parent.is_dir() else []
    close = suggestion(str(path), beside)
    hint = close if close.startswith("did") else "a function is written package.module:function"
    raise DataError("data-not-found", f"{name}: no such file or folder", hint=hint)


def _open_folder(
    folder: Path, inputs: Sequence[InputInfo], preprocess: Preprocess | None, recorded: Preprocess | None
) -> tuple[Source, list[Remark]]:
    """Open a folder of `.npz` files or of images; the remark names a preprocessing that was not given."""
    archives = sorted(folder.glob("*.npz"))
    images = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if archives and images:
        raise DataError("data-format", f"{folder}: holds .npz files and images; keep one kind a folder")
    if archives:
        return ArchiveFolder(folder, archives, inputs), []
    if not images:
        kinds = ", ".join(suffix.removeprefix(".") for suffix in IMAGE_SUFFIXES)
        others = {p.suffix.lower() for p in folder.rglob("*") if p.is_file()}
        hint = "check the path; sub-folders are searched too"
        if others:
            hint = f"it holds files of type {', '.join(sorted(filter(None, others))[:5]) or 'no name'}: convert them"
        raise DataError("data-missing", f"{folder}: holds no images ({kinds}) and no .npz files", hint=hint)
    info = _only(inputs, f"{folder}: a folder of images")
    if info.shape is None or len(info.shape) != 4:
        raise DataError("data-shape", f"{folder}: images do not fit input {info}, which is not of rank 4")
    integer = np.dtype(info.dtype).kind != "f"
    default = Preprocess() if integer else _DEFAULT_PREPROCESS
    transform = ImageTransform.of(preprocess or recorded or default, info.shape, info.dtype)
    labels, remarks = _labels_beside(folder, images)
    given = ImageFolder(folder, images, info, transform, labels)
    if preprocess is not None:
        return given, remarks
    text = f"resize=model,{transform.steps.colour}{'' if integer else ',scale=1/255'}"
    if recorded is not None:
        text = f"the model's file records: {line(recorded)}"
    return given, [
        *remarks,
        Remark(f"no preprocessing was given: images go in as {text}", source="data", concern="result"),
    ]


def _labels_beside(folder: Path, images: Sequence[Path]) -> tuple[npt.NDArray[Any] | None, list[Remark]]:
    """The labels that a table in `folder` gives `images`, or the remark why they are left out: calibration needs none."""
    table = folder / label_table.NAME
    if not table.is_file():
        return None, []
    try:
        labels = label_table.read(table, [image.relative_to(folder) for image in images])
    except DataError as error:
        text = f"the labels of {label_table.NAME} are left out: {error.message}"
        return None, [Remark(text, source="data", concern="result")]
    files_read.note(table, "the labels")
    return labels, []


def _only(inputs: Sequence[InputInfo], what: str) -> InputInfo:
    if len(inputs) != 1:
        raise DataError(
            "data-input-name",
            f"{what} feeds a model with one input; this one has {len(inputs)}",
            hint=f"use .npz files with the keys {', '.join(i.name for i in inputs)}",
        )
    return inputs[0]
