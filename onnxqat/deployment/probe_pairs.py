"""Two operators behind one another, placed by the backend's table: where a pair runs otherwise than its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from onnxqat import discover
from onnxqat.backends import schema
from onnxqat.deployment import probe_models
from onnxqat.deployment.base_compiler import Array, BaseCompiler
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.outputs import check_outputs, output_quantizers
from onnxqat.deployment.probe import LIMIT, Compared, Outcome, Stopped, chosen_compiler, stop_of
from onnxqat.deployment.probe_models import SEQUENCE, Case
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import BackendError, CheckError, ModelError, UnsupportedError
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.insertion.insert import insert_qdq
from onnxqat.runtime.session import Session

FIRST, SECOND = "first_", "second_"
STEEP_LIMIT = 8.0  # one code of the first operator is several behind a steep second one, such as Softmax
_SAMPLES = 2

_CONV = Case("Conv", weights={1: ((8, 8, 3, 3), 0)}, attributes={"pads": [1, 1, 1, 1]})
_POINTWISE = Case("Conv/pointwise", weights={1: ((8, 8, 1, 1), 0)})
_DEPTHWISE = Case("Conv/depthwise", weights={1: ((8, 1, 3, 3), 0)}, attributes={"pads": [1, 1, 1, 1], "group": 8})
_LINEAR = Case("MatMul", (SEQUENCE,), weights={1: ((16, 16), 1)})
_SCORES = Case("MatMul/computed", (SEQUENCE, (1, 16, 8)))
_GEMM = Case("Gemm", ((1, 16),), weights={1: ((8, 16), 0)}, attributes={"transB": 1})


def _on(shape: tuple[int, ...], case: Case) -> Case:
    """`case` with inputs of another shape."""
    return dataclasses.replace(case, shapes=(shape,) * len(case.shapes))


def _of(name: str, **changes: Any) -> Case:
    """The case of the one-operator probe with that name."""
    return dataclasses.replace(next(c for c in probe_models.CASES if c.name == name), **changes)


_WIDE = (1, 16, 12, 12)
_DOUBLED = (1, 8, 24, 24)
_ADD = _of("Add")
_MEAN = Case("GlobalAveragePool")

PAIRS: tuple[tuple[Case, Case], ...] = (
    *((_CONV, _of(op)) for op in ("Relu", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Tanh", "PRelu", "Gelu")),
    *((_CONV, _of(op)) for op in ("Add", "Mul", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool")),
    *((_CONV, _of(op)) for op in ("Resize/nearest", "Resize/linear", "DepthToSpace", "Transpose", "Slice", "Split")),
    (_CONV, _DEPTHWISE),
    (_DEPTHWISE, _POINTWISE),
    *((_of(op), _CONV) for op in ("Relu", "Sigmoid", "HardSwish", "Add", "Mul", "Sub", "Pad/constant", "Pad/reflect")),
    (_of("BatchNormalization"), _CONV),
    (_of("Concat"), dataclasses.replace(_on(_WIDE, _CONV), weights={1: ((8, 16, 3, 3), 0)})),
    (_of("MaxPool"), _on((1, 8, 6, 6), _CONV)),
    (_of("AveragePool"), _on((1, 8, 6, 6), _CONV)),
    (_of("Resize/nearest"), _on(_DOUBLED, _CONV)),
    (_of("Resize/linear"), _on(_DOUBLED, _CONV)),
    (_of("Resize/nearest"), _on(_DOUBLED, _ADD)),
    (_ADD, _of("Relu")),
    (_ADD, _ADD),
    (_of("Mul"), _ADD),
    (_MEAN, _on((1, 8, 1, 1), _of("Flatten", constants={}))),
    (_MEAN, _on((1, 8, 1, 1), _POINTWISE)),
    (_of("Flatten", shapes=((1, 16, 1, 1),)), _GEMM),
    (_GEMM, _on((1, 8), _of("Relu"))),
    (_LINEAR, _on(SEQUENCE, _ADD)),
    *((_LINEAR, _on(SEQUENCE, _of(op))) for op in ("Relu", "Gelu", "Sigmoid", "Tanh", "LayerNormalization", "Softmax")),
    *((_of(op), _LINEAR) for op in ("LayerNormalization", "RMSNormalization", "Softmax")),
    (_on(SEQUENCE, _ADD), _of("LayerNormalization")),
    (_of("Softmax"), _SCORES),
    (_SCORES, _on((1, 6, 8), _of("Softmax"))),
    (_LINEAR, _SCORES),
    (_on((1, 16, 6), _of("Transpose", attributes={"perm": [0, 2, 1]})), _LINEAR),
    (_on((1, 16, 6), _of("Transpose", attributes={"perm": [0, 2, 1]})), _SCORES),
    (_of("Reshape", shapes=((1, 16, 2, 3),), constants={1: np.array(SEQUENCE, np.int64)}), _LINEAR),
    (_of("Gather", shapes=((1, 12, 16),), constants={1: np.arange(6)}), _LINEAR),
)
"""Producers and consumers as they stand behind one another in convolutional networks and in transformers."""


def name_of(pair: tuple[Case, Case]) -> str:
    """Name of a pair: ``Conv->Add``."""
    return "->".join(case.name for case in pair)


@dataclasses.dataclass(frozen=True)
class LearnedPair:
    """Two operators, the second reading the first, in the file that insert-qdq writes for the table.

    Attributes:
        name: ``Conv->Add``.
        alone: outcome of each operator in a model of its own; see :class:`onnxqat.deployment.probe.Learned`.
        together: outcome of each in the model of both; that of the compiler for both where it made nothing of it, and
            ``refused`` too where the table says so before anything is compiled.
        detail: the kernels, or the compiler's words.
        told: the table's ``limits`` say that the compiler stops.
        steps: largest difference from the reference, in LSB of the output; None where no numbers came back.
        steps_alone: the larger one of the two by themselves.
    """

    name: str
    alone: tuple[Outcome, Outcome]
    together: tuple[Outcome, Outcome]
    detail: str
    told: bool = False
    steps: float | None = None
    steps_alone: float | None = None

    @property
    def difference(self) -> str:
        """Difference between the pair and its parts in words; empty where there is none."""
        if self.told:
            return ""
        words = [
            f"{name} runs {alone} alone, and {both} here"
            for name, alone, both in zip(self.name.split("->"), self.alone, self.together, strict=True)
            if alone in ("integer", "moved") and both not in ("integer", "moved")
        ]
        off = self.steps is not None and not self.steps <= STEEP_LIMIT
        if off and (self.steps_alone is None or self.steps_alone <= LIMIT):
            words.append(f"its numbers are {self.steps:.0f} steps off")
        return "; ".join(words)


class PairReport(Compared[LearnedPair]):
    """Result of :func:`probe_pairs`, a row per pair; it differs where a pair runs otherwise than its parts."""


def float_model(cases: Sequence[Case]) -> onnx.ModelProto:
    """Float model of one operator, or of two of which the second reads the first.

    Args:
        cases: one or two; the first output of the first has the shape of the second's first input.
    """
    graphs = [
        onnx.compose.add_prefix_graph(probe_models.float_graph(case), prefix)
        for case, prefix in zip(cases, (FIRST, SECOND), strict=False)
    ]
    if len(graphs) == 2:
        graphs = [onnx.compose.merge_graphs(graphs[0], graphs[1], io_map=[(f"{FIRST}y0", f"{SECOND}x0")])]
    return probe_models.inferred(graphs[0], max(case.opset for case in cases))


def feeds(cases: Sequence[Case], seed: int) -> dict[str, Array]:
    """Inputs of :func:`float_model`, float32."""
    made: dict[str, Array] = {}
    for case, prefix in zip(cases, (FIRST, SECOND), strict=False):
        made |= {prefix + name: values for name, values in probe_models.feeds(case, seed).items()}
    if len(cases) == 2:
        del made[f"{SECOND}x0"]
    return made


@dataclasses.dataclass(frozen=True)
class _Target:
    """Compiler, table, the table's name or path, and the seconds for each model."""

    compiler: BaseCompiler
    table: schema.Backend
    source: str
    timeout: float


