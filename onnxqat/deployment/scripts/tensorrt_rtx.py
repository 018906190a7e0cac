"""TensorRT-RTX inside its environment: the parser and the builder, which need no GPU."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Parse and build an engine; the layers come from the builder's own log."""
    trt = importlib.import_module("tensorrt_rtx")
    said: list[tuple[str, str]] = []

    class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            said.append((severity.name, message))

    builder = trt.Builder(Logger())
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, Logger())
    if not parser.parse_from_file(job["model"]):
        return _refused(parser)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    capability = job["options"].get("compute_capability", "SM86")
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        errors = [text for severity, text in said if "ERROR" in severity]
        return {
            "error": f"the builder failed: {' '.join(map(_without_device_note, errors[-2:]))}",
            "refused": _errors_by_node(errors),
        }
    files = []
    if job["artefacts"] is not None:
        files = ["tensorrt/engine.plan"]
        target = Path(job["artefacts"]) / files[0]
        target.parent.mkdir()
        target.write_bytes(bytes(plan))
    layers = next((text for _, text in said if text.startswith("Layers:")), "")
    return {"outputs": [], "files": files, "facts": {"layers": layers, "compute_capability": capability}}


def _refused(parser: Any) -> dict[str, Any]:
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    refused = [[error.node_name(), _without_device_note(error.desc())] for error in errors]
    text = "; ".join(
        f"{error.node_operator()} {error.node_name()}: {_without_device_note(error.desc())}" for error in errors
    )
    return {"error": f"the parser refused it: {text[:1000]}", "refused": refused}


def _without_device_note(text: str) -> str:
    """A message without what it says about the missing GPU."""
    return " ".join(text.partition("[checkMacros")[0].split())[:300]


def _errors_by_node(errors: list[str]) -> list[list[str]]:
    return [
        [name, _without_device_note(text)] for text in errors for name in re.findall(r"\[ONNX Layer: ([^\]]*)\]", text)
    ]
