"""Sources of batches, before these are checked and cut: image folders, functions, iterables, random numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from onnxqat.data import identity
from onnxqat.data.identity import Identity
from onnxqat.data.inputs import Feeds, InputInfo
from onnxqat.data.preprocess import ImageTransform, line
from onnxqat.errors import DataError, InputError, ModelError, QatError, UsageError
from onnxqat.graph import files_read
from onnxqat.isolation import limits

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
# Whatever their suffix says. Pillow knows others, and hands PostScript to a program, Ghostscript, that runs it.
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
Annotator: TypeAlias = "Callable[[Sequence[Path], ImageTransform], npt.NDArray[Any]]"
"""From image files, and what turns them into samples, to labels with an entry for each along the first axis."""


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """One batch as its source gives it, with what messages call it."""

    feeds: Mapping[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any] | None
    origin: str


class Source(ABC):
    """Batches that can be read again and again.

    Attributes:
        name: what messages call it.
        samples: their number, where it is known.
        known_batches: number of batches of a source whose batches have their own size.
        batched: False where a sample is a whole feed, with no axis to cut or join.
        repeatable: False where they are gone once read.
        numbered: whether single samples can be read by :meth:`pick`.
        sorted_by_class: whether neighbours are of one class, so that the first samples say little of the others.
        files: what is read, where it lies in files.
        transform: preprocessing of images; None where samples are arrays.
    """

    name: str
    samples: int | None = None
    known_batches: int | None = None
    batched: bool = True
    repeatable: bool = True
    numbered: bool = False
    sorted_by_class: bool = False
    files: Sequence[str | os.PathLike[str]] = ()
    transform: ImageTransform | None = None

    @abstractmethod
    def batches(self, size: int) -> Iterator[RawBatch]:
        """The batches from the start, of `size` samples where the source can choose."""

    def batches_at(self, numbers: Sequence[int], size: int) -> Iterator[RawBatch]:
        """The batches of these rising numbers; those between them are read and passed over where they cannot be left out."""
        wanted = set(numbers)
        last = max(wanted, default=-1)
        for number, raw in enumerate(itertools.islice(self.batches(size), last + 1)):
            if number in wanted:
                yield raw

    def pick(self, indices: Sequence[int]) -> RawBatch | None:
        """One batch of the samples of these numbers; None where the source is not :attr:`numbered`."""
        return None

    def annotated(self, read: Annotator) -> Source | None:
        """The same samples with labels from beside them; None where they are no images of a folder.

        Args:
            read: gives the labels of a list of image files.
        """
        return None

    def identity(self) -> Identity:
        """Name, fingerprint and preprocessing of the whole source; empty where a later run could not find it again."""
        return Identity()

    def check_repeatable(self, why: str) -> None:
        """Raise DataError ``data-format`` where the batches can be read only once; `why` that is not enough."""
        if not self.repeatable:
            raise self._read_once(why)

    def _read_once(self, why: str) -> DataError:
        hint = "pass a function that returns a new iterator, or a list"
        return DataError("data-format", f"{self.name} can be read only once, and {why}", hint=hint)


class ImageFolder(Source):
    """Images below a folder, sorted by path. Labels: the folders' names if all are integers, else their rank.

    There are no labels unless every image lies in a sub-folder and there are at least two of them, or `labels` are given:
    an entry for each file along the first axis.
    """

    transform: ImageTransform

    def __init__(
        self,
        folder: Path,
        files: Sequence[Path],
        info: InputInfo,
        transform: ImageTransform,
        labels: npt.NDArray[Any] | None = None,
    ) -> None:
        self.name = str(folder)
        self.samples, self.numbered = len(files), True
        self.files = self._files = files
        self._folder, self._info, self.transform = folder, info, transform
        parts = [path.relative_to(folder).parts for path in files]
        classes = {p[0] for p in parts if len(p) > 1}
        self._labels = labels
        if all(len(p) > 1 for p in parts) and len(classes) > 1:
            numbered = all(c.isascii() and c.isdigit() for c in classes)
            code = {c: int(c) if numbered else rank for rank, c in enumerate(sorted(classes))}
            self._labels = np.array([code[p[0]] for p in parts], np.int64) if labels is None else labels
            self.sorted_by_class = True

    def annotated(self, read: Annotator) -> ImageFolder:
        """The same images with the labels that `read` gives for their files."""
        labels = read(self._files, self.transform)
        return ImageFolder(self._folder, self._files, self._info, self.transform, labels)

    def batches(self, size: int) -> Iterator[RawBatch]:
        """Stacks of `size` images."""
        for start in range(0, len(self._files), size):
            yield self.pick(range(start, min(start + size, len(self._files))))

    def pick(self, indices: Sequence[int]) -> RawBatch:
        """A stack of the images of these numbers; at least one."""
        files = [self._files[index] for index in indices]
        images = [self._read(path) for path in files]
        for path, image in zip(files, images, strict=True):
            if image.shape != images[0].shape:
                raise DataError(
                    "data-shape",
                    f"{path}: shape {list(image.shape)}, but {files[0].name} has {list(images[0].shape)}",
                    hint="bring images to one size in the preprocessing line, as in resize=224x224",
                )
        labels = None if self._labels is None else self._labels[list(indices)]
        return RawBatch({self._info.name: np.stack(images)}, labels, str(files[0]))

    def identity(self) -> Identity:
        """Identity from the names and sizes of all files, the contents of some, and the preprocessing."""
        sha256 = identity.of_files(self._folder, self._files)
        steps = self.transform.steps
        # A file without its folders, as the data: other commands do not run it, and users know where it lies.
        preprocess = Path(steps.file).name if steps.file else line(steps)
        return Identity(self._folder.resolve().name, sha256, preprocess)

    def _read(self, path: Path) -> npt.NDArray[Any]:
        try:
            from PIL import Image
        except ImportError:
            raise UsageError("dependency-missing", "reading images needs Pillow", hint="install pillow") from None
        try:
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                return self.transform(image)
        except QatError:
            raise
        except Exception as error:
            # Pillow's decoders raise nearly anything on a damaged file.
            hint = "remove or replace the file"
            raise DataError("data-format", f"{path}: not a readable image: {error}", hint=hint) from None


class Stream(Source):
    """Batches from Python: a function that is called anew for each pass, or an iterable.

    A batch is a dict, an array for a model with one input, or a pair of that and labels. Torch tensors are taken.
    """

    def __init__(
        self, name: str, make: Callable[[], Iterable[Any]] | Iterable[Any], inputs: Sequence[InputInfo]
    ) -> None:
        self.name = name
        self._make, self._inputs = make, inputs
        self._used = False
        self.repeatable = not isinstance(make, Iterator)
        # A DataLoader over an iterable dataset has __len__, and raises when it is asked.
        with contextlib.suppress(TypeError):
            self.known_batches = len(cast(Sized, make))

    def identity(self) -> Identity:
        """The name of a function; what it yields may differ each time."""
        return Identity(self.name if ":" in self.name else "")

    def batches(self, size: int) -> Iterator[RawBatch]:
        """The batches as they come."""
        iterator = self._open()
        index = 0
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except InputError:
                raise
            except Exception as error:
                raise DataError(
                    "data-format", f"{self.name}: batch {index} failed: {type(error).__name__}: {error}"
                ) from error
            yield self._batch(item, f"{self.name}, batch {index}")
            index += 1

    def _open(self) -> Iterator[Any]:
        try:
            iterable = self._make if isinstance(self._make, Iterable) else self._make()
            iterator = iter(iterable)
        except Exception as error:
            raise DataError(
                "data-format", f"{self.name}: yields no batches: {type(error).__name__}: {error}"
            ) from error
        if iterator is self._make:
            if self._used:
                raise self._read_once("was")
            self._used = True
        return iterator

    def _batch(self, item: Any, origin: str) -> RawBatch:
        labels = None
        if isinstance(item, (tuple, list)) and len(item) == 2:
            item, labels = item[0], None if item[1] is None else as_array(item[1])
        if isinstance(item, Mapping):
            return RawBatch({str(k): as_array(v) for k, v in item.items()}, labels, origin)
        if len(self._inputs) != 1 or isinstance(item, (tuple, list)):
            names = ", ".join(repr(i.name) for i in self._inputs)
            raise DataError(
                "data-format",
                f"{origin}: a batch is {type(item).__name__}, not a dict from input name to array",
                hint=f"the model's inputs are {names}; (inputs, labels) pairs are fine",
            )
        return RawBatch({self._inputs[0].name: as_array(item)}, labels, origin)


def as_array(value: Any) -> npt.NDArray[Any]:
    """`value` in numpy, a torch tensor (any device) included; float32 for bfloat16, which numpy does not have."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return np.asarray(value)


