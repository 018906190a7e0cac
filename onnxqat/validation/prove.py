"""Proofs about the widths of a QDQ file in integers, tightened and counted on data, with the hashes of all that went in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from onnxqat._version import __version__, installed
from onnxqat.arithmetic._base import WIDTHS
from onnxqat.data.data import Data
from onnxqat.data.inputs import samples_of
from onnxqat.data.recorded import Recorded
from onnxqat.displayed import Displayed
from onnxqat.errors import ModelError, UnsupportedError
from onnxqat.graph import files_read, io, notes, provenance, qdq, quantized_forms
from onnxqat.runtime import broken_model
from onnxqat.types import Remark
from onnxqat.validation import layer_proofs
from onnxqat.validation.check_inputs import open_data
from onnxqat.validation.compare import plain
from onnxqat.validation.layer_proofs import FunctionProof, SumProof, Unproved

if TYPE_CHECKING:
    from onnxqat.bridge.integer.model import IntegerModel, Sums
    from onnxqat.data.preprocess import Preprocess

SCHEMA = 1
"""Version of the JSON file; a new key may be added, none changes its meaning."""

SAMPLES = 512
"""Samples on which ranges are measured where nobody says how many."""

PACKAGES = ("onnx", "onnx-ir", "onnxruntime", "numpy", "torch")


@dataclasses.dataclass(frozen=True)
class Measured:
    """The sums of a layer on data.

    Attributes:
        largest: largest magnitude of a sum, bias included.
        bits: of the accumulator that holds it.
        bits_in_range: of the smallest accumulator that holds every sum of inputs whose channels stay in the ranges that
            they had in the data; None for a computed weight.
        channel: output channel that needs most there.
        sums: number of sums.
        beyond: how many of them leave an accumulator of 16, 24 and 32 bits.
    """

    largest: int
    bits: int
    bits_in_range: int | None
    channel: int | None
    sums: int
    beyond: dict[int, int]


@dataclasses.dataclass(frozen=True)
class LayerProof:
    """A layer: what holds for any input, and what data showed.

    Attributes:
        proof: for any input.
        measured: on the data; None without data or torch, and for pools.
    """

    proof: SumProof
    measured: Measured | None = None


@dataclasses.dataclass(frozen=True)
class Saturation:
    """A quantized tensor on data.

    Attributes:
        tensor: its name.
        values: number of values.
        at_ends: how many have the first or the last code of the grid.
    """

    tensor: str
    values: int
    at_ends: int


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or data set that went into a proof.

    Attributes:
        name: of the file, or what messages call it.
        sha256: of its bytes; of data the fingerprint of :mod:`onnxqat.data.identity`; empty where unknown.
    """

    name: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Proof(Displayed):
    """Result of :func:`prove`.

    Attributes:
        float_model: the original; None where none was given.
        file: the QDQ file.
        data: data on which sums were measured; None without.
        versions: of Python, onnxqat and what it computes with.
        samples: number of samples that were run.
        accumulator_bits: width that the file was made for; None where it states none.
        layers: layers on integer grids, in graph order.
        pools: means over windows.
        functions: integer functions that the file calls.
        saturation: quantized tensors on the data.
        unproved: layers about which nothing is said, each with a reason.
        failures: layers that can leave the width that the file was made for, or 32 bits.
        remarks: what is worth knowing.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_proof:from_proof"

    float_model: Source | None
    file: Source
    data: Source | None
    versions: dict[str, str]
    samples: int
    accumulator_bits: int | None
    layers: tuple[LayerProof, ...]
    pools: tuple[SumProof, ...]
    functions: tuple[FunctionProof, ...]
    saturation: tuple[Saturation, ...]
    unproved: tuple[Unproved, ...]
    failures: tuple[str, ...]
    remarks: tuple[Remark, ...]

    @property
    def bits(self) -> int | None:
        """Bits of the smallest accumulator that holds every sum of every layer; None where a length is unknown."""
        widths = [layer.proof.bits for layer in self.layers]
        return None if not widths or None in widths else max(w for w in widths if w is not None)

    def to_json(self) -> str:
        """The proof as a JSON document, indented."""
        return json.dumps({"schema": SCHEMA, **plain(self)}, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


@broken_model.guard("qdq_model")
def prove(
    qdq_model: io.ModelSource,
    data: Any = None,
    *,
    float_model: io.ModelSource | None = None,
    output: str | os.PathLike[str] | None = None,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = SAMPLES,
    random_data: bool = False,
    use_torch: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
) -> Proof:
    """Prove how wide the accumulators of a QDQ file have to be, and count on data what happens.

    For any input: bounds on every partial sum of each output channel, from the codes of the weights and the ends of the
    grids alone, and of each stage of integer functions. On data: the same for inputs that stay in the ranges of their
    channels, the largest sums, and values at the ends of grids. Without data, and where torch is not installed, what
    holds for any input alone.

    Args:
        qdq_model: path or model; it is not changed.
        data: what :func:`onnxqat.data.data.open_data` takes; None: what the file remembers, else no data.
        float_model: the original, for its hash.
        output: JSON file to write the proof to.
        preprocess: preprocessing line for image folders.
        batch_size: largest number of samples in a batch; see :func:`onnxqat.validation.check_inputs.open_data`.
        limit: largest number of samples.
        random_data: with no `data`, use random numbers.
        use_torch: measure on the data, which takes the torch bridge.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-not-quantized``, and what :func:`onnxqat.load` raises.
        DataError: what the data source raises.
        UnsupportedError: ``operator-unsupported``.
    """
    if output is not None:
        files_read.plan(Path(output), "--prove")
    model = io.load(qdq_model)
    if not qdq.is_quantized(model):
        raise quantized_forms.refusal(model, io.name_of(qdq_model)) or ModelError(
            "model-not-quantized", f"{io.name_of(qdq_model)} holds no quantizers", hint="first: onnxqat insert-qdq"
        )
    recorded, remarks = Recorded.of(model, qdq_model), list[Remark]()
    opened = None
    if random_data or data is not None or recorded.data_or(None, []) is not None:
        opened = open_data(model, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded)
    integers = None if opened is None or not use_torch else _integers(model, remarks)
    sums, saturation, samples = _measured(model, integers, opened, limit, progress)
    remarks.extend(_uncounted(model, saturation))
    layers, pools = _layers(model, sums), tuple(layer_proofs.pools(model))
    known = {id(layer.node) for layer, _ in layer_proofs.layers(model)}
    width = notes.accumulator_bits(model)
    proof = Proof(
        float_model=None if float_model is None else _source(float_model),
        file=_source(qdq_model),
        data=None if opened is None else Source(opened.name, opened.identity().sha256),
        versions=versions(),
        samples=samples,
        accumulator_bits=width,
        layers=layers,
        pools=pools,
        functions=tuple(layer_proofs.functions(model)),
        saturation=saturation,
        unproved=tuple(layer_proofs.unproved(model, known)),
        failures=tuple(_failures([*(layer.proof for layer in layers), *pools], width)),
        remarks=(*(() if opened is None else opened.remarks), *remarks),
    )
    if output is not None:
        io.write_atomic(Path(output), proof.to_json().encode("utf-8"))
    return proof


def versions() -> dict[str, str]:
    """Versions of Python, onnxqat and the packages that a proof depends on, those that are installed."""
    here = {name: version for name in PACKAGES if (version := installed(name)) is not None}
    return {"python": platform.python_version(), "onnxqat": __version__, **here}


def _source(model: io.ModelSource) -> Source:
    name, sha256 = provenance.float_model(model, io.load(model))
    if not sha256:  # a model in memory
        sha256 = hashlib.sha256(ir.to_proto(io.load(model)).SerializeToString(deterministic=True)).hexdigest()
    return Source(name or io.name_of(model), sha256)


def _integers(model: ir.Model, remarks: list[Remark]) -> IntegerModel | None:
    """`model` in integers; None, with a remark, where torch is missing or the bridge refuses an operator."""
    try:
        from onnxqat.bridge.integer.model import to_integer

        return to_integer(model)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        text = "torch is not installed: sums were not measured on the data (extra: onnxqat[train])"
    except UnsupportedError as error:
        text = f"sums were not measured on the data: {error.message}"
    remarks.append(Remark(text, source="prove"))
    return None


def _measured(
    model: ir.Model,
    integers: IntegerModel | None,
    opened: Data | None,
    limit: int | None,
    progress: Callable[[int, int | None], None] | None,
) -> tuple[tuple[Sums, ...], tuple[Saturation, ...], int]:
    """Sums of layers, values at the ends of grids, and the number of samples."""
    if opened is None or integers is None:
        return (), (), 0
    grids = {q.tensor: q.qparams.qtype for q in qdq.quantizers(model)}
    counts: dict[str, list[int]] = {}
    samples = 0
    for done, (feeds, _) in enumerate(opened.labelled(), start=1):
        for name, codes in integers.run(feeds).codes.items():
            if name not in grids:
                continue
            held, ends = counts.setdefault(name, [0, 0]), (grids[name].quant_min, grids[name].quant_max)
            held[0] += codes.size
            held[1] += int(((codes == ends[0]) | (codes == ends[1])).sum())
        samples += samples_of(feeds)
        if progress is not None:
            progress(done, opened.batches)
        if limit is not None and samples >= limit:
            break
    return integers.sums(), tuple(Saturation(name, *held) for name, held in counts.items()), samples


def _uncounted(model: ir.Model, saturation: Sequence[Saturation]) -> Iterator[Remark]:
    """Tensors in bodies whose values at the ends of grids were not counted, where others' were."""
    known = {each.tensor for each in saturation}
    inner = [q for q in qdq.quantizers(model) if q.role == "activation" and q.nodes[0].graph is not model.graph]
    left = tuple(dict.fromkeys(q.tensor for q in inner if not q.stored and q.tensor not in known))
    if known and left:
        text = "values at the ends of grids were not counted in bodies of Loop and Scan, nor in branches that no sample took"
        yield Remark(text, left, "prove")


def _layers(model: ir.Model, sums: Sequence[Sums]) -> tuple[LayerProof, ...]:
    by_tensors = {(s.input, s.weight): s for s in sums}
    found = []
    for layer, proof in layer_proofs.layers(model):
        seen = by_tensors.get((proof.input, proof.weight))
        if seen is None or seen.reached.low is None or seen.reached.high is None:
            found.append(LayerProof(proof))
            continue
        ends = layer_proofs.on_steps(layer, (seen.reached.low, seen.reached.high))
        bits, channel = (None, None) if ends is None else (ends.bits, ends.widest)
        found.append(
            LayerProof(proof, Measured(seen.largest, seen.bits, bits, channel, seen.reached.sums, seen.reached.beyond))
        )
    return tuple(found)


def _failures(proofs: Sequence[SumProof], width: int | None) -> list[str]:
    """Layers that can leave the width that a file was made for, else 32 bits."""
    allowed = width or max(WIDTHS)
    return [
        f"layer {p.node!r}: channel {p.channel} can reach {p.low} to {p.high}, which takes {p.bits} bits of {allowed}"
        for p in proofs
        if p.bits is not None and p.bits > allowed
    ]
