"""com.microsoft operators that exporters used before ONNX had the like."""

from __future__ import annotations

from onnxqat.ops._base import OpDef

DOMAIN = "com.microsoft"

OPS: tuple[OpDef, ...] = (
    OpDef("CDist", 1, 1, ("data", "data"), domain=DOMAIN),
    OpDef("CropAndResize", 1, 1, ("data", "parameter"), domain=DOMAIN),
    OpDef("ExpandDims", 1, 1, ("data", "parameter"), domain=DOMAIN, passthrough=True),
    OpDef("GatherND", 1, 1, ("data", "parameter"), domain=DOMAIN, passthrough=True),
    OpDef("GridSample", 1, 1, ("data", "parameter"), domain=DOMAIN),
    OpDef("Inverse", 1, 1, domain=DOMAIN),
    OpDef("Pad", 1, 1, ("data", "parameter"), domain=DOMAIN),
    OpDef("Trilu", 1, 1, ("data", "parameter"), domain=DOMAIN, passthrough=True),
    OpDef("UnfoldTensor", 1, 1, domain=DOMAIN, passthrough=True),
    OpDef("Unique", 1, 1, ("parameter",), domain=DOMAIN),
)
