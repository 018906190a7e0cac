"""ONNX's own node tests: the bridge gives the right numbers or refuses, never wrong ones."""

import functools
import pickle
import re
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError

# Random numbers are those of one generator.
RANDOM = re.compile(r"bernoulli|test_training_dropout(?!.*zero_ratio)")
LEAST_PASSING = 1100


@functools.cache
def cases():
    from onnx.backend.test.case.node import collect_testcases

    found = []
    for case in collect_testcases(None):
        domains = {i.domain for i in case.model.opset_import}
        kinds = {v.type.WhichOneof("value") for v in [*case.model.graph.input, *case.model.graph.output]}
        if domains <= {""} and kinds <= {"tensor_type"} and not RANDOM.search(case.name):
            found.append(case)
    return found


def export_weight(model: onnx.ModelProto, inputs: list[np.ndarray]) -> onnx.ModelProto:
    """`model` with all inputs but the first as initializers, as an exporter would write them."""
    made = ir.from_proto(model)
    for value, array in list(zip(made.graph.inputs, inputs, strict=True))[1:]:
        value.const_value = ir.Tensor(np.asarray(array), dtype=value.dtype, name=value.name)
        made.graph.inputs.remove(value)
        made.graph.register_initializer(value)
    return ir.to_proto(made)


def run(model: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    module = to_torch(ir.from_proto(model))
    pickle.dumps([node.target for node in module.graph.nodes])  # a closure would keep the module from being saved
    given = [values.tensor(np.asarray(a), ir.DataType.from_numpy(np.asarray(a).dtype)) for a in inputs]
    with torch.no_grad():
        result = module(*given)
    found = list(result) if isinstance(result, tuple) else [result]
    return [values.array(f, ir.DataType[kind]) for f, kind in zip(found, module.output_types, strict=True)]


def _wide(array: np.ndarray) -> np.ndarray:
    """Types that numpy does not compare as one that it does."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def verdict(model: onnx.ModelProto, inputs: list[np.ndarray], wanted: list[np.ndarray], case) -> str:
    try:
        found = run(model, inputs)
    except (UnsupportedError, TypeError) as error:
        return f"refused: {error}"
    for f, w in zip(found, wanted, strict=True):
        w = np.asarray(w)
        rtol = max(case.rtol, 2**-6) if w.dtype.name == "bfloat16" else case.rtol
        # The cases of DFT hold numpy's rounding errors where the exact value is 0, and processors differ in theirs.
        atol = 2**-23 * float(np.abs(w).max(initial=0)) if "_dft" in case.name else case.atol
        if f.shape != w.shape or f.dtype != w.dtype or not np.allclose(_wide(f), _wide(w), rtol, atol, equal_nan=True):
            return f"wrong: {f.dtype}{f.shape} for {w.dtype}{w.shape}"
    return "pass"


@pytest.mark.slow
def test_node_cases() -> None:
    """With the inputs that a case has, and with all but the first as initializers; of a single input that is the same."""
    counts: dict[str, Counter[str]] = {"inputs": Counter(), "initializers": Counter()}
    wrong = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases():
            inputs, wanted = case.data_sets[0]
            if any(not isinstance(a, (np.ndarray, np.generic)) or np.asarray(a).dtype == object for a in inputs):
                continue
            if any(np.asarray(w).dtype.kind not in "biufcV" for w in wanted):
                continue
            given = baked = verdict(case.model, inputs, wanted, case)
            if len(inputs) > 1:
                baked = verdict(export_weight(case.model, inputs), inputs[:1], wanted, case)
            for how, found in zip(counts, (given, baked), strict=True):
                counts[how][found.split(":")[0]] += 1
                if found.startswith("wrong"):
                    wrong[case.name, how] = found
    assert wrong == {}
    assert all(found["pass"] >= LEAST_PASSING for found in counts.values()), counts
