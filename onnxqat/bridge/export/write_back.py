"""Trained values back into the ONNX file: initializers only, and of those only the ones whose value changed.

Works on the protobuf, since a round trip through another representation would reorder bytes. With nothing changed
the output is the input, byte for byte, where the input is one file.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch
from onnx import external_data_helper
from torch import Tensor, nn

from onnxqat import numerics
from onnxqat.bridge.export import far_from_start, function_constants, grid_notes, kept_start, seen_samples
from onnxqat.bridge.export.constant_slots import PackedSlot, Slot, ir_slots, proto_slots
from onnxqat.bridge.export.function_constants import FunctionConstants
from onnxqat.bridge.export.packed_weights import Packing
from onnxqat.bridge.importing import values
from onnxqat.bridge.lowering.normalization import BatchNorm
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import external, io, saving
from onnxqat.graph.io import ModelT
from onnxqat.metrics import ScoreSource
from onnxqat.runtime import broken_model
from onnxqat.types import FloatArray, IntArray, QParams

Array: TypeAlias = npt.NDArray[Any]

FINETUNED = "onnxqat.finetuned"


@overload
def write_back(
    module: nn.Module,
    model: ModelT,
    output: str | os.PathLike[str] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    score: ScoreSource | None = None,
    data: Any = None,
) -> ModelT: ...


@overload
def write_back(
    module: nn.Module,
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    score: ScoreSource | None = None,
    data: Any = None,
) -> Path: ...


@broken_model.blames("model")
def write_back(
    module: nn.Module,
    model: io.ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
    score: ScoreSource | None = None,
    data: Any = None,
) -> Any:
    """Put the values of `module` into `model`, the model that :func:`onnxqat.to_torch` made it from.

    What changes, each only where its value differs from the file's:

    1. scales and zero points of quantizers, in every initializer that holds a copy;
    2. float constants: weights of the train form, biases, normalization parameters;
    3. integer codes of the deploy form: the master weight on its grid;
    4. derived biases, when the bias or a scale of its layer changed: scale ``s_x * s_w`` and int32 codes, or the
       snapped values of a bias that is stored as float;
    5. the constants of integer functions, which follow from the scales in front and behind and from weights;
    6. the ends of a Clip, or the note of them behind stored codes, where the method has another grid than the file;
    7. ``metadata_props``: ``onnxqat.finetuned`` and `metadata`, when anything of the above changed.

    Names, dtypes, shapes, storage fields and everything else stay. The caller's model is not changed.

    Args:
        module: the trained module; ``torch.compile`` and data-parallel wrappers are seen through.
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph.
        output: file to write; needed when `model` is a path. It appears whole or not at all and may be the same file.
            Its weights are its own: inside below 2 GB, else in a data file that no other model names.
        metadata: more ``metadata_props``, written when anything changed.
        score: write the better one of `model` and what training made of it, by this score, which onnxruntime's outputs
            get: a name as ``"top1"``, ``"module:function"`` or a function (docs/metrics.md). Where training did not
            help, `model` is written as it is, and a ``TrainingDidNotHelpWarning`` says so. None: what was trained, and
            a ``TrainedFarAwayWarning`` where that is far from `model` on what it was trained on, or on mixtures of it.
        data: samples for `score` that training did not see, with labels: a path, arrays, or a data source.

    Returns:
        The path written when `model` is a path, else a changed copy of the kind given.

    Raises:
        QatError: ``checkpoint-mismatch`` when a name of the module is not in the model, or a shape differs;
            ``training-diverged`` when a trained value is not finite.
        UsageError: ``option-invalid`` when `module` does not come from ``to_torch``, `output` is missing, or a grid is
            finer than the file's.
        ModelError: the model cannot be read, or the output not written.
        DataError: `data` cannot be read, or lacks what `score` needs.
    """
    if score is not None:
        helped = _helped(module, model, metadata, score, data)
        return put_back(module, model, output, metadata=metadata) if helped else kept_start.write_start(model, output)
    batches = seen_samples.seen_by(module)
    start = io.load(model) if batches else None  # before `output`, which may be the same file, is written
    written = put_back(module, model, output, metadata=metadata)
    if start is not None:
        far_from_start.warn_where_far(start, written, batches)
    return written


def put_back(
    module: nn.Module,
    model: io.ModelSource,
    output: str | os.PathLike[str] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> Any:
    """Do what :func:`write_back` does without a score, for callers that know what training made of the model.

    Raises:
        QatError: as :func:`write_back`.
    """
    source = _Source.of(module)
    properties = {FINETUNED: "true", **(metadata or {})}
    if isinstance(model, (str, os.PathLike)):
        if output is None:
            raise UsageError("option-invalid", f"no output path to write {os.fspath(model)!r} back to")
        return _write_file(source, Path(model), Path(output), properties)
    if isinstance(model, onnx.ModelProto):
        external.check_external_data(model, "the model", None)
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        source.calls = function_constants.of_proto(proto, proto)
        _apply_to_proto(_changes(source, _Constants(proto_slots(proto, ""))), proto, properties)
        if output is not None:
            io.save(proto, output)
        return proto
    loaded = io.load(model)
    source.calls = function_constants.of_model(loaded)
    _apply_to_ir(_changes(source, _Constants(ir_slots(loaded))), loaded, properties)
    if output is not None:
        io.save(loaded, output)
    return io.like(model, loaded)


def _helped(
    module: nn.Module, model: io.ModelSource, metadata: Mapping[str, str] | None, score: ScoreSource, data: Any
) -> bool:
    """Check whether the state of `module` scores at least as high as `model`."""
    with tempfile.TemporaryDirectory(prefix="onnxqat-") as folder:
        trained = Path(folder) / "trained.onnx"
        try:
            put_back(module, model, trained, metadata=metadata)
        except QatError as error:
            return kept_start.diverged(error)
        return kept_start.helped(model, trained, score, data)


# --- constants of a model ---------------------------------------------------------------------------------------


class _Constants:
    """The constants of a model by name, and the new values for some of them."""

    def __init__(self, slots: Iterable[tuple[str, Slot, bool]]) -> None:
        self._slots: dict[str, list[Slot]] = {}
        self._in_functions: list[Slot] = []
        for name, slot, in_function in slots:
            self._slots.setdefault(name, []).append(slot)
            if in_function:
                self._in_functions.append(slot)
        self.changes: dict[str, Array] = {}
        self.notes: dict[str, tuple[int, int]] = {}  # of grids at stored codes, by dequantized tensor

    def read(self, name: str) -> Array:
        """The value in the file."""
        if name not in self._slots:
            raise _mismatch(f"the model has no constant {name!r}", "is it the model that the module was made from?")
        return self._slots[name][0].array

    def unpack(self, name: str, packing: Packing | None) -> None:
        """Read and write `name` as a matrix of codes from now on, where it is packed."""
        if packing is not None:
            self.read(name)
            self._slots[name] = [
                slot if isinstance(slot, PackedSlot) else PackedSlot(slot, packing) for slot in self._slots[name]
            ]

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """Its element type; None for a constant of a call of a function."""
        return self.read(name).dtype if name in self._slots else None

    def propose(self, name: str, value: Array) -> None:
        """Make `value` the new value of `name`; no change when it is what the file holds, in the dtype of `value`."""
        if name not in self._slots and any(_same_bits(s.array.astype(value.dtype), value) for s in self._in_functions):
            return  # the second call of a function has constants of its own in the module; this one was not trained
        old = self.read(name)
        if value.size != old.size or (value.ndim == old.ndim and value.shape != old.shape):
            raise _mismatch(f"constant {name!r} has shape {old.shape} in the model and {value.shape} in the module")
        value = value.reshape(old.shape)
        if any(_same_bits(s.array.astype(value.dtype), value) for s in self._slots[name]):
            new = old
        else:
            new = np.asarray(value.astype(old.dtype))
            if len(self._slots[name]) > 1:
                raise _mismatch(f"several scopes of the model have a constant {name!r}", "give them different names")
            _check_finite(name, old, new)
        if name in self.changes or new is not old:
            if not _same_bits(self.changes.get(name, new), new):
                raise _mismatch(f"constant {name!r} is shared in the model, but the module has different values for it")
            self.changes[name] = new

    def apply(self) -> None:
        """Write the new values into the model."""
        for name, value in self.changes.items():
            self._slots[name][0].replace(value)


def _check_finite(name: str, old: Array, new: Array) -> None:
    if new.dtype.kind in "iub" or np.isfinite(new.astype(np.float64)).all():
        return
    if np.isfinite(old.astype(np.float64)).all():
        raise QatError("training-diverged", f"the trained value of {name!r} is not finite")


def _same_bits(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return bool(np.array_equal(left, right))


def _mismatch(message: str, hint: str = "") -> QatError:
    return QatError("checkpoint-mismatch", message, hint=hint)


# --- what the module says ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Source:
    """State of a module of ``to_torch``: quantizers and the tensors that stand for constants."""

    quantizers: list[FakeQuantize]
    tensors: dict[str, Tensor]  # by ONNX name, without those of quantizers
    calls: FunctionConstants = dataclasses.field(default_factory=FunctionConstants)

    @staticmethod
    def of(module: nn.Module) -> _Source:
        """Read `module`."""
        bare = module
        while "parameter_names" not in bare.__dict__:
            # A compiled module shows the attributes of the module that it wraps, hence __dict__.
            children = dict(bare.named_children())
            inner = children.get("_orig_mod", children.get("module"))
            if inner is None:
                raise UsageError("option-invalid", f"{type(module).__name__} is not a module that to_torch made")
            bare = inner
        names = cast("dict[str, str]", bare.parameter_names)
        found = list(quantizers(bare))
        held: dict[str, Tensor] = dict(bare.named_parameters(remove_duplicate=False))
        held.update(bare.named_buffers(remove_duplicate=False))
        inside = {
            f"{path}.{key}" for path, q in found for key in (*dict(q.named_parameters()), *dict(q.named_buffers()))
        }
        missing = [key for key in names if key not in held]
        if missing:
            raise _mismatch(f"the module no longer has {missing[0]!r}, which holds {names[missing[0]]!r}")
        tensors = {name: held[key].detach() for key, name in names.items() if key not in inside}
        for part in bare.modules():
            if isinstance(part, BatchNorm) and part.positive in tensors:
                tensors[part.positive] = tensors[part.positive].abs()
        return _Source([q for _, q in found], tensors)


def _numpy(tensor: Tensor, held: np.dtype[Any] | None) -> Array:
    """The values of a tensor that stands for a constant of type `held`; float32 for bfloat16."""
    kind = None if held is None else values.element_type(held)
    if kind in values.CONTAINERS and values.CONTAINERS[kind] == tensor.dtype:
        return values.array(tensor, kind)
    tensor = tensor.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _changes(source: _Source, constants: _Constants) -> _Constants:
    written: dict[int, tuple[FloatArray, bool]] = {}
    done: set[str] = set()
    for q in source.quantizers:
        if not isinstance(q, DerivedFakeQuantize):
            written[id(q)] = _write_quantizer(q, source, constants, done)
    for q in source.quantizers:
        if isinstance(q, DerivedFakeQuantize):
            _write_derived(q, source, constants, done, written)
    done |= source.calls.weights
    fresh = source.calls.values(source.tensors, lambda name: constants.changes.get(name, constants.read(name)))
    for name, value in fresh.items():
        constants.propose(name, value)
    for name, tensor in source.tensors.items():
        if name not in done:
            constants.propose(name, _numpy(tensor, constants.dtype(name)))
    return constants


def _write_quantizer(
    q: FakeQuantize, source: _Source, constants: _Constants, done: set[str]
) -> tuple[FloatArray, bool]:
    """Scale, zero point and codes of `q`; returns the scale as written and whether the parameters changed."""
    if q.finer != 1:
        raise UsageError(
            "option-invalid",
            f"the quantizer of tensor {q.tensor!r} is on a grid {q.finer} times as fine as the file's",
            hint="a run of progressive widths ended before it reached the file's own",
        )
    for name, packing in q.packings.items():
        constants.unpack(name, packing)
    new = q.qparams()
    old = _in_file(q, new, constants)
    if old is None:
        raise _mismatch(f"nothing in the model holds the scale of tensor {q.tensor!r}")
    for name in q.scale_names:
        constants.propose(name, new.scale)
    for name in q.zero_point_names:
        constants.propose(name, new.zero_point)
    if not q.zero_point_names and new.zero_point.any():
        raise _mismatch(f"the model holds no zero point for tensor {q.tensor!r}, the module has one that is not 0")
    # A scale that the file holds in half precision is rounded: the codes have to fit what is written.
    scale = constants.changes.get(q.scale_names[0], constants.read(q.scale_names[0]))
    scale = np.asarray(scale.astype(np.float32).reshape(new.scale.shape))
    _check_scale(q, scale, old.scale)
    kept = dataclasses.replace(new, scale=scale)
    _write_grid(q, constants)
    if q.codes_name is not None:
        _write_codes(q.codes_name, _master(q, source, done), old, kept, constants)
    elif q.transforms_weight and q.role == "weight":
        constants.propose(q.tensor, _master(q, source, done))
    return scale, not kept.same(old)


def _check_scale(q: FakeQuantize, new: FloatArray, old: FloatArray) -> None:
    """Refuse a trained scale that is no positive normal number; in blocks, one that has left its side of zero.

    `new` is what the file's type makes of it. A scale at zero quantizes everything to the two ends of its grid: the
    network is dead, and runtimes differ in what they make of subnormal numbers. What the file held already stays.
    """
    changed = new.view(np.uint32) != np.ascontiguousarray(old).view(np.uint32)
    aligned = np.where(old < 0, -new, new) if q.block_size is not None else new
    dead = changed & ~(aligned >= np.finfo(np.float32).tiny)  # NaN is not above it either
    if dead.any():
        raise QatError(
            "training-diverged",
            f"the trained scale of tensor {q.tensor!r} is {new.flat[np.argmax(dead)]:g}, not a positive normal number",
            hint="train again with a smaller learning rate; the module of to_torch limits what a step does to a scale",
        )


def _write_grid(q: FakeQuantize, constants: _Constants) -> None:
    """The smallest and the largest code, where the file states them."""
    if q.qtype.is_float:
        return
    for name, code in zip(q.bound_names, (q.quant_min, q.quant_max), strict=True):
        if name is not None:
            constants.propose(name, np.asarray(code, np.int64))
    if q.codes_name is not None and q.bound_names == (None, None) and q.qtype.needs_clip:
        constants.notes[q.tensor] = (q.quant_min, q.quant_max)


def _write_derived(
    q: DerivedFakeQuantize,
    source: _Source,
    constants: _Constants,
    done: set[str],
    written: dict[int, tuple[FloatArray, bool]],
) -> None:
    """Propose the codes of a bias, and its scale where the activation's or the weight's scale has moved."""
    if q.stored_as == "computed":
        return  # what it is computed from is written
    new = q.qparams()
    sources = [written.get(id(s)) for s in (q.activation, q.weight)]
    scales = [s.qparams().scale if w is None else w[0] for s, w in zip((q.activation, q.weight), sources, strict=True)]
    moved = any(w is not None and w[1] for w in sources)
    if moved:
        new = dataclasses.replace(new, scale=numerics.bias_scale(scales[0], scales[1], new.scale.shape))
    master = _master(q, source, done)
    if q.codes_name is None:
        # A float bias on the grid; what was not touched stays as the file has it.
        touched = moved or not _same_bits(master, constants.read(q.tensor).astype(master.dtype).reshape(master.shape))
        constants.propose(q.tensor, numerics.fake_quantize(master, new) if touched else master)
        return
    old = _in_file(q, new, constants)
    if old is None:
        raise _mismatch(f"nothing in the model holds the scale of bias {q.tensor!r}")
    if moved:
        for name in q.scale_names:
            constants.propose(name, new.scale)
    _write_codes(q.codes_name, master, old, new if moved else old, constants)


def _in_file(q: FakeQuantize, like: QParams, constants: _Constants) -> QParams | None:
    """The parameters of `q` as they are in the file."""
    if not q.scale_names:
        return None

    def shaped(name: str, dtype: type[np.generic]) -> Array:
        value = constants.read(name)
        if value.size != like.scale.size:
            raise _mismatch(f"{name!r} has shape {value.shape} in the model and {like.scale.shape} in the module")
        return np.asarray(value.astype(dtype).reshape(like.scale.shape))

    zero: IntArray = np.zeros(like.scale.shape, np.int64)
    if q.zero_point_names:
        zero = shaped(q.zero_point_names[0], np.int64)
    return dataclasses.replace(like, scale=shaped(q.scale_names[0], np.float32), zero_point=zero)


def _write_codes(name: str, master: FloatArray, old: QParams, new: QParams, constants: _Constants) -> None:
    codes = constants.read(name).astype(new.qtype.computed_type)
    if codes.shape != master.shape:
        raise _mismatch(f"constant {name!r} has shape {codes.shape} in the model and {master.shape} in the module")
    held = numerics.dequantize(codes, old)
    _check_finite(name, held, master)
    fresh = numerics.quantize(master, new)
    # Large int32 codes do not survive dequantize and quantize; a value that was not trained keeps its code.
    constants.propose(name, np.where(held == master, codes, fresh) if new.same(old) else fresh)


def _master(q: FakeQuantize, source: _Source, done: set[str]) -> FloatArray:
    """The float tensor behind stored codes or behind a snapped bias, as the method wants it in the file."""
    for name in (q.codes_name, q.tensor):
        if name is not None and name in source.tensors:
            done.add(name)
            with torch.no_grad():
                return np.asarray(q.export_weight(source.tensors[name]).float().cpu().numpy())
    raise _mismatch(f"the module holds no weight for tensor {q.tensor!r}")


def _apply_to_proto(constants: _Constants, proto: onnx.ModelProto, properties: Mapping[str, str]) -> None:
    if not constants.changes:
        return
    constants.apply()
    grid_notes.write_proto(proto, constants.notes)
    present = {entry.key: entry for entry in proto.metadata_props}
    for key, value in properties.items():
        if key in present:
            present[key].value = value
        else:
            proto.metadata_props.add(key=key, value=value)


def _apply_to_ir(constants: _Constants, model: ir.Model, properties: Mapping[str, str]) -> None:
    if constants.changes:
        constants.apply()
        grid_notes.write_ir(model, constants.notes)
        model.metadata_props.update(properties)


def _write_file(source: _Source, path: Path, output: Path, properties: Mapping[str, str]) -> Path:
    """Write the changed constants into a copy of the file; without changes its own bytes, where it is a single file."""
    proto = io.read_proto(path)
    external.check_external_data(proto, str(path), path.parent)
    source.calls = function_constants.of_proto(proto, path)
    constants = _changes(source, _Constants(proto_slots(proto, str(path.parent))))
    if not external.has_external_data(proto):
        # Serializing again could give other bytes than those that some other tool wrote.
        if not constants.changes:
            io.write_atomic(output, path.read_bytes())
            return output
    elif not constants.changes and output.exists() and os.path.samefile(path, output):
        return output
    elif external.bytes_outside(proto) + proto.ByteSize() > saving.PROTOBUF_LIMIT:
        loaded = io.load(path)
        _apply_to_ir(_changes(source, _Constants(ir_slots(loaded))), loaded, properties)
        return io.save(loaded, output, external_data=True)
    else:
        for tensor in external.tensors(proto):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                external.state_length(tensor)
        external_data_helper.load_external_data_for_model(proto, str(path.parent))
    _apply_to_proto(constants, proto, properties)
    return io.save(proto, output)
