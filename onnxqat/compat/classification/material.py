"""Images for training and validation: ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg``, or ``train.npz`` and ``val.npz``."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from onnxqat.data.inputs import InputInfo
from onnxqat.data.preprocess import ImageTransform, Preprocess, line, parse
from onnxqat.data.sources import IMAGE_FORMATS, IMAGE_SUFFIXES
from onnxqat.errors import DataError, UsageError
from onnxqat.graph import files_read
from onnxqat.training.data.batches import Batch, Batches, make

_log = logging.getLogger(__name__)

IMAGENET = Preprocess(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
AREA = (0.08, 1.0)
"""Part of the image's area that a training crop has (Szegedy et al., CVPR 2015)."""
ASPECT = (3 / 4, 4 / 3)
MARGIN = 256 / 224
"""The shorter side of a validation image over the crop that is taken from its middle."""

Sample = tuple[npt.NDArray[Any], int]


@dataclasses.dataclass(frozen=True)
class Material:
    """Training, calibration and validation data of a run.

    Attributes:
        train: shuffled and, for images, cropped and flipped at random.
        plain: the training data as they are when measured, in another order: for calibration.
        val: in order.
    """

    train: Batches
    plain: Batches
    val: Batches


def open_material(
    folder: str, info: InputInfo, *, batch_size: int, workers: int, seed: int, preprocess: str | None, image_size: int
) -> Material:
    """The data in `folder` for a network with the input `info`.

    Args:
        folder: holds ``train`` and ``val``: folders of one folder per class, or ``.npz`` files with labels.
        info: the network's input.
        batch_size: samples per batch.
        workers: processes that read images.
        seed: of order and crops; each epoch has its own.
        preprocess: a preprocessing line for validation; training takes colour, scale, mean and std from it.
        image_size: side of images where `info` does not say it.

    Raises:
        DataError: ``data-not-found``, ``data-missing``, ``data-format``, ``data-labels``.
        UsageError: ``option-invalid``: the preprocessing line.
    """
    home = Path(folder)
    if not home.is_dir():
        raise DataError("data-not-found", f"{folder}: no such folder", hint="it holds train/ and val/")
    if (home / "train.npz").is_file():
        parts = [home / "train.npz", home / "val.npz"]
        if not parts[1].is_file():
            raise DataError("data-not-found", f"{parts[1]}: no such file")
        train, val = (make(str(p), None, [info], batch_size=batch_size, seed=seed) for p in parts)
        return Material(train, train, val)
    steps = _steps(preprocess)
    measured = Measured.of(info, steps, image_size)
    if steps is None:
        _log.warning("%s", _default_text(info, image_size))
    names = sorted(p.name for p in (home / "train").iterdir() if p.is_dir()) if (home / "train").is_dir() else []
    if not names:
        raise DataError("data-missing", f"{home / 'train'}: there is no folder of a class in it")
    train_files, val_files = (files_of(home / part, names) for part in ("train", "val"))
    learned = TrainingTransform.of(info, steps, image_size)
    return Material(
        Images(train_files, learned, info.name, batch_size, workers=workers, seed=seed),
        Images(train_files, measured, info.name, batch_size, workers=workers, seed=seed + 1),
        Images(val_files, measured, info.name, batch_size, workers=workers, seed=None),
    )


