"""Arrays on disk and in memory as samples: ``.npz``, ``.npy``, folders of ``.npz``."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.data import identity
from onnxqat.data.identity import Identity
from onnxqat.data.inputs import InputInfo, check_names
from onnxqat.data.sources import RawBatch, Source
from onnxqat.errors import DataError
from onnxqat.graph import files_read
from onnxqat.isolation import limits

LABEL_KEYS = ("labels", "label", "y")
NAMELESS = "arr_0"
"""Name that ``numpy.savez(path, array)`` writes for an array that has none."""

_LOCAL_HEADER = 30
_OF_MACHINE = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO)
UNREADABLE = (OSError, ValueError, EOFError, OverflowError, MemoryError)  # the last two: sizes that no file has


class Arrays(Source):
    """One array per input, samples along the first axis.

    Where an array has one axis more than its input, a sample is a whole feed: it goes alone, and the arrays that
    have a batch axis are cut to one.

    Raises:
        DataError: ``data-input-name``, ``data-shape`` (different numbers of samples), ``data-labels``.
    """

    def __init__(
        self, name: str, arrays: Mapping[str, npt.NDArray[Any]], inputs: Sequence[InputInfo], path: Path | None = None
    ) -> None:
        self.name, self._path = name, path
        self.files = [path] if path is not None else [*filter(None, map(_mapped_file, arrays.values()))]
        self._arrays, self._labels = split_labels(arrays, inputs)
        check_names(self._arrays, inputs, name)
        counts = {key: array.shape[0] if array.ndim else None for key, array in self._arrays.items()}
        if len(set(counts.values())) != 1 or None in counts.values():
            found = ", ".join(f"{key!r} {list(self._arrays[key].shape)}" for key in counts)
            raise DataError(
                "data-shape",
                f"{name}: the first axes are not one number of samples: {found or 'there is no array'}",
                hint="a folder of .npz files gives one batch a file, of any shapes",
            )
        self.samples = next(iter(self._arrays.values())).shape[0]
        if self._labels is not None and self._labels.shape[:1] != (self.samples,):
            raise DataError(
                "data-labels", f"{name}: labels of shape {list(self._labels.shape)} for {self.samples} samples"
            )
        self._whole = {i.name for i in inputs if i.shape is not None and self._arrays[i.name].ndim == len(i.shape) + 1}
        self.batched = self.numbered = not self._whole

    def batches(self, size: int) -> Iterator[RawBatch]:
        """Slices of `size` samples, copied out of the file."""
        size = 1 if self._whole else size
        for start in range(0, self.samples or 0, size):
            part = slice(start, start + size)
            feeds = {key: np.array(a[start] if key in self._whole else a[part]) for key, a in self._arrays.items()}
            labels = None if self._labels is None else np.array(self._labels[part])
            yield RawBatch(feeds, labels, f"{self.name}, sample {start}")

    def identity(self) -> Identity:
        """Identity of the values, the same for a file and for arrays in memory but for the name."""
        return Identity("" if self._path is None else self._path.name, identity.of_arrays(self._arrays))

    def pick(self, indices: Sequence[int]) -> RawBatch | None:
        """The samples of these numbers; None where a sample is a whole feed."""
        if self._whole:
            return None
        numbers = list(indices)
        labels = None if self._labels is None else self._labels[numbers]
        feeds = {key: array[numbers] for key, array in self._arrays.items()}
        return RawBatch(feeds, labels, f"{self.name}, sample {numbers[0]}")


class ArchiveFolder(Source):
    """A folder of ``.npz`` files, each one batch; their shapes may differ."""

    def __init__(self, folder: Path, files: Sequence[Path], inputs: Sequence[InputInfo]) -> None:
        self.name = str(folder)
        self.files = self._files = files
        self._folder, self._inputs = folder, inputs
        self.known_batches = len(files)

    def identity(self) -> Identity:
        """Identity from the names and sizes of all files and the contents of some."""
        return Identity(self._folder.resolve().name, identity.of_files(self._folder, self._files))

    def batches(self, size: int) -> Iterator[RawBatch]:
        """One batch per file, in the order of the names."""
        return self.batches_at(range(len(self._files)), size)

    def batches_at(self, numbers: Sequence[int], size: int) -> Iterator[RawBatch]:
        """The batches of these files alone."""
        for path in (self._files[number] for number in numbers):
            feeds, labels = split_labels(read_npz(path), self._inputs)
            yield RawBatch({k: np.array(a) for k, a in feeds.items()}, labels, str(path))


def _mapped_file(array: Any) -> str | None:
    """The file that `array`, or its base, is mapped from; None if it is in memory."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return None if array is None or array.filename is None else os.fspath(array.filename)


