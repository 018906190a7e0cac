"""What a compiler runs on integers is read back under the user's names, and a bad compiler harms nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxqat.deployment import base_compiler, graph_nodes
from onnxqat.deployment.compilers import onnxruntime_cpu
from onnxqat.deployment.result import coverage
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import CheckError, UsageError
from tests import hanging
from tests.validation import tiny

MISBEHAVE = "tests.deployment.misbehave"
FEEDS = [{"image": tiny.images(4)}]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    models = {"float": tiny.write(None), "u8": tiny.pair()[1], "s8": tiny.pair(symmetric=True)[1]}
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in models}


def covered(nodes: tuple[base_compiler.NodeResult, ...]) -> dict[str, tuple[int, int]]:
    return {c.op_type: (c.integer, c.total) for c in coverage(nodes)}


ALL = {"Conv": (2, 2), "Gemm": (1, 1), "GlobalAveragePool": (1, 1), "Add": (1, 1)}
NONE = {op: (0, total) for op, (_, total) in ALL.items()}


@pytest.mark.parametrize(
    ("model", "expected"),
    # onnxruntime needs unsigned codes to drop the Relu, and has no integer kernel for what stays around it.
    [("u8", ALL), ("s8", ALL | {"Conv": (0, 2), "Add": (0, 1)}), ("float", NONE)],
)
def test_onnxruntime_coverage(paths: dict[str, Path], model: str, expected: dict[str, tuple[int, int]]) -> None:
    result = onnxruntime_cpu.Compiler().compile_and_run(paths[model], FEEDS)
    assert covered(result.nodes) == expected
    assert [n.name for n in result.nodes][:3] == ["Conv_conv1", "Relu_relu1", "Conv_conv2"]
    flatten = next(n for n in result.nodes if n.op_type == "Flatten")
    assert flatten.kind == ("float" if model == "float" else "moved")


@pytest.mark.parametrize(("model", "expected"), [("u8", ALL), ("s8", ALL), ("float", NONE)])
def test_openvino_coverage(
    paths: dict[str, Path], model: str, expected: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    pytest.importorskip("openvino")
    artefacts = tmp_path if model == "u8" else None
    result = base_compiler.load("openvino-cpu").compile_and_run(paths[model], FEEDS, artefacts)
    assert covered(result.nodes) == expected
    assert result.outputs[0]["logits"].shape == (4, tiny.CLASSES)
    assert result.files == (("openvino/model.xml", "openvino/model.bin") if artefacts else ())
    assert all((tmp_path / name).is_file() for name in result.files)


def test_nodes_without_names_are_found_by_their_outputs(paths: dict[str, Path], tmp_path: Path) -> None:
    model = onnx.load(paths["u8"])
    for node in model.graph.node:
        node.ClearField("name")
    onnx.save(model, tmp_path / "nameless.onnx")
    result = onnxruntime_cpu.Compiler().compile_and_run(tmp_path / "nameless.onnx", FEEDS)
    assert covered(result.nodes)["Gemm"] == (1, 1)
    assert result.nodes[0].name == "conv1"


def test_arrays_pass_through_the_process_unchanged(paths: dict[str, Path]) -> None:
    compiler = base_compiler.load("onnxruntime_cpu")
    here = compiler.compile_and_run(paths["u8"], FEEDS)
    there = compile_in_process(compiler, paths["u8"], FEEDS)
    assert np.array_equal(here.outputs[0]["logits"], there.outputs[0]["logits"])
    assert here.nodes == there.nodes


def test_names_with_commas_and_slashes_are_found() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="odd,name"),
        helper.make_node("Relu", ["a"], ["b"], name="/block/conv"),
        helper.make_node("Relu", ["b"], ["c"]),
    ]
    known = graph_nodes.Nodes(helper.make_model(helper.make_graph(nodes, "g", [], [])))
    text = "odd,name,/block/conv/WithoutBiases/x,Multiply_12,c,/other/thing"
    assert [n.output[0] for n in graph_nodes.split_names(text, known)] == ["a", "b", "c"]


def test_shape_arithmetic_is_not_counted() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Concat", ["s", "s"], ["twice"], axis=0),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3])
    known = graph_nodes.Nodes(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    assert [n.op_type for n in known.results()] == ["Relu"]


def test_arithmetic_of_integers_is_no_node_of_the_table() -> None:
    """What integer functions expand to is not listed: no compiler runs a BitShift in float. Nodes on codes are."""
    text = """<ir_version: 9, opset_import: ["" : 20]> g (uint8[4] x) => (uint8[4] y) <uint32[1] n = {2}> {
        moved = Identity (x) i = Cast <to = 6> (moved) u = Cast <to = 12> (i)
        t = BitShift <direction = "RIGHT"> (u, n) back = Cast <to = 6> (t) y = Cast <to = 2> (back) }"""
    assert [node.output[0] for node in graph_nodes.Nodes(onnx.parser.parse_model(text)).all] == ["moved"]


def test_names_are_file_names() -> None:
    assert {"onnxruntime-cpu", "openvino-cpu", "tract"} <= set(base_compiler.names())
    assert all(base_compiler.load(name).name == name for name in base_compiler.names())
    with pytest.raises(UsageError) as caught:
        base_compiler.load("openvino-gpu")
    assert "openvino" in caught.value.hint


def test_missing_package_names_the_extra() -> None:
    error = base_compiler.load("openvino-cpu").missing()
    assert error.code == "dependency-missing"
    assert "onnxqat[openvino]" in error.hint


def test_refusal_carries_the_compilers_words(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(CheckError) as caught:
        compile_in_process(base_compiler.load("onnxruntime-cpu"), tmp_path / "bad.onnx", FEEDS)
    assert caught.value.code == "handoff-failed"
    assert "refused the model" in caught.value.message
    assert "bad.onnx" in caught.value.message


def test_crash_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(CheckError) as caught:
        compile_in_process(base_compiler.load("onnxruntime-cpu"), tmp_path / "crash.onnx", FEEDS, module=MISBEHAVE)
    assert "ended by SIGSEGV: the vendor's last words" in caught.value.message


def test_time_out_stops_the_process_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "child"
    monkeypatch.setenv("CHILD_FILE", str(note))
    for timeout in hanging.LIMITS:
        with pytest.raises(CheckError) as caught:
            compile_in_process(
                base_compiler.load("onnxruntime-cpu"), tmp_path / "hang.onnx", FEEDS, module=MISBEHAVE, timeout=timeout
            )
        assert f"did not end within {timeout} s" in caught.value.message
        if note.exists():
            break
    assert not running(int(note.read_text(encoding="utf-8")))


def running(pid: int) -> bool:
    """Whether a process still runs; one that nobody has collected yet does not."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True
