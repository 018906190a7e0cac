"""Check of the promises that every compiler makes, on small quantized models, each compiled in a process of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import onnx

from onnxqat import extension
from onnxqat.deployment import base_compiler
from onnxqat.deployment.base_compiler import Array, BaseCompiler, CompilerResult, NodeResult
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.insertion.examples import quantized_examples
from onnxqat.pipeline.numbers import random_feeds
from onnxqat.promises import BrokenError, ExtensionCheck, try_each
from onnxqat.runtime.session import Session

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_SEEDS = (0, 1)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """One model that was compiled, twice.

    Attributes:
        name: of its graph.
        model: the file.
        batches: feeds.
        results: of both compilations; one after an error.
        kept: whether the model's file has the bytes that it had.
        beside: names of files that were made beside the model.
        made: names of files in the folder of artefacts.
        error: the compiler's words; empty where it took the model.
    """

    name: str
    model: onnx.ModelProto
    batches: tuple[dict[str, Array], ...]
    results: tuple[CompilerResult, ...]
    kept: bool
    beside: tuple[str, ...]
    made: tuple[str, ...]
    error: str

    def broken(self, message: str) -> BrokenError:
        """The error for a promise that the compiler does not keep on this model."""
        return BrokenError(f"{self.name}: {message}")


def check(name: str) -> ExtensionCheck:
    """Try a compiler: its name, or the path of its file.

    1. ``compiles``: it takes two small quantized models, each in a process of its own.
    2. ``nodes``: every node but the quantizers is reported once, with its name (the first output's where it has none),
       its operator and a known kind.
    3. ``reasons``: a node that is not on integers has a reason.
    4. ``outputs``: the graph's outputs by name for every batch, in order, with the types and shapes of onnxruntime; none
       from a class that says ``runs_numbers = False``.
    5. ``files``: nothing is written beside the model, and ``files`` names those in the folder of artefacts.
    6. ``input``: the model's file stays as it is.
    7. ``second run``: the same nodes, outputs and files again.

    Raises:
        UsageError: there is no such compiler; ``dependency-missing``: its package is not installed.
    """
    compiler = base_compiler.load(name)
    if compiler.version() is None:
        raise compiler.missing()
    trials = [_tried(compiler, model) for model in quantized_examples()[:2]]
    compiled = [trial for trial in trials if not trial.error]
    findings = try_each(
        {
            "compiles": lambda: _compiles(trials),
            "nodes": lambda: _nodes(compiled),
            "reasons": lambda: _reasons(compiled),
            "outputs": lambda: _outputs(compiler, compiled),
            "files": lambda: _files(trials),
            "input": lambda: _input(trials),
            "second run": lambda: _second_run(compiled),
        }
    )
    kinds = [node.kind for trial in compiled for node in trial.results[0].nodes]
    tried = f"{kinds.count('integer') + kinds.count('moved')} of {len(kinds)} nodes of {len(trials)} models on integers"
    return ExtensionCheck(extension.key_of(name), findings, tried)


def _tried(compiler: BaseCompiler, model: onnx.ModelProto) -> _Trial:
    batches = tuple(random_feeds(model, seed, size=1) for seed in _SEEDS)
    results: tuple[CompilerResult, ...] = ()
    error = ""
    with scratch() as folder:
        path, artefacts = folder / "model" / "model.onnx", folder / "artefacts"
        path.parent.mkdir()
        artefacts.mkdir()
        onnx.save(model, path)
        before = path.read_bytes()
        try:
            for _ in range(2):
                results += (compile_in_process(compiler, path, batches, artefacts=artefacts),)
        except QatError as refused:
            error = refused.message
        kept = path.is_file() and path.read_bytes() == before
        beside, made = _names(path.parent, but=path.name), _names(artefacts)
    return _Trial(model.graph.name, model, batches, results, kept, beside, made, error)


def _names(folder: Path, but: str = "") -> tuple[str, ...]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(name for name in found if name != but))


def _compiles(trials: Sequence[_Trial]) -> None:
    for trial in trials:
        if trial.error:
            raise trial.broken(trial.error)


def _nodes(compiled: Sequence[_Trial]) -> None:
    for trial in compiled:
        wanted = {n.name or n.output[0]: n.op_type for n in trial.model.graph.node if n.op_type not in _QUANTIZERS}
        seen: dict[str, NodeResult] = {}
        for node in trial.results[0].nodes:
            if node.name in seen:
                raise trial.broken(f"{node.name!r} is reported twice")
            if wanted.get(node.name) != node.op_type:
                raise trial.broken(f"there is no {node.op_type} {node.name!r} in the model")
            if node.kind not in get_args(base_compiler.Kind):
                raise trial.broken(f"{node.name!r}: the kind {node.kind!r} is none of {get_args(base_compiler.Kind)}")
            seen[node.name] = node
        missing = [name for name in wanted if name not in seen]
        if missing:
            raise trial.broken(f"nothing is said of the {wanted[missing[0]]} {missing[0]!r}")


def _reasons(compiled: Sequence[_Trial]) -> None:
    for trial in compiled:
        for node in trial.results[0].nodes:
            if node.kind in ("float", "rejected") and not node.why.strip():
                raise trial.broken(f"{node.name!r} is {node.kind} without a reason in `why`")


def _outputs(compiler: BaseCompiler, compiled: Sequence[_Trial]) -> str | None:
    for trial in compiled:
        found = trial.results[0].outputs
        if not compiler.runs_numbers:
            if found:
                raise trial.broken("outputs, though runs_numbers is False")
            continue
        session = Session(io.load(trial.model), optimize=False)
        wanted = [session.run(feeds) for feeds in trial.batches]
        if len(found) != len(wanted):
            raise trial.broken(f"outputs of {len(found)} batches instead of {len(wanted)}")
        for run, reference in zip(found, wanted, strict=True):
            _expect_outputs(trial, run, reference)
        for name in wanted[0]:
            # In place, two runs of one model are nearer to each other than runs of two batches are.
            swapped = [_distance(run[name], other[name]) for run, other in zip(found, wanted[::-1], strict=True)]
            placed = [_distance(run[name], own[name]) for run, own in zip(found, wanted, strict=True)]
            if sum(placed) > sum(swapped):
                raise trial.broken(f"output {name!r} is not that of its batch")
    return None if compiler.runs_numbers else "not asked: runs_numbers is False"


def _expect_outputs(trial: _Trial, run: dict[str, Array], reference: dict[str, Array]) -> None:
    if set(run) != set(reference):
        raise trial.broken(f"outputs {', '.join(run)} instead of {', '.join(reference)}")
    for name, array in reference.items():
        got = run[name]
        if got.dtype != array.dtype or got.shape != array.shape:
            raise trial.broken(
                f"output {name!r}: {got.dtype} {list(got.shape)} instead of {array.dtype} {list(array.shape)}"
            )


def _distance(a: Array, b: Array) -> float:
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).sum())


def _files(trials: Sequence[_Trial]) -> None:
    for trial in trials:
        if trial.beside:
            raise trial.broken(f"{trial.beside[0]!r} was written beside the model: use the folder `artefacts`")
        for result in trial.results:
            if set(result.files) != set(trial.made):
                told, there = ", ".join(result.files) or "none", ", ".join(trial.made) or "none"
                raise trial.broken(f"`files` names {told}, written were {there}")


def _input(trials: Sequence[_Trial]) -> None:
    for trial in trials:
        if not trial.kept:
            raise trial.broken("the file of the model was changed")


def _second_run(compiled: Sequence[_Trial]) -> None:
    for trial in compiled:
        first, second = trial.results
        if first.nodes != second.nodes or first.files != second.files:
            raise trial.broken("other nodes or files were reported")
        for run, other in zip(first.outputs, second.outputs, strict=True):
            differing = [name for name, array in run.items() if not np.array_equal(array, other[name], equal_nan=True)]
            if differing:
                raise trial.broken(f"output {differing[0]!r} is another one")
