"""Everything that an extension may derive from or make, in one place; each name is loaded on first use.

The classes live beside what they are bases of, in files that begin with ``_`` where the folder is searched for extensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat import lazy_names

_PUBLIC = {
    "QatError": "onnxqat.errors",
    "Remark": "onnxqat.types",
    "Scheme": "onnxqat.types",
    "TensorSpec": "onnxqat.types",
    "QParams": "onnxqat.types",
    "Pass": "onnxqat.passes._base",
    "Context": "onnxqat.passes._base",
    "Rewrite": "onnxqat.passes._base",
    "PassResult": "onnxqat.passes._base",
    "run_passes": "onnxqat.passes._base",
    "FunctionPass": "onnxqat.passes._function",
    "GsPass": "onnxqat.passes._graphsurgeon",
    "Setting": "onnxqat.passes._setting",
    "Overrides": "onnxqat.placement.table_overrides",
    "NodeRule": "onnxqat.placement.node_rules",
    "TensorRule": "onnxqat.placement.node_rules",
    "Preprocess": "onnxqat.data.preprocess",
    "BaseObserver": "onnxqat.calibration.observers._base",
    "HistogramObserver": "onnxqat.calibration.observers._histogram",
    "BaseMetric": "onnxqat.metrics._base",
    "FakeQuantize": "onnxqat.bridge.quantizers.fake_quantize",
    "Callback": "onnxqat.training.callbacks.callback",
    "Loss": "onnxqat.training.objective.losses",
    "Rule": "onnxqat.linting.rule",
    "Found": "onnxqat.linting.rule",
    "Finding": "onnxqat.linting.rule",
    "LintContext": "onnxqat.linting.context",
    "BaseCompiler": "onnxqat.deployment.base_compiler",
    "CompilerResult": "onnxqat.deployment.base_compiler",
    "NodeResult": "onnxqat.deployment.base_compiler",
    "check_extension": "onnxqat.kinds",
}

__all__ = [*_PUBLIC]

if TYPE_CHECKING:
    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize as FakeQuantize
    from onnxqat.calibration.observers._base import BaseObserver as BaseObserver
    from onnxqat.calibration.observers._histogram import HistogramObserver as HistogramObserver
    from onnxqat.data.preprocess import Preprocess as Preprocess
    from onnxqat.deployment.base_compiler import BaseCompiler as BaseCompiler
    from onnxqat.deployment.base_compiler import CompilerResult as CompilerResult
    from onnxqat.deployment.base_compiler import NodeResult as NodeResult
    from onnxqat.errors import QatError as QatError
    from onnxqat.kinds import check_extension as check_extension
    from onnxqat.linting.context import LintContext as LintContext
    from onnxqat.linting.rule import Finding as Finding
    from onnxqat.linting.rule import Found as Found
    from onnxqat.linting.rule import Rule as Rule
    from onnxqat.metrics._base import BaseMetric as BaseMetric
    from onnxqat.passes._base import Context as Context
    from onnxqat.passes._base import Pass as Pass
    from onnxqat.passes._base import PassResult as PassResult
    from onnxqat.passes._base import Rewrite as Rewrite
    from onnxqat.passes._base import run_passes as run_passes
    from onnxqat.passes._function import FunctionPass as FunctionPass
    from onnxqat.passes._graphsurgeon import GsPass as GsPass
    from onnxqat.passes._setting import Setting as Setting
    from onnxqat.placement.node_rules import NodeRule as NodeRule
    from onnxqat.placement.node_rules import TensorRule as TensorRule
    from onnxqat.placement.table_overrides import Overrides as Overrides
    from onnxqat.training.callbacks.callback import Callback as Callback
    from onnxqat.training.objective.losses import Loss as Loss
    from onnxqat.types import QParams as QParams
    from onnxqat.types import Remark as Remark
    from onnxqat.types import Scheme as Scheme
    from onnxqat.types import TensorSpec as TensorSpec


__getattr__, __dir__ = lazy_names.faces(__name__, _PUBLIC, globals())
