"""What real compilers said about the small classifier is read back right, and where they are installed they say it.

``recorded/`` holds what the compilers' scripts gave for it (the version is in each file), as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment import base_compiler
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.result import coverage
from onnxqat.deployment.run.environment_compiler import EnvironmentCompiler
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.deployment.static_model import static_copy
from onnxqat.graph import io
from tests.validation import tiny

RECORDED = Path(__file__).parent / "recorded"
FEEDS = {"image": tiny.images(1)}
ALL = {"Conv": (2, 2), "Gemm": (1, 1), "GlobalAveragePool": (1, 1), "Add": (1, 1)}
CASES = {
    # TensorRT computes additions and the global pool in kernels that it generates, in float.
    ("tensorrt-rtx", "s8"): ALL | {"GlobalAveragePool": (0, 1), "Add": (0, 1)},
    ("onnxruntime-qnn", "u8"): ALL,
    # HTP takes a Relu into the operator in front of it only where the codes behind it have no negative ones.
    ("onnxruntime-qnn", "s8"): ALL | {"Conv": (1, 2), "Add": (0, 1)},
    ("rknn-toolkit2", "u8"): ALL,
}
BACKENDS = {"s8": "tensorrt", "u8": "qnn-htp"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, backend in BACKENDS.items():
        train = io.load(tiny.pair(symmetric=name == "s8")[1])
        io.save(deploy_form(train, schema.load(backend), []), folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in BACKENDS}


def loaded(name: str) -> EnvironmentCompiler:
    compiler = base_compiler.load(name)
    assert isinstance(compiler, EnvironmentCompiler)
    return compiler


def covered(nodes: tuple[base_compiler.NodeResult, ...]) -> dict[str, tuple[int, int]]:
    return {c.op_type: (c.integer, c.total) for c in coverage(nodes)}


@pytest.mark.parametrize(("compiler", "model"), CASES)
def test_recorded(compiler: str, model: str, paths: dict[str, Path]) -> None:
    facts: Any = json.loads((RECORDED / f"{compiler}.{model}.json").read_text(encoding="utf-8"))["facts"]
    nodes = loaded(compiler).read_back(static_copy(paths[model], FEEDS), facts)
    assert covered(nodes) == CASES[compiler, model]
    assert [n.name for n in nodes] == [n.name for n in loaded("tract").read_back(onnx.load(paths[model]), {})]
    assert all(n.why for n in nodes if n.kind in ("float", "rejected"))
    assert all(n.kind in ("moved", "float") for n in nodes if n.op_type == "Flatten")


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "model"), CASES)
def test_installed(compiler: str, model: str, paths: dict[str, Path], tmp_path: Path) -> None:
    chosen = loaded(compiler)
    if chosen.version() is None:
        pytest.skip(f"not installed: onnxqat handoff --install {compiler}")
    result = compile_in_process(chosen, paths[model], [FEEDS], artefacts=tmp_path)
    assert covered(result.nodes) == CASES[compiler, model]
    assert result.files
    assert all((tmp_path / name).stat().st_size for name in result.files)
    assert len(result.outputs) == chosen.runs_numbers
    if result.outputs:
        reference = io.load(paths[model])
        from onnxqat.runtime.session import Session

        expected = Session(reference, optimize=False).run(FEEDS)["logits"]
        found = result.outputs[0]["logits"]
        assert np.abs(found - expected).max() <= 3 * np.ptp(expected) / 255


@pytest.mark.slow
def test_tract_gives_the_same_bits(paths: dict[str, Path]) -> None:
    chosen = loaded("tract")
    if chosen.version() is None:
        pytest.skip("not installed: onnxqat handoff --install tract")
    from onnxqat.runtime.session import Session

    for path in paths.values():
        found = compile_in_process(chosen, path, [FEEDS]).outputs[0]["logits"]
        assert np.array_equal(found, Session(io.load(path), optimize=False).run(FEEDS)["logits"])


def test_rejected_nodes_carry_their_reason(paths: dict[str, Path]) -> None:
    facts = {"graphs": [], "assigned": [["CPUExecutionProvider", "Gemm", "Gemm_logits_float"]]}
    nodes = loaded("onnxruntime-qnn").read_back(static_copy(paths["u8"], FEEDS), facts)
    gemm = next(n for n in nodes if n.op_type == "Gemm")
    assert (gemm.kind, gemm.detail) == ("rejected", "Gemm on the CPU")
    assert "onnxruntime's CPU runs it" in gemm.why
    assert covered(nodes)["Gemm"] == (0, 1)


@pytest.mark.slow
def test_imx500_takes_powers_of_two(tmp_path: Path) -> None:
    chosen = loaded("imx500")
    if chosen.version() is None:
        pytest.skip("not installed: onnxqat handoff --install imx500")
    from onnxqat.insertion.insert import insert_qdq
    from onnxqat.runtime.session import Session

    onnx.save(tiny.write(None), tmp_path / "float.onnx")
    model = insert_qdq(tmp_path / "float.onnx", backend="imx500", data={"image": tiny.images(8)}).model
    path = tmp_path / "deploy.onnx"
    io.save(deploy_form(io.load(model), schema.load("imx500"), []), path)
    result = compile_in_process(chosen, path, [FEEDS], artefacts=tmp_path)
    assert covered(result.nodes) == ALL
    assert result.files == ("imx500/packerOut.zip", "imx500/model.onnx")
    assert np.array_equal(result.outputs[0]["logits"], Session(io.load(path), optimize=False).run(FEEDS)["logits"])


def test_rknn_names_the_parts_of_a_convolution() -> None:
    rows = [
        "D RKNN: [00:50:45.353] 3    Conv   FLOAT16  NPU  (1,4,64,64),(1,4,8,8)  (1,4,15,15)  2934/15360/15360  64  Conv:conv_split",
        "D RKNN: [00:50:45.353] 4    Conv   FLOAT16  NPU  (1,4,15,15),(1,4,1,1)  (1,4,8,8)  196/64/196  3  Conv:conv_select",
    ]
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[8, 8], group=4)
    graph = onnx.helper.make_graph([conv], "g", [], [])
    (found,) = loaded("rknn-toolkit2").read_back(onnx.helper.make_model(graph), {"table": rows})
    assert (found.name, found.kind, found.why) == ("conv", "float", "the compiler chose FLOAT16")
