"""Arm Ethos-U: our own ``.tflite`` through Vela, Arm's compiler for these NPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import Array, Kind, NodeResult, ScriptJob
from onnxqat.deployment.compilers import litert
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.run.environment_compiler import EnvironmentCompiler
from onnxqat.deployment.static_model import static_copy
from onnxqat.errors import UsageError

_ROW = re.compile(r"\s*(NPU|CPU): (\S+) = (.*) \(outputs? .*\)")
"""A line of ``--show-cpu-operations``: where an operator runs, and the tensor that it makes."""


class Compiler(EnvironmentCompiler):
    """Judged by Vela's own list: an operator for the NPU is integer, one that is left to the CPU is *rejected*.

    Options are Vela's, such as ``accelerator_config`` (ethos-u55-128 without), ``system_config`` and ``memory_mode``.
    The vendor's own files are the ``.tflite`` and what Vela makes of it. It has no simulator.
    """

    package = "tflite"
    extra = "litert"
    runs_numbers = False
    traces = False
    integer_kernels = litert.Compiler.integer_kernels
    environment = Environment(
        name="ethos-u",
        package="ethos-u-vela",
        requirements=("ethos-u-vela==5.2.0",),
        python=(10, 13),
        systems=("linux-x86_64", "linux-aarch64", "darwin-arm64", "windows-x86_64"),
        megabytes=110,
    )

    def version(self) -> str | None:
        """Version of Vela; None where it or the package that writes the file is not installed."""
        return None if litert.Compiler().version() is None else self.environment.version()

    def missing(self) -> UsageError:
        """The error for what is not installed of the two."""
        writer = litert.Compiler()
        return writer.missing() if writer.version() is None else self.environment.missing()

    def script_job(self, path: Path, batches: Sequence[Mapping[str, Array]], folder: Path) -> ScriptJob:
        """Write the model for Vela; see the base class.

        Raises:
            UsageError: ``dependency-missing``.
        """
        if self.version() is None:
            raise self.missing()
        original = static_copy(path, batches[0])
        return ScriptJob(self.script, self.environment.interpreter, litert.write(original, folder), original)

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """From the rows that Vela prints; see the base class."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for row in map(_ROW.match, facts["rows"]):
            if row is not None:
                rows.setdefault(row[3], []).append((row[1], row[2]))
        nodes = Nodes(original)
        for name, kind, operators, tensors in facts["nodes"]:
            node = nodes.find(name)
            if node is None:
                continue
            found = [place for tensor in tensors for place in rows.get(tensor, [])]
            detail = " ".join(dict.fromkeys(f"{place} {operator}" for place, operator in found))
            # Vela has no names for what it passes through, so the operators of the file are named.
            written = zip(operators, tensors, strict=True)
            left = [code for code, tensor in written if any(place == "CPU" for place, _ in rows.get(tensor, []))]
            if left:
                nodes.seen(node, "rejected", detail, f"Vela leaves {', '.join(dict.fromkeys(left))} to the CPU")
            else:
                where: Kind = "moved" if not found and kind != "float" else kind
                nodes.seen(node, where, detail or " ".join(operators), "it computes in float")
        return nodes.results()
