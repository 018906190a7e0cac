"""A compiler whose kernels are known to the last bit is held to execution in integers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from onnxqat.deployment import base_compiler
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.integer_comparison import against_integers
from onnxqat.deployment.outputs import check_outputs
from onnxqat.deployment.verdicts import judge_output
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.report import build_handoff, terminal
from tests.bridge.integer import networks


def test_the_default_session_computes_these_integers(tmp_path: Path) -> None:
    x = networks.images(8, 3)
    made = networks.quantized(networks.kinds(), networks.images())
    report = handoff(made, "onnxruntime-cpu", tmp_path / "bundle", data={"x": x}, limit=8, trace=False)
    assert [(c.output, c.unlike_integers) for c in report.outputs] == [("logits", 0), ("shares", 0)]
    assert any(c.differing for c in report.outputs)
    (deployment,) = (v for v in report.verdicts if v.name == "deployment")
    assert deployment.status == "green"
    assert "is that of execution in integers" in deployment.reason
    assert "unlike integers" in terminal.to_text(build_handoff.from_handoff(report))


@pytest.mark.parametrize("changed", [False, True])
def test_values_far_from_the_file_are_judged_unless_integers_give_them(changed: bool) -> None:
    made, x = networks.quantized(networks.kinds(), networks.images()), networks.images(8, 3)
    found = [dict(zip(("logits", "shares"), (v.copy() for v in networks.session(made, x)), strict=True))]
    far = [{name: -value for name, value in found[0].items()}]
    if changed:
        found[0]["logits"][0, 0] += 1
    checks = check_outputs(found, far, {}, 2)
    held = against_integers(checks, found, io.load(made), base_compiler.load("onnxruntime-cpu"), [{"x": x}])
    assert [c.unlike_integers for c in held] == [int(changed), 0]
    assert [dataclasses.replace(c, unlike_integers=None) for c in held] == list(checks)
    statuses = [judge_output(c, 30.0, 2, 0.01, "onnxruntime-cpu").status for c in held]
    assert statuses == ["red" if changed else "green", "green"]


def test_other_compilers_are_judged_as_before() -> None:
    checks = check_outputs([{"y": np.ones((2, 3))}], [{"y": np.ones((2, 3))}], {}, 2)
    openvino = base_compiler.load("openvino-cpu")
    assert against_integers(checks, [], io.load(networks.kinds()), openvino, []) is checks
    assert against_integers(checks, [], io.load(networks.kinds()), None, []) is checks


def test_weights_alone_run_on_no_integers() -> None:
    weights = insert_qdq(networks.kinds(), "onnxruntime-int4").model
    checks = check_outputs([{"y": np.ones((2, 3))}], [{"y": np.ones((2, 3))}], {}, 2)
    session = base_compiler.load("onnxruntime-cpu")
    assert against_integers(checks, [], io.load(weights), session, [{"x": networks.images(2)}]) is checks
