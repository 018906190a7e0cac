"""Samples in a batch of calibration or of a comparison, all tensors of which may be in memory at once."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxqat.data import inputs
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds
from onnxqat.data.preprocess import Preprocess
from onnxqat.data.recorded import Recorded
from onnxqat.errors import DataError, QatError
from onnxqat.graph import query, shapes, sizes, walk
from onnxqat.runtime import vendor_operators
from onnxqat.runtime.session import Session

LARGEST = 32
"""Samples of a batch where nobody says how many."""

BYTES = 2**29
"""Size of all tensors of a batch up to which it stays whole. A session holds them, hands them over, and observers work on
copies: the peak is two to three times that. A batch of this size keeps a core as busy as a larger one: ResNet-50 on 100
images takes 6.0 GB in batches of 32, and 2.0 GB in as much time in those that fit."""


def open_fitted(
    source: Any,
    model: ir.Model,
    *,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    recorded: Recorded | None = None,
) -> Data:
    """Open `source` for `model`, in batches of at most `batch_size` samples, 32 by default, that fit into memory.

    Args:
        source: what :func:`onnxqat.data.data.open_data` takes.
        model: what runs on it, with shapes.
        preprocess: preprocessing, or its line.
        batch_size: samples at most; :func:`fitted` may take fewer.
        limit: largest number of samples.
        recorded: what a file says of the data that it was made with.

    Raises:
        DataError, UsageError: as opening does.
    """
    line = lines.parse(preprocess) if isinstance(preprocess, str) else preprocess
    size = LARGEST if batch_size is None else batch_size
    infos = inputs.of_graph(model.graph)
    opened = (recorded or Recorded()).open(source, infos, preprocess=line, batch_size=size, limit=limit)
    return fitted(opened, model)


def fitted(data: Data, model: ir.Model) -> Data:
    """`data` in batches whose tensors take at most :data:`BYTES` together, or of one sample.

    Args:
        data: as they are where they can be read only once, or the source or the model prescribes the
            batches.
        model: what runs on them, with shapes.
    """
    if not data.repeatable or data.sizes is None or data.prescribed is not None:
        return data
    try:
        first = next(iter(data.few(1, batch_size=1)))
    except DataError:  # calibration reads all of them, and says what is wrong with which
        return data
    return data.in_batches(max(BYTES // max(_held(model, first), 1), 1))


def _held(model: ir.Model, feeds: Feeds) -> int:
    """Bytes of all tensors on `feeds`, as shapes say, or a run, where those of some follow from values."""
    if any(value.shape is None for value in walk.outputs(model.graph) if value.name):
        model = model.clone()  # files need not state the shapes of inner tensors
        shapes.infer(model)
    stated = sizes.tensors_of(model, inputs.dimensions(feeds, inputs.of_graph(model.graph)))
    if stated.known:
        return stated.tensors
    part = vendor_operators.runnable_part(model)
    names = [str(value.name) for value in walk.outputs(part.graph) if value.name and query.is_float(value)]
    try:
        found = Session(part, optimize=False, tensors=names).run(feeds, names)
        return sum(value.nbytes for value in found.values())
    except QatError:  # calibration runs it as well, and says what is wrong with which batch
        return stated.tensors