def import_function(text: str) -> Callable[[], Iterable[Any]]:
    """The callable that ``package.module:function`` names; the working directory is searched as well.

    Raises:
        DataError: ``data-not-found``, with the reason.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise DataError(
            "data-not-found",
            f"{text!r} is not of the form package.module:function",
            hint="for example my_data:batches, of a file my_data.py in the current folder",
        )
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise DataError(
            "data-not-found",
            f"{text}: cannot be imported: {type(error).__name__}: {error}",
            hint="the current folder and the packages of this Python are searched",
        ) from error
    finally:
        with contextlib.suppress(ValueError):  # the module may have taken it out
            sys.path.remove(folder)
    if not callable(found):
        raise DataError("data-format", f"{text} is {type(found).__name__}, not a function that yields batches")
    file = getattr(sys.modules[module_name], "__file__", None)
    if file is not None:
        files_read.note(file, f"the file of {text}")
    return found  # type: ignore[no-any-return]


class RandomSource(Source):
    """Seeded random batches: normal floats, zeros and ones for integers (safe as indices, tokens and masks)."""

    def __init__(self, inputs: Sequence[InputInfo], batches: int, seed: int, sizes: Mapping[str, int]) -> None:
        self.name = f"random data (seed {seed})"
        self.known_batches = batches
        self._inputs, self._seed, self._sizes = inputs, seed, sizes

    def batches(self, size: int) -> Iterator[RawBatch]:
        """The same numbers at each pass."""
        rng = np.random.default_rng(self._seed)
        for index in range(self.known_batches or 0):
            feeds: Feeds = {info.name: self._draw(info, rng) for info in self._inputs}
            yield RawBatch(feeds, None, f"{self.name}, batch {index}")

    def _draw(self, info: InputInfo, rng: np.random.Generator) -> npt.NDArray[Any]:
        if info.shape is None:
            raise DataError("data-shape", f"{self.name}: input {info} has no known rank", hint="give data instead")
        dims = [d if isinstance(d, int) else self._size(d, axis) for axis, d in enumerate(info.shape)]
        dtype = np.dtype(info.dtype)
        if dtype.kind not in "fiub":
            raise DataError("data-format", f"{self.name}: no random values of type {info.dtype} for input {info}")
        if (
            math.prod(dims) * dtype.itemsize > limits.largest_tensor()
        ):  # before a session, which refuses it too, is there
            text = f"{self.name}: input {info} takes more than {limits.largest_tensor() / 2**30:g} GB"
            raise ModelError("model-too-large", text, hint=f"correct its shape, or raise the limit: {limits.MEMORY}=GB")
        if dtype.kind == "f":
            return np.asarray(rng.standard_normal(dims)).astype(dtype)
        return rng.integers(0, 2, dims).astype(dtype)

    def _size(self, dim: str | None, axis: int) -> int:
        if dim is not None and dim in self._sizes:
            return self._sizes[dim]
        return 1 if axis == 0 else 32
