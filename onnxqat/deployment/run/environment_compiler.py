"""A compiler that lives in an environment of its own: a script there compiles, this side reads back."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnx

from onnxqat.deployment.base_compiler import Array, BaseCompiler, CompilerResult, NodeResult, ScriptJob
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.deployment.static_model import static_copy
from onnxqat.errors import CheckError, UsageError


class EnvironmentCompiler(BaseCompiler):
    """The script of the same name in ``onnxqat/deployment/scripts`` runs in `environment`.

    Attributes:
        environment: what it is installed in.
    """

    environment: ClassVar[Environment]

    @property
    def script(self) -> str:
        """Name of its script."""
        return self.name.replace("-", "_")

    def version(self) -> str | None:
        """Version of the package in the environment, None where that was not made."""
        return self.environment.version()

    def missing(self) -> UsageError:
        """The error that says how to make the environment."""
        return self.environment.missing()

    def prepare(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The form that the script is given, from `model` with static shapes and a name on every node.

        The inputs and outputs keep their names; `model` is not changed.
        """
        return model

    @abc.abstractmethod
    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """Return the execution of each node, from the facts that the script reported.

        Args:
            original: the model before :meth:`prepare`.
            facts: the script's report.
        """

    def script_job(self, path: Path, batches: Sequence[Mapping[str, Array]], folder: Path) -> ScriptJob:
        """Write the form that the script is given; see the base class.

        Raises:
            UsageError: ``dependency-missing``.
            CheckError: ``handoff-failed`` for a model above the 2 GB of one file.
        """
        if self.version() is None:
            raise self.missing()
        model = folder / "model.onnx"
        try:
            original = static_copy(path, batches[0])
            onnx.save(self.prepare(original), model)
        except ValueError as error:  # protobuf's limit of 2 GB
            raise CheckError("handoff-failed", f"{self.name} takes one file: {error}") from None
        return ScriptJob(self.script, self.environment.interpreter, model, original)

    def nodes_of(self, report: Mapping[str, Any], script: ScriptJob | None) -> tuple[NodeResult, ...]:
        """Read back the facts that the script reported; see the base class."""
        assert script is not None
        return self.read_back(script.original, report["facts"])

    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Run the script in the environment; see the base class.

        Raises:
            CheckError: ``handoff-failed``.
        """
        return compile_in_process(self, path, batches, artefacts=artefacts)
