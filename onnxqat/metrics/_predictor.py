"""One model as a score sees it: a function from inputs to outputs."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.inputs import InputInfo, static_batch
from onnxqat.errors import DataError, UsageError
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]


class Predictor:
    """A model that answers ``predict(feeds)`` with its outputs, whatever computes it.

    It is also a path: :func:`os.fspath`, ``str`` and `path` give an ONNX file of the model, which is written when it is
    first asked for, so that a function of a file can score it.

    Args:
        run: feeds by input name to outputs by name.
        inputs: what must be fed.
        outputs: names of the outputs, in the order of the graph.
        name: what messages call the model.
        file: an ONNX file of the model, or a function that writes one to the path that it is given; None where there is
            none, as of a model that a vendor's compiler made.
    """

    def __init__(
        self,
        run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
        inputs: Sequence[InputInfo],
        outputs: Sequence[str],
        *,
        name: str = "the model",
        file: str | os.PathLike[str] | Callable[[Path], object] | None = None,
    ) -> None:
        self.inputs, self.outputs, self.name = tuple(inputs), tuple(outputs), name
        self._run, self._file = run, file

    @classmethod
    def of(cls, model: io.ModelSource, *, optimize: bool = False, precise: bool = False, name: str = "") -> Predictor:
        """The predictor of an ONNX model in onnxruntime on the CPU.

        Args:
            model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
            optimize: the runtime's default graph optimizations; without, the graph is computed as it is written.
            precise: see :class:`onnxqat.runtime.session.Session`.
            name: what messages call the model.

        Raises:
            ModelError: ``model-not-runnable``, and what :func:`onnxqat.graph.io.load` raises.
        """
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        loaded = io.load(model)
        name = name or (path if path is not None else "the model")
        session = Session(loaded, optimize=optimize, precise=precise, what=name)
        return cls.of_session(session, path if path is not None else loaded, name=name)

    @classmethod
    def of_session(cls, session: Session, model: ir.Model | str | os.PathLike[str], *, name: str = "") -> Predictor:
        """The predictor of a session that is open already.

        Args:
            session: it computes.
            model: what it was opened on, or a file of that.
            name: what messages call the model.
        """
        kept = model
        file = kept if isinstance(kept, (str, os.PathLike)) else lambda path: io.save(kept, path)
        return cls(session.run, session.inputs, session.output_names, name=name or session.what, file=file)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name.

        A model that prescribes a batch size takes any number of samples: they are cut to it, the last part is filled up
        with its last sample, and what belongs to that is dropped from the outputs.

        Args:
            feeds: arrays by input name.

        Raises:
            DataError: ``data-shape``: the samples cannot be cut to the model's batch size.
            ModelError: ``model-not-runnable``.
        """
        size = static_batch(self.inputs)
        counts = {a.shape[0] if a.ndim else None for a in feeds.values()}
        count = next(iter(counts)) if len(counts) == 1 else None
        if size is None or count is None or count == size:
            return dict(self._run(feeds))
        if not count:
            raise DataError("data-shape", f"{self.name}: there is no sample in the batch")
        parts = [self._run_padded_batch(feeds, start, size, count) for start in range(0, count, size)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run_padded_batch(self, feeds: Mapping[str, Array], start: int, size: int, count: int) -> dict[str, Array]:
        numbers = np.minimum(np.arange(start, start + size), count - 1)
        found = self._run({name: array[numbers] for name, array in feeds.items()})
        kept = min(size, count - start)
        for name, array in found.items():
            if array.shape[:1] != (size,):
                text = f"{self.name} takes {size} samples at a time and output {name!r} has no axis for them"
                hint = f"give batches of {size}, as with --batch-size {size}"
                raise DataError("data-shape", f"{text}: it has shape {list(array.shape)}", hint=hint)
        return {name: array[:kept] for name, array in found.items()}

    @property
    def path(self) -> Path:
        """An ONNX file of the model.

        Raises:
            UsageError: ``score-failed``: the model is no ONNX file but what a compiler made of one.
        """
        if self._file is None:
            raise UsageError(
                "score-failed",
                f"the score asks for an ONNX file of {self.name}, which has none",
                hint="write the score as a function of a predictor: it calls predict(feeds) and gets the outputs",
            )
        if callable(self._file):
            stack = contextlib.ExitStack()
            target = stack.enter_context(scratch()) / "model.onnx"
            weakref.finalize(self, stack.close)
            self._file(target)
            self._file = target
        return Path(self._file)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<Predictor of {self.name}>"
