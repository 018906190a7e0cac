"""onnxqat: quantization-aware training that starts from an ONNX file and ends in the same ONNX file.

Importing this package imports neither torch nor onnxruntime; each public name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat import lazy_names, lazy_sympy
from onnxqat._version import __version__

_PUBLIC = {
    "QatError": "onnxqat.errors",
    "auto": "onnxqat.autotune.auto",
    "export": "onnxqat.from_torch.export",
    "cut": "onnxqat.subgraphs.cut",
    "stitch": "onnxqat.subgraphs.stitch",
    "insert_qdq": "onnxqat.insertion.insert",
    "to_torch": "onnxqat.bridge.importing.importer",
    "to_integer": "onnxqat.bridge.integer.model",
    "write_back": "onnxqat.bridge.export.write_back",
    "finetune": "onnxqat.training.finetune",
    "OptimizerConfig": "onnxqat.training.config",
    "ScheduleConfig": "onnxqat.training.config",
    "DistillationConfig": "onnxqat.training.config",
    "ScoreConfig": "onnxqat.training.config",
    "CheckpointConfig": "onnxqat.training.config",
    "Execution": "onnxqat.training.execution.execution",
    "Loss": "onnxqat.training.objective.losses",
    "Overrides": "onnxqat.placement.table_overrides",
    "reconstruct": "onnxqat.training.reconstruction.reconstruct",
    "validate": "onnxqat.validation.validate",
    "profile": "onnxqat.validation.profile",
    "mixed_precision": "onnxqat.bit_allocation.mixed_precision",
    "Budget": "onnxqat.bit_allocation.budget",
    "simulate": "onnxqat.validation.simulate",
    "prove": "onnxqat.validation.prove",
    "handoff": "onnxqat.deployment.handoff",
    "handoff_all": "onnxqat.deployment.handoff_all",
    "fold_batchnorm": "onnxqat.deployment.fold_batchnorm",
    "lint": "onnxqat.linting.lint",
    "inspect": "onnxqat.linting.inspect",
    "explain": "onnxqat.linting.explain",
    "diff": "onnxqat.linting.diff",
    "model_report": "onnxqat.report.model_report.build",
    "load": "onnxqat.graph.io",
    "save": "onnxqat.graph.io",
}

_COMPAT = frozenset(
    {
        "BackendType",
        "prepare_by_platform",
        "enable_calibration",
        "enable_quantization",
        "enable_calibration_woquantization",
        "enable_calibration_quantization",
        "disable_all",
        "enable_all",
        "save_checkpoint",
        "load_checkpoint",
        "convert_export",
        "convert_deploy",
    }
)
"""The names of MQBench and Knight: those of :mod:`onnxqat.compat`, and importable from here as well."""

__all__ = ["__version__", *_PUBLIC]

if TYPE_CHECKING:
    from onnxqat.autotune.auto import auto as auto
    from onnxqat.bit_allocation.budget import Budget as Budget
    from onnxqat.bit_allocation.mixed_precision import mixed_precision as mixed_precision
    from onnxqat.bridge.export.write_back import write_back as write_back
    from onnxqat.bridge.importing.importer import to_torch as to_torch
    from onnxqat.bridge.integer.model import to_integer as to_integer
    from onnxqat.compat import BackendType as BackendType
    from onnxqat.compat import convert_deploy as convert_deploy
    from onnxqat.compat import convert_export as convert_export
    from onnxqat.compat import disable_all as disable_all
    from onnxqat.compat import enable_all as enable_all
    from onnxqat.compat import enable_calibration as enable_calibration
    from onnxqat.compat import enable_calibration_quantization as enable_calibration_quantization
    from onnxqat.compat import enable_calibration_woquantization as enable_calibration_woquantization
    from onnxqat.compat import enable_quantization as enable_quantization
    from onnxqat.compat import load_checkpoint as load_checkpoint
    from onnxqat.compat import prepare_by_platform as prepare_by_platform
    from onnxqat.compat import save_checkpoint as save_checkpoint
    from onnxqat.deployment.fold_batchnorm import fold_batchnorm as fold_batchnorm
    from onnxqat.deployment.handoff import handoff as handoff
    from onnxqat.deployment.handoff_all import handoff_all as handoff_all
    from onnxqat.errors import QatError as QatError
    from onnxqat.from_torch.export import export as export
    from onnxqat.graph.io import load as load
    from onnxqat.graph.io import save as save
    from onnxqat.insertion.insert import insert_qdq as insert_qdq
    from onnxqat.linting.diff import diff as diff
    from onnxqat.linting.explain import explain as explain
    from onnxqat.linting.inspect import inspect as inspect
    from onnxqat.linting.lint import lint as lint
    from onnxqat.placement.table_overrides import Overrides as Overrides
    from onnxqat.report.model_report.build import model_report as model_report
    from onnxqat.subgraphs.cut import cut as cut
    from onnxqat.subgraphs.stitch import stitch as stitch
    from onnxqat.training.config import CheckpointConfig as CheckpointConfig
    from onnxqat.training.config import DistillationConfig as DistillationConfig
    from onnxqat.training.config import OptimizerConfig as OptimizerConfig
    from onnxqat.training.config import ScheduleConfig as ScheduleConfig
    from onnxqat.training.config import ScoreConfig as ScoreConfig
    from onnxqat.training.execution.execution import Execution as Execution
    from onnxqat.training.finetune import finetune as finetune
    from onnxqat.training.objective.losses import Loss as Loss
    from onnxqat.training.reconstruction.reconstruct import reconstruct as reconstruct
    from onnxqat.validation.profile import profile as profile
    from onnxqat.validation.prove import prove as prove
    from onnxqat.validation.simulate import simulate as simulate
    from onnxqat.validation.validate import validate as validate


lazy_sympy.install()


__getattr__, __dir__ = lazy_names.faces(__name__, {**_PUBLIC, **dict.fromkeys(_COMPAT, "onnxqat.compat")}, globals())
