"""The bundle is complete or absent, its numbers are checked, and what is wrong is caught."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.deployment import handoff as module
from onnxqat.deployment.base_compiler import CompilerResult
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.outputs import check_outputs
from onnxqat.errors import BackendError, CheckError, ModelError, UsageError
from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.numerics import from_range
from onnxqat.types import QType, Scheme
from tests import hanging
from tests.bridge.integer import networks
from tests.validation import tiny

DATA = {"image": tiny.images(6)}
FILES = {"model.onnx", "float.onnx", "encodings.json", "ranges.json", "report.json", "manifest.json"}


@pytest.fixture(scope="module")
def quantized() -> onnx.ModelProto:
    return tiny.pair()[1]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process: what the worker does is tested elsewhere."""

    def here(compiler: Any, path: Path, batches: Any, **rest: Any) -> CompilerResult:
        found: CompilerResult = compiler.compile_and_run(path, batches, rest.get("artefacts"))
        return found

    monkeypatch.setattr(module, "compile_in_process", here)


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_bundle_of_onnxruntime(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    before = quantized.SerializeToString()
    steps: list[tuple[int, int | None]] = []
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=DATA, progress=lambda *s: steps.append(s))
    assert report.passed
    assert quantized.SerializeToString() == before
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (report.compiler, report.samples, report.same_as_train_form) == ("onnxruntime-cpu", 6, True)
    assert {c.op_type: c.integer for c in report.coverage}["Conv"] == 2
    assert report.outputs[0].unit == "quantizer"
    found = files(tmp_path / "bundle")
    assert set(found) == set(report.files) == FILES
    assert json.loads(found["report.json"]) == json.loads(json.dumps(report.to_dict()))
    manifest = json.loads(found["manifest.json"])
    assert manifest["sha256"] == {n: hashlib.sha256(b).hexdigest() for n, b in found.items() if n != "manifest.json"}
    assert manifest["command"][:2] == ["onnxqat", "handoff"]
    assert manifest["options"] == {}  # a default session: the table keeps weights to what every CPU computes exactly
    deploy = io.load(tmp_path / "bundle" / "model.onnx")
    assert all(q.stored for q in qdq.quantizers(deploy) if q.role != "activation")


def test_same_input_gives_the_same_bundle(quantized: onnx.ModelProto, tmp_path: Path, quick: None) -> None:
    for name in ("one", "two"):
        handoff(quantized, "onnxruntime-cpu", tmp_path / name / "bundle", data=DATA)
    one, two = (files(tmp_path / n / "bundle") for n in ("one", "two"))
    assert one["model.onnx"] == two["model.onnx"]
    assert json.loads(one["report.json"]) | {"output": ""} == json.loads(two["report.json"]) | {"output": ""}


