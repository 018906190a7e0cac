"""The names of MQBench and Knight over onnxqat's own objects; each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat import lazy_names

_HOMES = {
    "BackendType": "onnxqat.compat.backend_type",
    "prepare_by_platform": "onnxqat.compat.prepare",
    "enable_calibration": "onnxqat.compat.switches",
    "enable_quantization": "onnxqat.compat.switches",
    "enable_calibration_woquantization": "onnxqat.compat.switches",
    "enable_calibration_quantization": "onnxqat.compat.switches",
    "disable_all": "onnxqat.compat.switches",
    "enable_all": "onnxqat.compat.switches",
    "save_checkpoint": "onnxqat.compat.checkpoint",
    "load_checkpoint": "onnxqat.compat.checkpoint",
    "convert_export": "onnxqat.compat.deploy",
    "convert_deploy": "onnxqat.compat.deploy",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from onnxqat.compat.backend_type import BackendType as BackendType
    from onnxqat.compat.checkpoint import load_checkpoint as load_checkpoint
    from onnxqat.compat.checkpoint import save_checkpoint as save_checkpoint
    from onnxqat.compat.deploy import convert_deploy as convert_deploy
    from onnxqat.compat.deploy import convert_export as convert_export
    from onnxqat.compat.prepare import prepare_by_platform as prepare_by_platform
    from onnxqat.compat.switches import disable_all as disable_all
    from onnxqat.compat.switches import enable_all as enable_all
    from onnxqat.compat.switches import enable_calibration as enable_calibration
    from onnxqat.compat.switches import enable_calibration_quantization as enable_calibration_quantization
    from onnxqat.compat.switches import enable_calibration_woquantization as enable_calibration_woquantization
    from onnxqat.compat.switches import enable_quantization as enable_quantization


__getattr__, __dir__ = lazy_names.faces(__name__, _HOMES, globals())
