"""A decoder of one attention layer with a cache, as exporters name its inputs and outputs."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH = 16, 8


def model(*, cache: bool = True, scale: float = 1.0) -> onnx.ModelProto:
    """The decoder, with random weights times `scale`; without a `cache` it reads all tokens in each step."""
    rng = np.random.default_rng(0)
    names = {
        "table": (VOCABULARY, WIDTH),
        "wq": (WIDTH, WIDTH),
        "wk": (WIDTH, WIDTH),
        "wv": (WIDTH, WIDTH),
        "head": (WIDTH, VOCABULARY),
    }
    constants = [numpy_helper.from_array(scale * rng.normal(size=s).astype(np.float32), n) for n, s in names.items()]
    constants += [
        numpy_helper.from_array(np.array(value, kind), name)
        for name, value, kind in [
            ("head_axis", [1], np.int64),
            ("zero", 0, np.int64),
            ("one", 1, np.int64),
            ("far", -1e4, np.float32),
            ("nothing", 0, np.float32),
        ]
    ]
    node = helper.make_node
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    present = ["present.0.key", "present.0.value"]
    joined = [
        node("Concat", [old, new], [out], axis=2) if cache else node("Identity", [new], [out])
        for old, new, out in zip(past, ("k4", "v4"), present, strict=True)
    ]
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"]),
        *(node("MatMul", ["x", f"w{each}"], [each]) for each in "qkv"),
        *(node("Unsqueeze", [each, "head_axis"], [f"{each}4"]) for each in "qkv"),
        *joined,
        node("Transpose", [present[0]], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q4", "kt"], ["scores"]),
        node("Shape", [present[0]], ["total_shape"], start=2, end=3),
        node("Shape", ["input_ids"], ["new_shape"], start=1, end=2),
        node("Squeeze", ["total_shape"], ["total"]),
        node("Squeeze", ["new_shape"], ["new"]),
        node("Sub", ["total", "new"], ["before"]),
        node("Range", ["zero", "total", "one"], ["columns"]),
        node("Range", ["before", "total", "one"], ["rows"]),
        node("Unsqueeze", ["rows", "head_axis"], ["rows2"]),
        node("LessOrEqual", ["columns", "rows2"], ["seen"]),
        node("Where", ["seen", "nothing", "far"], ["bias"]),
        node("Add", ["scores", "bias"], ["masked"]),
        node("Softmax", ["masked"], ["weights"]),
        node("MatMul", ["weights", present[1]], ["mixed4"]),
        node("Squeeze", ["mixed4", "head_axis"], ["mixed"]),
        node("Add", ["mixed", "x"], ["stream"]),
        node("MatMul", ["stream", "head"], ["logits"]),
    ]
    value = helper.make_tensor_value_info
    caches = [value(name, TensorProto.FLOAT, ["B", 1, "S", WIDTH]) for name in past] if cache else []
    outputs = [value("logits", TensorProto.FLOAT, ["B", "T", VOCABULARY])]
    outputs += [value(name, TensorProto.FLOAT, ["B", 1, "R", WIDTH]) for name in present] if cache else []
    graph = helper.make_graph(
        nodes, "decoder", [value("input_ids", TensorProto.INT64, ["B", "T"]), *caches], outputs, constants
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made, full_check=True)
    return made


def prompts(count: int, length: int = 6) -> np.ndarray:
    """Random token sequences (count, length)."""
    return np.random.default_rng(1).integers(0, VOCABULARY, (count, length))
