"""onnxsim as a prepare step, behind a check that the function is kept."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.errors import CheckError, ModelError, QatError
from onnxqat.graph import io, qdq, walk
from onnxqat.passes._base import Context, Pass, Rewrite, apply
from onnxqat.passes._edits import Log, adopt
from onnxqat.passes._setting import Setting
from onnxqat.passes.convert_to_float32 import ConvertToFloat32

SIZES = (1, 2, 8, 32, 64, 224)
TOLERANCE = 1e-5
SEEDS = (0, 1)


class Simplify(Pass):
    """Simplify the model with onnxsim, and check that it is the same function.

    1. Constant folding, shape inference and fusions of onnxsim; metadata is put back where names survive.
    2. Refused with ``simplify-changed-function``: another number of Q/DQ nodes, other inputs or outputs, other
       numbers in onnxruntime, graph optimization off, on two random inputs.
    3. Refused with ``dependency-missing`` where onnxsim is not installed, and with ``model-not-runnable`` where
       onnxruntime runs the model on no input that could be made up.

    It renames and fuses tensors as it likes, so it is not part of the prepare recipe unless asked for.

    Tolerance: 1e-5 of the output's range. ::

        s = Shape(x)   i = Gather(s, zero)   y = Reshape(x, i)
        y = Reshape(x, constant)

    Args:
        shapes: sizes of inputs for the check, by input name; 1, 2, 8, ... are tried for symbolic ones by default.
        keep_batchnorm: leave BatchNormalization where it is; onnxsim would fuse it into convolutions.
        in_float32: convert to float32 first, in which the check has kernels for every operator.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        keep_batchnorm: bool = False,
        in_float32: bool = False,
    ) -> None:
        self.shapes = dict(shapes or {})
        self.keep_batchnorm = keep_batchnorm
        self.in_float32 = in_float32

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the user asked for it; a BatchNormalization that may be kept stays."""
        return cls(keep_batchnorm=setting.batch_norm != "fold", in_float32=True) if setting.simplify else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Simplify; see the class."""
        first = apply(ConvertToFloat32(keep_io_types=False), model, context) if self.in_float32 else Rewrite(False)
        result = self._simplify(model)
        return Rewrite(first.changed or result.changed, (*first.remarks, *result.remarks))

    def _simplify(self, model: ir.Model) -> Rewrite:
        before = io.to_proto(model)
        after = _simplified(before, keep_batchnorm=self.keep_batchnorm)
        other = io.load(after)
        if _essence(io.to_proto(other)) == _essence(before):
            return Rewrite(False)
        self._check_interface(model, other)
        self._check_numbers(before, after)
        count = model.graph.num_nodes()
        adopt(model, other)
        log = Log()
        log.did(f"onnxsim rewrote {count} nodes to {model.graph.num_nodes()}")
        return log.result()

    @staticmethod
    def _check_interface(before: ir.Model, after: ir.Model) -> None:
        counts = [sum(qdq.is_qdq(n) for n in walk.nodes(m)) for m in (before, after)]
        if counts[0] != counts[1]:
            raise _changed(f"{counts[0]} Q/DQ nodes became {counts[1]}")
        for left, right in ((before.graph.inputs, after.graph.inputs), (before.graph.outputs, after.graph.outputs)):
            if [(v.name, v.dtype) for v in left] != [(v.name, v.dtype) for v in right]:
                raise _changed("inputs or outputs became others")

    def _check_numbers(self, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
        sessions = [_session(model) for model in (before, after)]
        size = self._runnable_size(before, sessions[0])
        for seed in SEEDS:
            feeds = _feeds(before, seed, size, self.shapes)
            for value, left, right in zip(before.graph.output, *(s.run(None, feeds) for s in sessions), strict=True):
                if not _close(np.asarray(left), np.asarray(right)):
                    raise _changed(f"output {value.name!r} has other numbers")

    def _runnable_size(self, model: onnx.ModelProto, session: Any) -> int:
        problem = ""
        for size in SIZES:
            problem = _problem(session, _feeds(model, 0, size, self.shapes))
            if not problem:
                return size
        raise ModelError(
            "model-not-runnable", f"no made-up input runs: {problem}", hint="give the shapes of the inputs"
        )


def _problem(session: Any, feeds: dict[str, np.ndarray]) -> str:
    try:
        session.run(None, feeds)
    except Exception as error:  # onnxruntime's errors have no common base class
        return str(error).splitlines()[0][:200] or "unknown"
    return ""


def _simplified(model: onnx.ModelProto, *, keep_batchnorm: bool = False) -> onnx.ModelProto:
    try:
        import onnxsim
    except ImportError:
        raise QatError(
            "dependency-missing", "onnxsim is not installed", hint="pip install 'onnxqat[simplify]'"
        ) from None
    options = {"certify": False} if "certify" in inspect.signature(onnxsim.simplify).parameters else {}
    try:
        result: onnx.ModelProto = onnxsim.simplify(model, skip_fuse_bn=keep_batchnorm, **options)[0]
    except Exception as error:
        raise CheckError("simplify-changed-function", f"onnxsim failed: {str(error)[:200]}") from error
    return result


def _essence(model: onnx.ModelProto) -> list[bytes]:
    """Nodes without their notes, and constants by name."""
    nodes: list[bytes] = []
    for node in model.graph.node:
        bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
        bare.attribute.extend(sorted(node.attribute, key=lambda a: a.name))
        nodes.append(bare.SerializeToString(deterministic=True))
    constants = sorted(model.graph.initializer, key=lambda i: i.name)
    return nodes + [i.name.encode() + onnx.numpy_helper.to_array(i).tobytes() for i in constants]


def _changed(what: str) -> CheckError:
    return CheckError("simplify-changed-function", f"onnxsim: {what}", hint="go on without simplifying")


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _feeds(
    model: onnx.ModelProto, seed: int, size: int, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    constants = {i.name for i in model.graph.initializer}
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = shapes.get(value.name) or [d.dim_value if d.dim_value > 0 else size for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.floating):
            feeds[value.name] = np.asarray(rng.normal(size=shape)).astype(dtype)
        else:
            feeds[value.name] = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    return feeds


def _close(left: np.ndarray, right: np.ndarray) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    finite = np.abs(left[np.isfinite(left)])
    atol = TOLERANCE * max(1.0, float(finite.max(initial=0.0)))
    return bool(np.allclose(left, right, rtol=0.0, atol=atol, equal_nan=True))