def files_of(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Images and class numbers, in the order of their paths.

    Raises:
        DataError: ``data-missing`` where there is none, ``data-labels`` for a class that training does not have.
    """
    if not folder.is_dir():
        raise DataError("data-not-found", f"{folder}: no such folder")
    found = []
    for home in sorted(p for p in folder.iterdir() if p.is_dir()):
        if home.name not in classes:
            raise DataError("data-labels", f"{home}: no class of this name is trained")
        number = classes.index(home.name)
        images = (p for p in sorted(home.rglob("*")) if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        found += [(p, number) for p in images]
    if not found:
        raise DataError("data-missing", f"{folder}: holds no images")
    files_read.note_all((path for path, _ in found), "the data")
    return found


def validation_transform(info: InputInfo, steps: Preprocess | None, image_size: int) -> ImageTransform:
    """`steps`, or the shorter side to 8/7 of the size, the middle, and ImageNet's mean and deviation."""
    shape = _shape(info)
    if steps is not None:
        return ImageTransform.of(steps, shape, info.dtype)
    height, width = _size(info, image_size)
    plain = dataclasses.replace(_normalized(info), resize=round(max(height, width) * MARGIN), crop=(height, width))
    return ImageTransform.of(plain, shape, info.dtype)


def validation_data(folder: str, info: InputInfo, preprocess: str | None, image_size: int) -> tuple[Path, str | None]:
    """Return the path of the validation data, and the preprocessing line with which other commands read them alike.

    Args:
        folder: as of :func:`open_material`.
        info: the same.
        preprocess: the same.
        image_size: the same.
    """
    home = Path(folder)
    if (home / "train.npz").is_file():
        return home / "val.npz", None
    steps = _steps(preprocess)
    return home / "val", line(validation_transform(info, steps, image_size).steps)


def _steps(preprocess: str | None) -> Preprocess | None:
    """The preprocessing line, parsed.

    Raises:
        UsageError: ``option-invalid``: it is a Python file, whose colour, scale, mean and std training cannot take over.
    """
    steps = None if preprocess is None else parse(preprocess)
    if steps is not None and steps.file:
        text = f"training crops and mirrors images itself, and {preprocess} is a function"
        raise UsageError("option-invalid", text, hint="give the steps, as in scale=1/255,mean=0.5,std=0.25")
    return steps


def _shape(info: InputInfo) -> tuple[int | str | None, ...]:
    if info.shape is None or len(info.shape) != 4:
        raise DataError("data-shape", f"images do not fit input {info}, which is not of rank 4")
    return info.shape


def _size(info: InputInfo, image_size: int) -> tuple[int, int]:
    shape = _shape(info)
    sides = shape[1:3] if shape[3] in (1, 3) and shape[1] not in (1, 3) else shape[2:4]
    height, width = (side if isinstance(side, int) else image_size for side in sides)
    return height, width


def _normalized(info: InputInfo) -> Preprocess:
    if np.dtype(info.dtype).kind != "f":
        return Preprocess()
    shape = _shape(info)
    if 1 in (shape[1], shape[3]) and 3 not in (shape[1], shape[3]):
        return Preprocess(scale=1 / 255, mean=(0.449,), std=(0.226,))
    return IMAGENET


def _default_text(info: InputInfo, image_size: int) -> str:
    """Return the warning for images without a preprocessing line: their treatment, and the line that stands for it."""
    height, width = _size(info, image_size)
    normal = _normalized(info)
    text = f"no --preprocess was given: images are cut to {height}x{width}"
    if not normal.plain:
        mean, std = (":".join(f"{value:g}" for value in values) for values in (normal.mean, normal.std))
        text += f" and normalized as for ImageNet (scale=1/255,mean={mean},std={std})"
    return f"{text}; give the line that the model was trained with where that differs"


class Measured:
    """An image as it is measured; nothing is left to chance.

    Args:
        transform: for all images.
        sized: for images that have the network's size already, which no margin is cut from; `transform` where None.
        size: height and width of the network's input.
    """

    def __init__(
        self, transform: ImageTransform, sized: ImageTransform | None = None, size: tuple[int, int] | None = None
    ) -> None:
        self.transform, self.sized, self.size = transform, sized or transform, size

    @staticmethod
    def of(info: InputInfo, steps: Preprocess | None, image_size: int) -> Measured:
        """For the network's input `info`, with the preprocessing line `steps` where there is one."""
        transform = validation_transform(info, steps, image_size)
        if steps is not None:
            return Measured(transform)
        plain = ImageTransform.of(_normalized(info), _shape(info), info.dtype)
        return Measured(transform, plain, _size(info, image_size))

    def __call__(self, image: Image.Image, random: np.random.Generator) -> npt.NDArray[Any]:
        """One sample."""
        return (self.sized if (image.height, image.width) == self.size else self.transform)(image)


class TrainingTransform:
    """A crop of random place, size and aspect, mirrored every other time, as torch's ImageNet example has it.

    Args:
        transform: brings the crop to the network's size and normalizes it.
    """

    def __init__(self, transform: ImageTransform) -> None:
        self.transform = transform

    @staticmethod
    def of(info: InputInfo, steps: Preprocess | None, image_size: int) -> TrainingTransform:
        """For the network's input `info`."""
        base = _normalized(info) if steps is None else dataclasses.replace(steps, letterbox=None, crop=None)
        sized = dataclasses.replace(base, resize=_size(info, image_size))
        return TrainingTransform(ImageTransform.of(sized, _shape(info), info.dtype))

    def __call__(self, image: Image.Image, random: np.random.Generator) -> npt.NDArray[Any]:
        """One sample."""
        cropped = image.crop(crop_box(image.width, image.height, random))
        if random.random() < 0.5:
            cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.transform(cropped)


def crop_box(width: int, height: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """A box of :data:`AREA` and :data:`ASPECT`; the largest in the middle where ten tries give none inside."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * ASPECT[1]))
    h = min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


class Images:
    """Batches of image files, read by other processes where there are `workers`.

    Which crop an image gets follows from seed, epoch and its number alone, whoever reads it.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        transform: TrainingTransform | Measured,
        name: str,
        batch_size: int,
        *,
        workers: int,
        seed: int | None,
    ) -> None:
        self._files, self._transform, self._name = list(files), transform, name
        self._size, self._seed = batch_size, seed
        self._workers = max(0, min(workers, os.cpu_count() or 1))

    @property
    def steps(self) -> int:
        """Batches an epoch."""
        return -(-len(self._files) // self._size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`; in the order of the files without a seed."""
        order: list[int] = list(range(len(self._files)))
        if self._seed is not None:
            order = np.random.default_rng((self._seed, number)).permutation(len(order)).tolist()
        chosen = [order[start : start + self._size] for start in range(0, len(order), self._size)]
        files = _Files(self._files, self._transform, (self._seed or 0, number))
        loader = DataLoader(files, batch_sampler=chosen, num_workers=self._workers, collate_fn=_collated)
        for images, labels in loader:
            if isinstance(images, DataError):  # raised here: an error of a worker process loses its fields
                raise images
            yield Batch({self._name: images}, labels)


class _Files(Dataset[Any]):
    def __init__(
        self, files: list[tuple[Path, int]], transform: TrainingTransform | Measured, key: tuple[int, int]
    ) -> None:
        self.files, self.transform, self.key = files, transform, key

    def __getitem__(self, index: int) -> Sample | DataError:
        path, label = self.files[index]
        try:
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                sized = image.convert("RGB") if image.mode not in ("L", "RGB") else image
                return self.transform(sized, np.random.default_rng((*self.key, index))), label
        except UsageError:
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on a damaged file
            return DataError("data-format", f"{path}: not a readable image: {error}")


def _collated(samples: Sequence[Sample | DataError]) -> tuple[Any, Any]:
    arrays, labels = [], []
    for sample in samples:
        if isinstance(sample, DataError):
            return sample, None
        arrays.append(sample[0])
        labels.append(sample[1])
    return torch.from_numpy(np.stack(arrays)), torch.tensor(labels, dtype=torch.int64)
