"""A session of onnxruntime that was tried in a child process before this one opens and runs it.

onnxruntime ends its process on some models: by a signal, by memory that one model takes, or by a Loop without an end. A
child process opens each session first, and runs it on one sample; what it survives happens here as well, at full speed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data import inputs
from onnxqat.errors import ModelError, QatError
from onnxqat.graph import io, sizes, walk
from onnxqat.graph.saving import with_inline_attributes
from onnxqat.graph.staging import scratch
from onnxqat.isolation import interruptible, limits
from onnxqat.isolation.child import session_arguments
from onnxqat.isolation.process import DiedError, RefusedError, TookTooLongError, UnavailableError, child

Array = npt.NDArray[Any]

_IN_MEMORY = 2**29
_NUMBERS = itertools.count()  # of sessions in the child
_OUT_OF_MEMORY = ("bad allocation", "bad_alloc", "Failed to allocate memory", "Unable to allocate", "MemoryError")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a session.

    Attributes:
        optimize: the default graph optimizations; none without.
        entries: session configuration entries.
        libraries: of custom operators.
        without: disabled optimizers.
        threads: number of intra-op threads; 0 is one per core.
    """

    optimize: bool
    entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    threads: int = 0

    def __str__(self) -> str:
        parts = ["default graph optimizations" if self.optimize else "graph optimizations off"]
        parts += [f"{key}={value}" for key, value in self.entries.items()]
        return ", ".join([*parts, *(f"without {name}" for name in self.without)])

    def plain(self) -> dict[str, Any]:
        """The form that :mod:`onnxqat.isolation.child` reads."""
        level = "ORT_ENABLE_ALL" if self.optimize else "ORT_DISABLE_ALL"
        return {
            "level": level,
            **{name: getattr(self, name) for name in ("entries", "libraries", "without", "threads")},
        }


class TriedSession:
    """One session; the first run of it is tried as well.

    Args:
        model: what is run; it is not changed.
        settings: see there.
        what: what messages call the model.

    Attributes:
        session: ``onnxruntime.InferenceSession``.
        settings: what it was opened with.

    Raises:
        ModelError: ``runtime-failed``, ``model-too-large``.
        Exception: whatever onnxruntime raises, or a :class:`RefusedError` of the same text.
    """

    def __init__(self, model: ir.Model, settings: Settings, what: str) -> None:
        self.settings, self._what = settings, what
        with contextlib.suppress(UnavailableError):
            child().start()  # it loads onnxruntime while this process does
        import onnxruntime

        self._model: ir.Model | None = model  # until the first run
        self._weights = sizes.weights_of(model)
        self._loops = any(node.op_type == "Loop" for node in walk.nodes(model))
        self._number: int | None = next(_NUMBERS)
        with contextlib.ExitStack() as stack:
            self._source: bytes | str = _serialized(model, self._weights, stack)
            self._try_to_open()
            self.session = onnxruntime.InferenceSession(**session_arguments(self._source, settings.plain()))
        self._inputs = inputs.of_session(self.session)

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], where: str = "") -> list[Any]:
        """``session.run``, tried on one sample of `feeds` first where it is the first run.

        Raises:
            ModelError: see the class; `where` ends the message.
            Exception: whatever onnxruntime raises.
        """
        if self._number is not None:
            self._try_to_run(list(names), feeds, where)
        if self._loops:
            return interruptible.run(self.session, names, feeds)
        return list(self.session.run(list(names), dict(feeds)))

    def _need(self, dimensions: Mapping[str, int] | None = None) -> int:
        assert self._model is not None
        held = sizes.tensors_of(self._model, dimensions)
        return limits.need(self._weights, held.tensors, known=held.known)

    def _try_to_open(self) -> None:
        need, seconds = self._need(), limits.opening_seconds(self._weights)
        options = self.settings.plain()
        with self._explained("was opened", "", seconds):
            child().request(seconds, do="open", number=self._number, model=self._source, options=options, need=need)

    def _try_to_run(self, names: list[str], feeds: Mapping[str, Array], where: str) -> None:
        number = self._number
        one = _one_sample(feeds, self._inputs)
        need = self._need(inputs.dimensions(one, self._inputs))
        request = {"do": "run", "number": number, "names": names, "feeds": one, "need": need}
        seconds = limits.seconds() if self._loops else None
        # What a single sample makes onnxruntime refuse, the batch may not: the run in this process tells.
        with contextlib.suppress(RefusedError), self._explained("ran", where, seconds):
            if not child().request(seconds, **request) and isinstance(self._source, bytes):
                self._try_to_open()  # the child ended with another model and is a new one
                child().request(seconds, **request)
            child().request(None, do="close", number=number)
        self._number, self._model, self._source = None, None, b""

    @contextlib.contextmanager
    def _explained(self, did: str, where: str, seconds: float | None) -> Any:
        try:
            yield
        except UnavailableError:
            pass
        except DiedError as error:
            words = f": {error.words}" if error.words else ""
            raise self._failed(f"{error.how} when {self._what} {did}{where}", words) from None
        except TookTooLongError:
            work = f"one sample of {self._what}" if did == "ran" else f"opening {self._what}"
            cure = "give the Loop in it an end" if self._loops else "try another release of onnxruntime"
            raise ModelError(
                "runtime-failed",
                f"onnxruntime did not finish {work} within {seconds:g} s{where} ({self.settings})",
                hint=f"{cure}; {limits.SECONDS}=SECONDS, now {limits.seconds():g}, gives it more time",
            ) from None
        except RefusedError as error:
            if any(text in str(error) for text in _OUT_OF_MEMORY):
                raise self._out_of_memory(did, where) from None
            raise

    def _failed(self, how: str, words: str) -> QatError:
        return ModelError(
            "runtime-failed",
            f"onnxruntime {how} ({self.settings}){words}",
            hint="onnxruntime alone ends the same way: try another release of it, or change the node that it names",
        )

    def _out_of_memory(self, did: str, where: str) -> QatError:
        return ModelError(
            "model-too-large",
            f"onnxruntime ran out of the memory that it may take when {self._what} {did}{where} ({self.settings})",
            hint=f"correct the sizes in the model, or raise the limit: {limits.MEMORY}=GB, now "
            f"{limits.largest_tensor() / 2**30:g}",
        )


def _one_sample(feeds: Mapping[str, Array], fed: Sequence[inputs.InputInfo]) -> dict[str, Array]:
    """The first sample of `feeds` where every input has a dynamic first axis, all of one length; else the whole batch."""
    dynamic = bool(fed) and all(info.shape and not isinstance(info.shape[0], int) for info in fed)
    lengths = {value.shape[0] if value.ndim else 0 for value in feeds.values()}
    if not dynamic or len(lengths) != 1 or 0 in lengths:
        return dict(feeds)
    return {name: np.ascontiguousarray(value[:1]) for name, value in feeds.items()}


def _serialized(model: ir.Model, weights: int, stack: contextlib.ExitStack) -> bytes | str:
    """The model as bytes; one with many bytes of `weights` through a temporary folder, since a protobuf ends at 2 GB."""
    if weights <= _IN_MEMORY:
        return bytes(io.to_proto(model).SerializeToString())
    path = stack.enter_context(scratch()) / "model.onnx"
    ir.save(with_inline_attributes(model), path, external_data="model.data", size_threshold_bytes=1024)
    return str(path)
