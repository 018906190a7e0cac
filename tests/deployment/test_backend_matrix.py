"""The page of the matrix says what the cells say; the scorer is answered with the compiler's own numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment import base_compiler
from onnxqat.deployment.base_compiler import NodeResult


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "backend_matrix.py"
    spec = importlib.util.spec_from_file_location("backend_matrix", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["backend_matrix"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_cells_become_rows(matrix: ModuleType) -> None:
    known = {
        "compiler": "onnxruntime-qnn 2.7.0",
        "date": "2026-12-01",
        "accepted": True,
        "integer": 13,
        "able": 14,
        "steps": 2.5,
        "beyond": 0.125,
        "own": 1.0,
        "score": {"found": 88.25, "reference": 89, "samples": 400},
        "float": [["/a", "Gemm", "its output 'y' leaves the graph without Q/DQ"]],
    }
    refused = {"accepted": False, "error": "rknn-toolkit2 refused the model"}
    other = known | {"float": [["/b", "Gemm", "its output 'z' leaves the graph without Q/DQ"]]}
    exact = known | {"steps": 1.04, "beyond": 0.0, "own": 0.5, "score": {"found": 88, "reference": 88, "samples": 400}}
    text = matrix.page(
        {
            "resnet8_cifar10 qnn-htp": known,
            "resnet8_cifar10 qnn-htp exact": exact,
            "dscnn_kws qnn-htp": other,
            "dscnn_kws rknn": refused,
        }
    )
    row = "| resnet8_cifar10 | 2026-12-01 | yes | 13 of 14 | 2.5 (12.5%) | 1.0 | 88.25 | 89 | 400 | 1.0 (0.0%) | 0.5 | 88 | 88 | 400 |"
    assert row in text
    assert "| resnet8_cifar10 | - | - | - | 2.5 → **1.0** | - |" in text
    assert "| dscnn_kws | - | - | - | 2.5 → - | - |" in text
    assert "- Gemm, 2 in dscnn_kws, resnet8_cifar10: its output '…' leaves the graph without Q/DQ" in text
    assert "| dscnn_kws | - | no: rknn-toolkit2 refused the model |" in text
    assert "## tensorrt" not in text


FORMER = """# Compiler results

| network | onnxruntime-cpu | openvino-cpu | tensorrt | qnn-htp | rknn |
|---|---|---|---|---|---|
| resnet8_cifar10 | 2.1 → **0.0** | - | - | 7.0 → **0.0** | - |
| dscnn_kws | **0.0** → **0.0** | - | - | - | - |

## onnxruntime-cpu

Compiler: onnxruntime-cpu 1.31.0.

| network | accepted | heavy on integers |
|---|---|---|
| resnet8_cifar10 | yes | 14 of 14 |
| dscnn_kws | yes | 11 of 11 |

Not on integers:

- Concat, 4 in resnet8_cifar10: placement left it in float
- Mul, 1 in dscnn_kws: no kernel
"""


def test_rows_that_were_not_measured_again_stay_and_say_so(matrix: ModuleType) -> None:
    measured = {"compiler": "onnxruntime-cpu 1.32.0", "date": "2026-12-01", "accepted": True, "integer": 9, "able": 9}
    measured |= {"steps": 0.5, "beyond": 0.0, "own": 1.0, "score": None, "float": []}
    text = matrix.page({"dscnn_kws onnxruntime-cpu": measured}, FORMER)
    assert "| dscnn_kws | 2026-12-01 | yes | 9 of 9 | 0.5 (0.0%) |" in text
    assert "| resnet8_cifar10 | earlier defaults | yes | 14 of 14 |" in text
    assert "Compiler: onnxruntime-cpu 1.32.0." in text
    assert "| resnet8_cifar10 | 2.1 → **0.0** † | - | - | - | - |" in text.replace("7.0 → **0.0** |", "- |")
    assert "| dscnn_kws | **0.5** → - | - |" in text
    assert "- Concat, 4 in resnet8_cifar10" in text
    assert "- Mul, 1 in dscnn_kws" not in text
    assert matrix.page({}, text) == matrix.page({}, matrix.page({}, text))


def test_what_has_no_integer_kernel_is_listed_and_not_counted(matrix: ModuleType) -> None:
    nodes = (
        NodeResult("conv", "Conv", "integer", "correlation Int8", steps=3.0),
        NodeResult("add", "Add", "float", "kgen", "no integer kernel"),
        NodeResult("gemm", "Gemm", "float", "gemm Float", "its input 'x' carries no Q/DQ"),
        NodeResult("exp", "Exp", "float", "kgen", ""),
    )
    report = SimpleNamespace(nodes=nodes, outputs=())
    found = matrix.judged(report, base_compiler.load("tensorrt-rtx"))
    assert (found["integer"], found["able"], found["heavy"]) == (1, 2, 3)
    assert [row[0] for row in found["float"]] == ["add", "gemm"]
    assert (found["steps"], found["first_beyond"]) == (None, "conv")


def test_the_scorer_gets_the_compilers_answers_in_order(matrix: ModuleType) -> None:
    session = SimpleNamespace(
        get_inputs=list, get_outputs=lambda: [SimpleNamespace(name="y")], run=lambda _, feeds: [feeds["x"] * 2]
    )
    recorder = matrix.Recorder(session, None)
    batch = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.array_equal(recorder.run(None, {"x": batch})[0], batch * 2)
    assert [f["x"].shape for f in recorder.fed] == [(1, 2)] * 3
    answers = [{"y": f["x"] * 10} for f in recorder.fed]
    assert np.array_equal(matrix.Recorder(session, answers).run(None, {"x": batch})[0], batch * 10)


def test_its_backends_have_compilers(matrix: ModuleType) -> None:
    from onnxqat.deployment import choice

    for name in matrix.BACKENDS:
        assert any(n in base_compiler.names() for n in choice.lineage(schema.load(name))), name
    assert len({n.model for n in matrix.NETWORKS}) == len(matrix.NETWORKS)


def test_fewer_samples_to_calibrate_on_are_stated(matrix: ModuleType) -> None:
    measured = {"compiler": "rknn-toolkit2 2.5.0", "date": "2026-12-02 (16)", "accepted": True, "integer": 9, "able": 9}
    measured |= {"steps": 0.5, "beyond": 0.0, "own": 1.0, "float": []}  # a structure: no score
    text = matrix.page({"vit rknn": measured})
    assert "| vit | 2026-12-02 (16) | yes | 9 of 9 | 0.5 (0.0%) | 1.0 | - | - | - | - | - | - | - | - |" in text
    assert matrix.page({}, matrix.page({}, text)) == matrix.page({}, text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own exporter
def test_structures_are_cut_to_the_samples_asked_for(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "faults" / "compilers"
    folder.mkdir(parents=True)
    (folder / "nets.py").write_text(
        "import numpy as np\nfrom torch import nn\n"
        "def get(name):\n    return nn.ReLU(), {name: np.ones((9, 4), np.float32)}\n"
    )
    monkeypatch.setattr(matrix._shared, "SHARED", tmp_path)
    path, inputs = matrix.source(None, matrix.Network("vit", "", 0.0, calibration=5), tmp_path)
    assert inputs.shape == (5, 4)
    assert [v.name for v in onnx.load(path).graph.input] == ["vit"]