def split_labels(
    arrays: Mapping[str, npt.NDArray[Any]], inputs: Sequence[InputInfo]
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any] | None]:
    """The inputs' arrays, and those under a label key that is no input of the model.

    One array without a name is the one input's.
    """
    names = [info.name for info in inputs]
    key = next((k for k in LABEL_KEYS if k in arrays and k not in names), None)
    feeds = {k: a for k, a in arrays.items() if k != key}
    if len(names) == 1 and list(feeds) == [NAMELESS]:
        feeds = {names[0]: feeds[NAMELESS]}
    return feeds, None if key is None else arrays[key]


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a ``.npz`` file; those stored uncompressed (``np.savez``) are memory-mapped, never pickles.

    Raises:
        DataError: ``data-format``.
    """
    try:
        files_read.check_regular(path)
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as loaded:
            arrays = {}
            _check_unpacked(path, archive)
            for key, entry in zip(loaded.files, archive.infolist(), strict=True):
                mapped = _mapped(path, entry) if entry.compress_type == zipfile.ZIP_STORED else None
                arrays[key] = np.asarray(loaded[key]) if mapped is None else mapped
            return arrays
    except (*UNREADABLE, zipfile.BadZipFile, KeyError, struct.error, zlib.error, RuntimeError) as error:
        raise _unreadable(path, error) from None


def _check_unpacked(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse compressed arrays that take more memory than the largest tensor may; zeros shrink to a thousandth."""
    entries = [entry for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
    size, most = sum(entry.file_size for entry in entries), limits.largest_tensor()
    if size > most:
        raise DataError(
            "data-format",
            f"{path}: its compressed arrays take {size / 2**30:.3g} GB once they are unpacked; at most {most / 2**30:g} GB are",
            hint=f"write it with numpy.savez, whose arrays are read piece by piece, or raise the limit: {limits.MEMORY}=GB",
        )


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array of a ``.npy`` file, memory-mapped, never a pickle.

    Raises:
        DataError: ``data-format``.
    """
    try:
        files_read.check_regular(path)
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    """Return an error on the contents of the file; raise `error` again if the machine is to blame (memory, I/O)."""
    if isinstance(error, OSError) and error.errno in _OF_MACHINE:
        raise error
    if (
        isinstance(error, ValueError) and "object" in str(error).lower()
    ):  # numpy's words differ with and without a memory map
        text = (
            f"{path}: holds Python objects, as numpy writes for dicts and for arrays of unlike shapes, and no numbers"
        )
        return DataError("data-format", text, hint="save one array of numbers: numpy.save(path, numpy.stack(arrays))")
    return DataError("data-format", f"{path}: cannot be read as numpy data: {error}")


def _mapped(path: Path, entry: zipfile.ZipInfo) -> npt.NDArray[Any] | None:
    """Map an uncompressed member; None where it is not plain numbers, and numpy is to read or refuse it."""
    with open(path, "rb") as file:
        # The local header repeats name and extra field, with lengths that may differ from the central directory's.
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER)
        if len(header) < _LOCAL_HEADER:
            return None
        name, extra = struct.unpack("<HH", header[26:30])
        file.seek(entry.header_offset + _LOCAL_HEADER + name + extra)
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            return None
        shape, fortran, dtype = read(file)
        if dtype.hasobject or 0 in shape:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
