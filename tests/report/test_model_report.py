"""The model report: its figures against the file, its joins, its page as a document, its command."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxqat
from onnxqat.cli import main
from onnxqat.deployment import base_compiler
from onnxqat.errors import QatError
from onnxqat.report import build_handoff, build_model_report, build_profile, build_validation
from onnxqat.report import json as as_json
from onnxqat.report.model_report import blocks, fronts, meters, network, page, schema, training_log
from onnxqat.report.model_report.result import ModelReport
from onnxqat.report.model_report.results_read import Result, read_results
from tests.source_tree import REPOSITORY

HOSTILE = '</script><script>alert("1")</script>\u202e<img src=x onerror=y>'


def float_model(path: Path, hostile: str = "") -> Path:
    """Conv, Relu, Conv, pooling and Gemm, with the names that torch's exporter gives."""
    rng = np.random.default_rng(0)
    shapes = {"first.weight": (8, 3, 3, 3), "second.weight": (4, 8, 1, 1), "head.weight": (5, 4), "head.bias": (5,)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["image", "first.weight"], ["a"], "/stem/first/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "/stem/act/Relu"),
        helper.make_node("Conv", ["b", "second.weight"], ["c"], f"/body/second/Conv{hostile}"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], "/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["d"], ["e"], "/Flatten"),
        helper.make_node("Gemm", ["e", "head.weight", "head.bias"], ["logits"], "/head/Gemm", transB=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(nodes, "net", [image], [logits], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, data, its QDQ file, one of other scales, and the reports of three commands."""
    found = tmp_path_factory.mktemp("model_report")
    rng = np.random.default_rng(1)
    np.savez(found / "data.npz", image=rng.normal(size=(24, 3, 8, 8)).astype(np.float32), labels=rng.integers(0, 5, 24))
    data = str(found / "data.npz")
    float_model(found / "model.onnx")
    arguments: dict[str, Any] = {"data": data, "equalize": (), "rounding": "nearest"}
    onnxqat.insert_qdq(found / "model.onnx", "onnxruntime-cpu", output=found / "model.qdq.onnx", **arguments)
    file = onnx.load(found / "model.qdq.onnx")
    for tensor in file.graph.initializer:
        if tensor.name.endswith("_scale"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.25), tensor.name))
    onnx.save(file, found / "before.qdq.onnx")
    validated = onnxqat.validate(found / "model.onnx", found / "model.qdq.onnx", data, use_torch=False)
    (found / "validate.json").write_text(as_json.dumps(build_validation.from_validation(validated)))
    return found


@pytest.fixture(scope="module")
def report(folder: Path) -> ModelReport:
    return onnxqat.model_report(
        folder / "model.qdq.onnx",
        folder / "data.npz",
        before=folder / "before.qdq.onnx",
        results=[folder / "validate.json"],
        limit=16,
    )


def of_tensor(report: ModelReport, name: str) -> schema.Quantizer:
    return next(q for q in report.content.quantizers if q.tensor == name)


def test_scales_and_codes_are_those_of_the_file(folder: Path, report: ModelReport) -> None:
    file = onnx.load(folder / "model.qdq.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    weight = of_tensor(report, "first.weight")
    assert weight.now.scale == pytest.approx(constants["first.weight_scale"].tolist(), rel=1e-5)
    assert weight.before is not None
    assert weight.before.scale == pytest.approx((constants["first.weight_scale"] * 1.25).tolist(), rel=1e-5)
    assert weight.now.total == weight.now.shown == 8
    assert weight.granularity == "channel, axis 0"
    assert weight.rule
    values = weight.now.values
    assert values is not None
    scale = constants["first.weight_scale"].reshape(8, 1, 1, 1)
    codes = np.clip(np.rint(constants["first.weight"] / scale), -128, 127)
    first = [int(((codes >= low) & (codes < low + 4)).sum()) for low in range(-128, 128, 4)]
    assert (values.first_code, values.codes_per_bin, values.code_counts) == (-128, 4, first)
    assert sum(values.counts) == values.values == codes.size
    error = codes * scale - constants["first.weight"]
    noise = 10 * np.log10((constants["first.weight"].astype(np.float64) ** 2).sum() / (error**2).sum())
    assert values.own_db == pytest.approx(noise, abs=0.01)


def test_histograms_hold_every_value_of_the_data(report: ModelReport) -> None:
    values = of_tensor(report, "image").now.values
    assert values is not None
    assert values.values == 16 * 3 * 8 * 8
    assert sum(values.counts) == sum(values.code_counts) == values.values
    assert len(values.counts) == meters.BARS
    assert report.content.samples == 16


def test_costs_follow_widths(report: ModelReport) -> None:
    own, original, before = report.content.variants
    assert (own.name, original.name, before.name) == ("this file", "float", "before")
    macs = 8 * 27 * 64 + 4 * 8 * 64 + 5 * 4
    assert own.macs == original.macs == macs
    assert original.multiply_bits == macs * 32 * 32
    assert own.multiply_bits == macs * 8 * 8
    assert original.weight_bytes == 4 * (8 * 27 + 4 * 8 + 20 + 5)
    assert own.weight_bytes == 8 * 27 + 4 * 8 + 20 + 4 * 5
    assert own.float_layers == 0
    assert isinstance(own.output_db, float)
    assert own.output_db > 15
    assert isinstance(before.output_db, float)
    assert original.output_db is None  # the reference itself


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # A float layer in front, a second reader of the layer, a reader without a pair: nothing to be fused with.
        ([("Conv", "W8A8", -1), ("BatchNormalization", "float", -1), ("Relu", "float", 7)], ["fused", "fused"]),
        ([("Conv", "float", -1), ("BatchNormalization", "float", -1), ("Relu", "float", 7)], ["float", "float"]),
        ([("Conv", "W8A8", -1), ("BatchNormalization", "float", -1), ("Relu", "float", -1)], ["float", "float"]),
        ([("Conv", "W8A8", -1), ("Softmax", "float", -1), ("Relu", "float", 7)], ["float", "float"]),
    ],
)
def test_fused_is_what_stands_between_a_layer_and_a_pair(made: list[tuple[str, str, int]], expected: list[str]) -> None:
    made = [*made, ("Conv", "W8A8", 8)]
    nodes = [
        schema.Node(name=f"n{i}", op=op, block="", tensor=f"t{i}", shape=None, arithmetic=arithmetic, reads=[])
        for i, (op, arithmetic, _) in enumerate(made)
    ]
    edges = [(i, i + 1, made[i][2]) for i in range(len(made) - 1)]
    network._name_fused(network.Network(nodes, edges, {}, {}))
    assert [node.arithmetic for node in nodes[1:3]] == expected


def test_the_graph_is_that_of_the_operators(report: ModelReport) -> None:
    nodes = {node.name: i for i, node in enumerate(report.content.nodes)}
    assert [n.op for n in report.content.nodes] == [
        "Input", "Conv", "Relu", "Conv", "GlobalAveragePool", "Flatten", "Gemm", "Output",
    ]  # fmt: skip
    second = report.content.nodes[nodes["/body/second/Conv"]]
    assert (second.block, second.arithmetic, second.macs) == ("body/second", "W8A8", 4 * 8 * 64)
    relu = nodes["/stem/act/Relu"]
    assert report.content.nodes[relu].arithmetic == "fused"
    through = {q for a, b, q in report.content.edges if (a, b) == (relu, nodes["/body/second/Conv"])}
    assert [report.content.quantizers[q].tensor for q in through] == ["b"]
    assert nodes["/body/second/Conv"] in of_tensor(report, "b").readers
    assert of_tensor(report, "b").maker == relu
    assert isinstance(second.float_db, float)


def test_results_of_commands_stand_beside_nodes(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data = str(folder / "data.npz")
    profiled = onnxqat.profile(folder / "model.onnx", folder / "model.qdq.onnx", data, limit=8)
    (tmp_path / "profile.json").write_text(as_json.dumps(build_profile.from_profile(profiled)))
    handed = onnxqat.handoff(folder / "model.qdq.onnx", "onnxruntime-cpu", tmp_path / "bundle", data=data, limit=4)
    (tmp_path / "handoff.json").write_text(as_json.dumps(build_handoff.from_handoff(handed)))
    results = [tmp_path / "profile.json", tmp_path / "handoff.json", folder / "validate.json"]
    found = onnxqat.model_report(folder / "model.qdq.onnx", results=results).content
    shares = [q.cost.share for q in found.quantizers if q.cost is not None and q.cost.share is not None]
    assert sum(shares) == pytest.approx(1.0)
    worst = max((q for q in found.quantizers if q.cost), key=lambda q: (q.cost and q.cost.share) or 0.0)
    assert worst.tensor == min(profiled.tensors, key=lambda t: t.alone_db or 0.0).tensor
    (target,) = found.targets
    assert target.total == sum(c.total for c in handed.coverage)
    bundle = onnxqat.model_report(folder / "model.qdq.onnx", results=[tmp_path / "bundle"]).content
    assert bundle.targets == found.targets
    assert [node.kernels for node in bundle.nodes] == [node.kernels for node in found.nodes]
    assert [j.source for j in bundle.judgements] == ["handoff"] * len(handed.verdicts)
    runs = {node.name: kernel.runs for node in found.nodes for kernel in node.kernels}
    words = {"integer": "integers", "moved": "moved", "float": "float", "rejected": "rejected"}
    for node in handed.nodes:
        if node.name in runs and runs[node.name] != "absorbed":
            assert runs[node.name] == words[node.kind]
    assert "integers" in runs.values()
    assert {j.name for j in found.judgements} == {"parity", "accuracy", "deployment"}
    judged = [j.source for j in found.judgements if j.name == "deployment"]
    assert judged == ["handoff"]  # validate knows of no compiler
    assert found.variants[0].scores["top1"] == pytest.approx(
        json.loads((folder / "validate.json").read_text())["figures"]["top1_ort-default"]
    )
    assert found.curve is not None
    assert found.sources == ["profile: profile.json", "handoff: handoff.json", "validate: validate.json"]


def test_a_matrix_of_targets_has_a_column_for_each(folder: Path, tmp_path: Path) -> None:
    def target(backend: str, **more: Any) -> dict[str, Any]:
        return {"backend": backend, "compiler": None, "version": None, "integer": 0, "heavy": 0, "steps": None, **more}

    taken = target("one", compiler="c", version="1.2", integer=2, heavy=3, steps=1.5, status="green", reason="took it")
    name = "/body/second/Conv"
    node = {
        "name": name, "op_type": "Conv", "runs": {"one": "integer", "two": "float", "three": "integer"},
        "kernels": {"one": "qconv", "two": "conv"}, "steps": {"one": 0.5},
    }  # fmt: skip
    relu = {
        "name": "/stem/act/Relu",
        "runs": {"one": "integer"},
        "kernels": {"one": base_compiler.ABSORBED},
        "steps": {},
    }
    matrix = {"schema": 1, "targets": [taken, target("two", status="red", reason="refused")], "nodes": [node, relu, 3]}
    (tmp_path / "matrix.json").write_text(json.dumps(matrix))
    found = onnxqat.model_report(folder / "model.qdq.onnx", results=[tmp_path]).content
    assert [(t.name, t.integer, t.total, t.status) for t in found.targets] == [
        ("one · c 1.2", 2, 3, "green"),
        ("two", None, None, "red"),
    ]
    kernels = {n.name: [(k.target, k.runs, k.kernel, k.largest_lsb) for k in n.kernels] for n in found.nodes}
    assert kernels[name] == [(0, "integers", "qconv", 0.5), (1, "float", "conv", None)]
    assert kernels["/stem/act/Relu"] == [(0, "absorbed", base_compiler.ABSORBED, None)]
    printed = {"kind": "handoff_matrix", "details": {"matrix": matrix}}
    (tmp_path / "printed.json").write_text(json.dumps(printed))
    again = onnxqat.model_report(folder / "model.qdq.onnx", results=[tmp_path / "printed.json"]).content
    assert again.targets == found.targets


def test_the_json_keeps_all_and_fits_its_published_schema(report: ModelReport) -> None:
    again = schema.ModelReport.model_validate_json(report.to_json())
    assert again == report.content
    assert report.to_dict()["schema_version"] == schema.SCHEMA
    text = (REPOSITORY / "docs" / "report.schema.json").read_text(encoding="utf-8")
    assert text == schema.schema_text(), "run: python tools/report_schema.py"
    with pytest.raises(ValueError, match="surplus"):
        schema.ModelReport.model_validate({**report.to_dict(), "surplus": 1})


class Document(HTMLParser):
    """Tags with their attributes, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inner: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.lasttag in ("script", "style"):
            self.inner.append((self.lasttag, data))


def parsed(text: str) -> Document:
    found = Document()
    found.feed(text)
    return found


def test_the_page_runs_its_own_script_alone(report: ModelReport) -> None:
    text = report.to_html()
    found = parsed(text)
    policy = next(a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a)
    scripts = [a for tag, a in found.tags if tag == "script"]
    assert [a.get("type", "") for a in scripts] == ["application/json", ""]
    for kind, key in (("script", "script-src"), ("style", "style-src")):
        own = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.S)
        (hashed,) = [base64.b64encode(hashlib.sha256(o.encode()).digest()).decode() for o in own]
        assert f"{key} 'sha256-{hashed}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    names = {name for _, attributes in found.tags for name in attributes}
    assert not {n for n in names if n.startswith("on")} | names & {"src", "style", "srcset", "action"}
    assert not {tag for tag, _ in found.tags} & {"img", "link", "iframe", "object", "embed", "base", "form"}
    assert all(a["href"].startswith("#") for _, a in found.tags if "href" in a)
    assert set(re.findall(r"https?://[^\s\"'<>]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_page_can_be_read_by_all(report: ModelReport) -> None:
    found = parsed(report.to_html())
    tags = [tag for tag, _ in found.tags]
    assert found.tags[0] == ("html", {"lang": "en"})
    assert {"header", "nav", "main", "aside", "footer", "noscript", "title"} <= set(tags)
    assert tags.count("h1") == tags.count("main") == 1
    ids = {a["id"] for _, a in found.tags if "id" in a}
    for _, attributes in found.tags:
        assert {v for k in ("aria-labelledby", "aria-controls") for v in attributes.get(k, "").split()} <= ids
    assert ("a", {"class": "skip", "href": "#main"}) in found.tags
    assert any(a.get("aria-live") == "polite" for _, a in found.tags)
    style = page.style_text()
    assert all(
        text in style for text in (":focus-visible", "@media print", '[data-theme="dark"]', "prefers-reduced-motion")
    )


def test_names_in_a_model_stay_data(tmp_path: Path) -> None:
    path = float_model(tmp_path / "model.onnx", hostile=HOSTILE)
    found = onnxqat.model_report(path)
    text = found.to_html()
    assert [tag for tag, _ in parsed(text).tags].count("script") == 2
    assert "<img" not in text
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])
    assert data["nodes"][3]["name"] == "/body/second/Conv" + HOSTILE
    assert found.content.quantizers == []  # a float model has a report, too
    assert "\u202e" not in str(found)


def test_five_hundred_layers_stay_below_five_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nodes, constants, last = [], [], "x"
    for i in range(500):
        weight = rng.normal(size=(256, 1)).astype(np.float32)
        scale = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
        constants += [
            numpy_helper.from_array(weight, f"w{i}"),
            numpy_helper.from_array(scale, f"s{i}"),
            numpy_helper.from_array(np.zeros(256, np.int8), f"z{i}"),
        ]
        pair = [f"s{i}", f"z{i}"]
        nodes += [
            helper.make_node("QuantizeLinear", [f"w{i}", *pair], [f"q{i}"], axis=0),
            helper.make_node("DequantizeLinear", [f"q{i}", *pair], [f"d{i}"], axis=0),
            helper.make_node(
                "MatMul" if i % 2 else "Gemm", [last, f"d{i}"], [f"y{i}"], **({} if i % 2 else {"transB": 0})
            ),
        ]
        last = "x"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 256])
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["n", 1]) for i in range(500)]
    graph = helper.make_graph(nodes, "many", [x], outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    found = onnxqat.model_report(tmp_path / "m.onnx")
    assert len(found.content.quantizers) == 500
    assert len(found.to_html().encode()) < 5_000_000


def test_many_scales_are_thinned_evenly() -> None:
    assert meters.shares([10, 20]) == [10, 20]
    many = meters.shares([1_000] * 1_000)
    assert sum(many) <= meters.BUDGET
    assert len(set(many)) == 1


def test_blocks_come_from_names_or_from_single_tensors() -> None:
    assert blocks.levels("/layer1/layer1.0/conv1/Conv") == ["layer1", "0", "conv1"]
    assert blocks.levels("Conv_12") == []
    assert blocks.levels("model.layers.0.attn") == ["model", "layers", "0"]
    chain = [(i, i + 1) for i in range(99)]
    found = blocks.blocks([f"n{i}" for i in range(100)], chain)
    assert found[0] == "part 1"
    assert 1 < len(set(found)) <= blocks.TARGET_BLOCKS
    assert found == sorted(found, key=lambda name: int(name.split()[1]))
    # A skip from the third to the sixth keeps these together: two tensors pass between them.
    skipped = blocks.blocks([f"n{i}" for i in range(8)], [*[(i, i + 1) for i in range(7)], (2, 6)])
    assert len({skipped[i] for i in range(3, 7)}) == 1


def test_a_front_has_what_no_other_beats() -> None:
    rows = [("a", 1.0, 5.0), ("b", 2.0, 6.0), ("c", 3.0, 2.0), ("d", 3.0, 1.0)]
    attempts = [{"attempt": n, "seconds": x, "drop": y} for n, x, y in rows]
    content = {"kind": "auto", "figures": {"chosen": "d"}, "tables": {"attempts": attempts}}
    (front,) = fronts.fronts([Result("auto", "auto.json", content, Path())], lambda _: 0.0)
    assert {p.name for p in front.points if p.front} == {"a", "d"}
    assert [p.name for p in front.points if p.chosen] == ["d"]


def test_curves_of_a_run_keep_their_gaps_and_their_end() -> None:
    lines: list[dict[str, Any]] = [
        {"event": "step", "step": i, "loss": None if i == 5 else 1.0 / (i + 1), "rates": {"weights": 0.1}}
        for i in range(2500)
    ]
    lines += [{"event": "epoch", "step": 10 * e, "score": e, "scales": {"a": 1.0 + e, "b": 2.0}} for e in range(3)]
    found = training_log.training(lines)
    (loss,) = found.loss
    assert len(loss.x) <= training_log.POINTS + 1
    assert loss.x[-1] == 2499
    assert training_log.training(lines[:10]).loss[0].y[5] is None
    assert [curve.name for curve in found.scales] == ["a", "b"]  # what moves most comes first
    assert found.scales[0].y == [1.0, 2.0, 3.0]
    assert found.oscillation == []


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("missing.json", None, "data-not-found"),
        ("broken.json", "{", "data-format"),
        ("other.json", '{"kind": "inspect"}', "data-format"),
        ("list.json", "[1]", "data-format"),
        ("log.jsonl", "no line\n", "data-format"),
        ("deep.json", "[" * 100_000, "data-format"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, name: str, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(QatError) as refused:
        read_results([tmp_path / name])
    assert refused.value.code == code


def test_a_result_with_wrong_types_does_no_harm(folder: Path, tmp_path: Path) -> None:
    hostile = {
        "kind": "profile",
        "tables": {"tensors": [{"tensor": 3, "alone_db": "x"}, 7], "layers": None, "curve": {}},
    }
    (tmp_path / "p.json").write_text(json.dumps(hostile))
    (tmp_path / "h.json").write_text(
        json.dumps({"kind": "handoff", "verdicts": 3, "figures": [], "tables": {"nodes": [{}]}})
    )
    found = onnxqat.model_report(folder / "model.qdq.onnx", results=[tmp_path / "p.json", tmp_path / "h.json"])
    assert found.content.targets[0].name == "h.json"


def test_the_summary_has_ten_lines_and_the_terminal_the_same_figures(report: ModelReport) -> None:
    assert 3 < len(str(report).splitlines()) <= 10
    shown = build_model_report.from_model_report(report.content)
    figures = {figure.key: figure.value for figure in shown.figures}
    assert figures["quantizers"] == len(report.content.quantizers)
    assert figures["output_db"] == report.content.variants[0].output_db
    assert "sandbox" in report._repr_html_()
    assert "<script" not in report._repr_html_()  # escaped inside of the attribute
    rows = report.to_rows()
    assert rows[0]["now_scale_high"] == report.content.quantizers[0].now.scale_high
    assert {row["name"] for row in report.to_rows("variants")} == {"this file", "float", "before"}
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(QatError, match="pandas"):
            report.to_frame()
    else:
        assert len(report.to_frame("nodes")) == len(report.content.nodes)


def test_the_debugger_of_onnxruntime_finds_every_quantized_activation(folder: Path, tmp_path: Path) -> None:
    from onnxruntime.quantization import qdq_loss_debug

    with np.load(folder / "data.npz") as data:
        feeds = {"image": data["image"][:2]}

    def activations(name: str) -> dict[str, Any]:
        qdq_loss_debug.modify_model_output_intermediate_tensors(str(folder / name), str(tmp_path / name))
        found: dict[str, Any] = qdq_loss_debug.collect_activations(str(tmp_path / name), iter([feeds]))
        return found

    matched = qdq_loss_debug.create_activation_matching(activations("model.qdq.onnx"), activations("model.onnx"))
    graph = onnx.load(folder / "model.qdq.onnx").graph
    constants = {tensor.name for tensor in graph.initializer}
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"} - constants
    assert set(matched) == quantized
    assert all("float" in found for found in matched.values())


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = str(folder / "model.qdq.onnx"), str(folder / "data.npz")
    html, explorer = tmp_path / "r.html", tmp_path / "explorer"
    command = ["report", model, "--data", data, "--limit", "4", "-o", str(html), "--node-data", str(explorer), "--json"]
    assert main.run([*command, "--variant", f"same={folder / 'before.qdq.onnx'}", "--latency"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "report"
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [row["name"] for row in told["tables"]["variants"]] == ["this file", "float", "same"]
    assert all(row["milliseconds"] > 0 for row in told["tables"]["variants"])
    bits = json.loads((explorer / "multiply-bits.json").read_text())["net"]
    assert bits["results"]["/body/second/Conv"]["value"] == 4 * 8 * 64 * 8 * 8
    assert main.run(["report", model, "-o", str(tmp_path / "r.json")]) == 0
    schema.ModelReport.model_validate_json((tmp_path / "r.json").read_text())
    capsys.readouterr()
    assert main.run(["report", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema.json_schema()
    for bad in (
        ["--variant", "x"],
        ["--latency"],
        ["--variant", f"float={model}"],
        ["--with", str(tmp_path / "none.json")],
    ):
        assert main.run(["report", model, "-o", str(tmp_path / "bad.html"), *bad]) == 2
    assert not (tmp_path / "bad.html").exists()


def test_a_float_model_has_no_nodes_that_were_left_in_float(folder: Path) -> None:
    found = onnxqat.model_report(folder / "model.onnx")
    assert [node.reason for node in found.content.nodes if node.reason] == []
    assert build_model_report.from_model_report(found.content).left_float is None
