"""Calibration data that a QDQ file records: the default of later commands, with remarks on other data."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.data import data as sources
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data
from onnxqat.data.preprocess import ImageTransform, Preprocess
from onnxqat.errors import UsageError
from onnxqat.graph import io, provenance
from onnxqat.graph.provenance import Provenance
from onnxqat.types import Remark

LARGEST_SIDE = 2**13
"""Sides of an image up to this size are taken from a file, which may be a stranger's: an image of it fills 200 MB."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Record of a QDQ file's origin.

    Attributes:
        provenance: the file's entries.
        near: the model as the caller gave it; files are looked up beside it where it is a path.
    """

    provenance: Provenance = dataclasses.field(default_factory=Provenance)
    near: Any = None

    @staticmethod
    def of(model: ir.Model, source: Any = None) -> Recorded:
        """Read the record of `model`, which was loaded from `source`."""
        return Recorded(provenance.of(model), source)

    def data_or(self, given: Any, remarks: list[Remark]) -> Any:
        """`given`, or for None the calibration data, with a remark, where they are found; else None.

        Data that a function yielded are not looked up: a file must not name code that is run.
        """
        if given is not None:
            return given
        path = provenance.find(self.provenance.data, self.near)
        if path is not None:
            text = f"no data were given: {path}, which the file records as its calibration data"
            remarks.append(Remark(text, source="data"))
        return path

    @property
    def steps(self) -> Preprocess | None:
        """The preprocessing of calibration images; None where none is recorded, or none that can be used.

        A Python file is not looked up: a file must not name code that is run.
        """
        try:
            steps = lines.parse_steps(self.provenance.preprocess) if self.provenance.preprocess else None
        except UsageError:
            return None
        return steps if steps is not None and _moderate(steps) else None

    def open(
        self,
        given: Any,
        inputs: Any,
        *,
        preprocess: Preprocess | None = None,
        batch_size: int = 32,
        limit: int | None = None,
    ) -> Data:
        """Open `given` as :func:`onnxqat.data.data.open_data` does; its remarks say what differs from the record.

        Raises:
            DataError, UsageError: as opening does.
        """
        opened = sources.open_data(
            given, inputs, preprocess=preprocess, recorded=self.steps, batch_size=batch_size, limit=limit
        )
        opened.remarks.extend(remark for remark in self.compared(opened) if remark not in opened.remarks)
        return opened

    def compared(self, opened: Data) -> list[Remark]:
        """Remarks where `opened` differs from the calibration data in preprocessing or content."""
        found = []
        if opened.transform is not None and self.provenance.preprocess:
            found += self._preprocessing(opened, opened.transform)
        wanted = self.provenance
        if wanted.data_sha256:
            identity = opened.identity()
            if identity.sha256 and identity.sha256 != wanted.data_sha256:
                same = identity.name == wanted.data
                text = (
                    f"{opened.name} holds other samples now than when the file was calibrated on it"
                    if same and wanted.data
                    else f"the file was calibrated on {wanted.data or 'arrays in memory'}, these data are others"
                )
                found.append(Remark(text, source="data"))
        return found

    def _preprocessing(self, opened: Data, transform: ImageTransform) -> list[Remark]:
        steps, line = self.steps, self.provenance.preprocess
        if transform.steps.file and Path(transform.steps.file).name == Path(line).name:
            return []
        if steps is None:
            text = f"the file records a preprocessing that is not usable by itself: {line}; give it by --preprocess"
            return [Remark(text, source="data")]
        info = opened.inputs[0]
        try:
            usual = ImageTransform.of(steps, info.shape or (), np.dtype(info.dtype)).steps
        except UsageError:
            usual = steps
        if usual == transform.steps:
            return []
        text = f"images go in as {lines.line(transform.steps)}, but the file was calibrated with {line}"
        return [Remark(text, source="data")]


def _moderate(steps: Preprocess) -> bool:
    sides = [steps.resize, steps.crop, steps.letterbox]
    numbers = [n for side in sides for n in (side if isinstance(side, tuple) else (side,)) if isinstance(n, int)]
    return max(numbers, default=0) <= LARGEST_SIDE


def remarks_on_float(model: ir.Model, source: Any, original: ir.Model | None = None) -> list[Remark]:
    """A remark where the float model given is another file than the one that `model` was made from.

    Args:
        model: the QDQ model.
        source: the float model as the caller gave it; one in memory is not compared.
        original: `source`, loaded; None: it is loaded here.
    """
    recorded = provenance.of(model)
    if not recorded.float_sha256 or not isinstance(source, (str, os.PathLike)):
        return []
    name, sha256 = provenance.float_model(source, io.load(source) if original is None else original)
    if sha256 == recorded.float_sha256:
        return []
    if name == recorded.float_model:
        text = f"{name} holds other bytes now than when the quantized file was made from it"
    else:
        text = f"the quantized file was made from {recorded.float_model}, and {name} is another model"
    return [Remark(text, source="model", concern="result")]