@dataclasses.dataclass(frozen=True)
class _Run:
    outcomes: tuple[Outcome, ...]
    detail: str
    steps: float | None = None
    told: bool = False


def probe_pairs(
    compiler: str,
    backend: str | None = None,
    *,
    only: Sequence[str] = (),
    timeout: float = 120.0,
    progress: Callable[[int, int | None], None] | None = None,
) -> PairReport:
    """Compile each pair of operators, and each of its parts, in the file that insert-qdq writes for the table.

    Args:
        compiler: its name; each model is compiled in a process of its own.
        backend: table to place by; without one, the first that belongs to the compiler.
        only: names of pairs (``Conv->Add``); all without.
        timeout: seconds for each model.
        progress: called with pairs done and their number.

    Raises:
        UsageError: ``name-unknown``, ``dependency-missing``; ``option-invalid``: no table belongs to the compiler.
        BackendError: ``backend-unknown``.
    """
    known = [name_of(pair) for pair in PAIRS]
    for name in only:
        if name not in known:
            raise discover.unknown("probe", name, known)
    chosen, table = chosen_compiler(compiler, backend)
    target = _Target(chosen, table, backend or table.backend, timeout)
    pairs = [pair for pair in PAIRS if not only or name_of(pair) in only]
    alone: dict[int, _Run] = {}
    rows = []
    for done, pair in enumerate(pairs, 1):
        for case in pair:
            if id(case) not in alone:
                alone[id(case)] = _run(target, [case])
        rows.append(_learned(pair, [alone[id(case)] for case in pair], _run(target, pair)))
        if progress is not None:
            progress(done, len(pairs))
    return PairReport(chosen.name, str(chosen.version()), table.backend, tuple(rows))


