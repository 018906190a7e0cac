"""tract, Sonos' inference engine in Rust: a second opinion on what a QDQ file means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler
from onnxqat.deployment.run.environment import Environment


class Compiler(environment_compiler.EnvironmentCompiler):
    """No integer kernels are looked for: it computes Q/DQ by their definition, independently of onnxruntime.

    It reads 8-bit types; 16-bit ones it refuses.
    """

    package = "tract"
    environment = Environment(
        name="tract",
        package="tract",
        requirements=("tract==0.23.9", "numpy>=1.26"),
        python=(10, 14),
        systems=("linux-x86_64", "linux-aarch64", "darwin-arm64", "darwin-x86_64", "windows-x86_64"),
        megabytes=110,
    )

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """Every node in float; see the base class."""
        nodes = Nodes(original)
        for node in nodes.all:
            nodes.seen(node, "float", "by its definition", "tract computes quantized models by their definition")
        return nodes.results()