def test_bundle_of_openvino_holds_the_vendors_files(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    report = handoff(quantized, "openvino-cpu", tmp_path / "bundle", data=DATA, tolerance_lsb=3)
    assert report.passed, report.failures
    assert {"openvino/model.xml", "openvino/model.bin"} <= set(files(tmp_path / "bundle"))
    assert all(c.integer == c.total for c in report.coverage)


def test_openvino_gets_bodies_for_calls(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    call = '<domain: "my", opset_import: ["": 17]> f <alpha: float = 0.1> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }'
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2,4] x) => (float[2,3] y)
        <float[4,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}> {{ t = MatMul(x, w) y = my.f(t) }} {call}"""
    )
    data = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    made = insert_qdq(model, "openvino-cpu", data=data).model
    assert made.functions
    assert handoff(made, "openvino-cpu", tmp_path / "bundle", data=data).passed


def test_a_backend_without_a_compiler_gets_its_deploy_form(tmp_path: Path) -> None:
    made = insert_qdq(tiny.pair()[0], "esp-dl", data=DATA).model
    report = handoff(made, "esp-dl", tmp_path / "bundle", data=DATA)
    assert report.passed is None
    assert not report.failures
    assert report.verdicts[0].reason.startswith("written, not compiled")
    assert (report.compiler, report.outputs, report.coverage) == (None, (), ())
    assert any("nothing was compiled" in r.message for r in report.remarks)


def test_a_table_of_ones_own_is_compiled_by_what_it_extends(
    quantized: onnx.ModelProto, tmp_path: Path, quick: None
) -> None:
    table = tmp_path / "mine.yaml"
    table.write_text("schema: 1\nbackend: mine\nextends: onnxruntime-cpu\n", encoding="utf-8")
    report = handoff(quantized, str(table), tmp_path / "bundle", data=DATA)
    assert (report.backend, report.compiler) == ("mine", "onnxruntime-cpu")


def test_missing_compiler_is_a_remark(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxqat.deployment.compilers.openvino_cpu.Compiler.version", lambda self: None)
    report = handoff(quantized, "openvino-cpu", tmp_path / "bundle", data=DATA)
    assert report.compiler is None
    assert any("onnxqat[openvino]" in r.message for r in report.remarks)


def test_the_source_is_named_with_its_digest(tmp_path: Path, quick: None) -> None:
    path = Path(tiny.save_pair(tmp_path)[1])
    handoff(path, "onnxruntime-cpu", tmp_path / "bundle", data=DATA, limit=2)
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["source"] == {"name": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert manifest["command"][2] == str(path)
    assert manifest["command"][-2:] == ["--compiler", "onnxruntime-cpu"]


def test_the_float_model_lies_beside_its_encodings(quantized: onnx.ModelProto, tmp_path: Path, quick: None) -> None:
    handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=DATA)
    plain = io.load(tmp_path / "bundle" / "float.onnx")
    assert not qdq.is_quantized(plain)
    names = [v.name for v in io.load(quantized).graph.outputs]
    assert [v.name for v in plain.graph.outputs] == names


def test_every_node_has_its_difference_and_its_reason(tmp_path: Path, quick: None) -> None:
    # int8 codes do not drop a Relu in onnxruntime, so that the operators around it are float
    model = tiny.pair(symmetric=True)[1]
    nodes = {n.name: n for n in handoff(model, "onnxruntime-cpu", tmp_path / "bundle", data=DATA).nodes}
    assert {n.kind for n in nodes.values() if n.op_type == "Conv"} == {"float"}
    assert nodes["Conv_conv1"].why == "the Relu 'Relu_relu1' stands between it and Q"
    assert nodes["Relu_relu1"].why.startswith("onnxruntime-cpu has no integer kernel for Relu")
    assert nodes["Gemm_logits_float"].why == ""
    assert nodes["Conv_conv1"].steps == nodes["Relu_relu1"].steps == 0
    assert nodes["Gemm_logits_float"].steps is None  # its quantized result is the output that is checked anyway
    assert all(n.why for n in nodes.values() if n.kind == "float")


def test_without_trace_it_is_compiled_once(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    calls: list[Path] = []
    right = module.compile_in_process

    def counted(compiler: Any, path: Path, batches: Any, **rest: Any) -> CompilerResult:
        calls.append(path)
        return right(compiler, path, batches, artefacts=rest.get("artefacts"))

    monkeypatch.setattr(module, "compile_in_process", counted)
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "one", data=DATA, trace=False)
    assert (len(calls), {n.steps for n in report.nodes}) == (1, {None})
    handoff(quantized, "onnxruntime-cpu", tmp_path / "two", data=DATA)
    assert len(calls) == 3
    assert not calls[-1].exists()


def test_another_compiler_can_be_asked_for(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    report = handoff(quantized, "litert-int8", tmp_path / "bundle", data=DATA, compiler="onnxruntime-cpu")
    assert (report.backend, report.compiler) == ("litert-int8", "onnxruntime-cpu")
    monkeypatch.setenv("ONNXQAT_ENVIRONMENTS", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        handoff(quantized, "litert-int8", tmp_path / "other", compiler="tract")
    assert "onnxqat handoff --install tract" in caught.value.hint
    assert not (tmp_path / "other").exists()


def test_other_numbers_fail(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    right = module.compile_in_process

    def wrong(*arguments: Any, **rest: Any) -> CompilerResult:
        result = right(*arguments, **rest)
        outputs = tuple({n: v + np.float32(0.5) for n, v in batch.items()} for batch in result.outputs)
        return CompilerResult(outputs, result.nodes, result.files)

    monkeypatch.setattr(module, "compile_in_process", wrong)
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=DATA)
    assert not report.passed
    assert "more than 2 LSB from the reference" in report.failures[0]
    assert json.loads((tmp_path / "bundle" / "manifest.json").read_text(encoding="utf-8"))["passed"] is False


def test_a_deploy_form_with_other_bits_fails(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    right = module.deploy_form

    def wrong(*arguments: Any) -> ir.Model:
        model = right(*arguments)
        scale = model.graph.initializers["fc_w_scale"]
        assert scale.const_value is not None
        scale.const_value = ir.tensor(scale.const_value.numpy() * np.float32(1.5), name="fc_w_scale")
        return model

    monkeypatch.setattr(module, "deploy_form", wrong)
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=DATA)
    assert "the deploy form does not give the bits" in report.failures[0]


def test_an_old_bundle_stays_until_the_new_one_is_complete(
    quantized: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    target = tmp_path / "bundle"
    handoff(quantized, "onnxruntime-cpu", target, data=DATA)
    before = files(target)
    right = module.compile_in_process

    def crash(*arguments: Any, **rest: Any) -> CompilerResult:
        raise CheckError("handoff-failed", "the compiler crashed")

    monkeypatch.setattr(module, "compile_in_process", crash)
    with pytest.raises(CheckError):
        handoff(quantized, "onnxruntime-cpu", target, data=DATA)
    assert files(target) == before
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    monkeypatch.setattr(module, "compile_in_process", right)
    handoff(quantized, "onnxruntime-cpu", target, data=DATA)
    assert set(files(target)) == set(before)
    (target / "engine.bin").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"engine\.bin"):
        handoff(quantized, "onnxruntime-cpu", target, data=DATA)
    assert set(files(target)) == {*before, "engine.bin"}
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_bad_input_is_refused(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(BackendError) as unknown:
        handoff(quantized, "openvno-cpu", tmp_path / "bundle")
    assert "openvino" in unknown.value.hint
    with pytest.raises(ModelError) as plain:
        handoff(tiny.write(None), "onnxruntime-cpu", tmp_path / "bundle")
    assert plain.value.code == "model-not-quantized"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work", encoding="utf-8")
    for target in (tmp_path / "mine", tmp_path / "mine" / "thesis.tex"):
        with pytest.raises(UsageError) as taken:
            handoff(quantized, "onnxruntime-cpu", target)
        assert taken.value.code == "option-invalid"
    assert files(tmp_path / "mine") == {"thesis.tex": b"years of work"}


def test_steps_of_an_output() -> None:
    reference = [{"y": np.array([[0.0, 1.0, 2.0]], np.float32)}]
    found = [{"y": np.array([[0.0, 1.1, 2.5]], np.float32)}]
    qparams = from_range(np.float32(0), np.float32(25.5), Scheme(QType.of(8, signed=False), symmetric=False))
    check = check_outputs(found, reference, {"y": qparams}, 2.0)[0]
    assert (check.unit, check.elements, check.differing, check.differing_top1) == ("quantizer", 3, 2, 0)
    assert check.largest_steps == pytest.approx(5, rel=1e-5)
    assert check.beyond == pytest.approx(1 / 3)
    check = check_outputs(found, reference, {}, 2.0)[0]
    assert (check.unit, check.step) == ("range", pytest.approx(2 / 255))
    bad = [{"y": np.array([[np.nan, 1.0, 2.0]], np.float32)}]
    assert check_outputs(bad, reference, {}, 2.0)[0].largest_steps == np.inf
    assert check_outputs(bad, bad, {}, 2.0)[0].largest_steps == 0


def test_works_without_torch(tmp_path: Path, repository: Path) -> None:
    path = tiny.save_pair(tmp_path)[1]
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from onnxqat.deployment.handoff import handoff\n"
        f"report = handoff({path!r}, 'onnxruntime-cpu', {str(tmp_path / 'bundle')!r})\n"
        "assert report.passed, report\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=hanging.SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_without_a_compiler_the_table_says_what_is_refused(quantized: onnx.ModelProto, tmp_path: Path) -> None:
    """tensorrt takes symmetric int8; the file has uint8 activations."""
    report = handoff(quantized, "tensorrt-nlp", tmp_path / "bundle", data=DATA)
    assert report.compiler is None
    assert not report.passed
    assert any("[target-activation-type]" in failure for failure in report.failures)
    assert (tmp_path / "bundle" / "model.onnx").is_file()


@pytest.mark.parametrize("option", ["limit", "timeout"])
def test_nothing_is_no_number(option: str, quantized: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{option} is 0"):
        handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", **{option: 0})  # type: ignore[arg-type]


def test_steps_of_time_are_no_samples_to_score_one_by_one(tmp_path: Path, quick: None) -> None:
    """A Scan over a free first axis: cut into ones, each step would start without what came before."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[T, 4] x) => (float[T, 4] y) <float[4] start = {0, 0, 0, 0}, float[4, 4] w> {
        last, sums = Scan <num_scan_inputs = 1, body = add (float[4] s, float[4] v) => (float[4] t, float[4] r)
            { t = Add (s, v)
              r = Identity (t) }> (start, x)
        y = MatMul (sums, w)
    }"""
    data = [{"x": np.random.default_rng(n).normal(size=(6, 4)).astype(np.float32)} for n in range(4)]
    source = networks.with_weights(text)
    quantized = insert_qdq(source, data=data).model
    found = handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=data, float_model=source)
    (score,) = [s for s in found.scores if s.name == "sqnr"]
    assert score.values["compiled"] > 20