def _learned(pair: tuple[Case, Case], alone: Sequence[_Run], both: _Run) -> LearnedPair:
    measured = [run.steps for run in alone if run.steps is not None]
    return LearnedPair(
        name_of(pair),
        (alone[0].outcomes[0], alone[1].outcomes[0]),
        (both.outcomes[0], both.outcomes[1]),
        both.detail,
        both.told,
        both.steps,
        max(measured, default=None),
    )


def _run(target: _Target, cases: Sequence[Case]) -> _Run:
    """Compile one or two operators in a small model, and read back how each runs and how exactly."""
    stopped: Stopped = "refused"
    fed = [feeds(cases, seed) for seed in range(_SAMPLES)]
    data = {name: np.concatenate([one[name] for one in fed]) for name in fed[0]}
    with scratch() as folder:
        path = folder / "probe.onnx"
        try:
            placed = insert_qdq(float_model(cases), target.source, data=data, batch_size=1, fast=True, guard=False)
            model = io.load(placed.model)
            io.save(deploy_form(model, target.table, []), path)
        except (ModelError, UnsupportedError, BackendError) as error:
            return _Run((stopped,) * len(cases), error.message, told=error.code == "target-refuses")
        try:
            result = compile_in_process(target.compiler, path, fed[:1], timeout=target.timeout)
        except CheckError as error:
            return _Run((stop_of(error),) * len(cases), error.message)
        steps = None
        if result.outputs:
            reference = [Session(model, optimize=False).run(fed[0])]
            checks = check_outputs(result.outputs, reference, output_quantizers(model), LIMIT)
            steps = max(check.largest_steps for check in checks)
    by_name = {node.name: node for node in result.nodes}
    nodes = [by_name.get(f"{prefix}probed") for _, prefix in zip(cases, (FIRST, SECOND), strict=False)]
    details = [f"{node.detail}: {node.why}" if node.why else node.detail for node in nodes if node is not None]
    # a node that the compiler does not list was folded into its neighbour
    return _Run(tuple("moved" if node is None else node.kind for node in nodes), "; ".join(details), steps)
