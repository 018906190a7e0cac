"""onnxruntime's QNN execution provider inside its environment: the HTP backend's compiler and simulator for x86-64."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any


def compile_and_run(job: dict[str, Any]) -> dict[str, Any]:
    """Compile, run, and give QNN's own graph and who runs which node; options with a dot are session settings."""
    ort, qnn = importlib.import_module("onnxruntime"), importlib.import_module("onnxruntime_qnn")
    ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
    devices = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"]
    with tempfile.TemporaryDirectory(prefix="onnxqat-") as folder:
        provider = {"backend_path": qnn.get_qnn_htp_path()}
        provider.update(dump_json_qnn_graph="1", json_qnn_graph_dir=folder)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in job["options"].items():
            if "." in key:
                options.add_session_config_entry(key, value)
            else:
                provider[key] = value
        files = _context(job, options)
        options.add_provider_for_devices(devices, provider)
        session = ort.InferenceSession(job["model"], options)
        names = [value.name for value in session.get_outputs()]
        outputs = [dict(zip(names, session.run(names, batch), strict=True)) for batch in job["batches"]]
        facts = {"assigned": _assigned(session), "graphs": _graphs(Path(folder))}
    made = [name for name in files if (Path(job["artefacts"]) / name).is_file()]
    return {"outputs": outputs, "files": made, "facts": facts}


def _context(job: dict[str, Any], options: Any) -> list[str]:
    if job["artefacts"] is None:
        return []
    folder = Path(job["artefacts"]) / "qnn"
    folder.mkdir()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(folder / "context.onnx"))
    options.add_session_config_entry("ep.context_embed_mode", "0")
    return ["qnn/context.onnx", "qnn/context_qnn.bin"]


def _assigned(session: Any) -> list[list[str]]:
    return [
        [group.ep_name, node.op_type, node.name]
        for group in session.get_provider_graph_assignment_info()
        for node in group.get_nodes()
    ]


def _graphs(folder: Path) -> list[list[dict[str, Any]]]:
    """Nodes of each graph that QNN compiled, with the types of what they read."""
    found = []
    for path in sorted(folder.glob("*.json")):
        graph = json.loads(path.read_text(encoding="utf-8")).get("graph")
        if not graph:
            continue
        tensors = graph["tensors"]
        nodes = []
        for name, node in graph["nodes"].items():
            types = [tensors[t]["data_type"] for t in node["input_names"] if t in tensors]
            nodes.append({"name": name, "type": node["type"], "types": types, "outputs": node["output_names"]})
        found.append(nodes)
    return found
