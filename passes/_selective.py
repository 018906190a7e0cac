"""Base class of passes that leave alone what stays in float."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.passes._base import Pass
from onnxqat.passes._setting import Setting


class SelectivePass(Pass):
    """A rewrite that gains nothing at nodes which stay in float.

    Attributes:
        selection: of the user; None rewrites everywhere.
    """

    def __init__(self, setting: Setting | None = None) -> None:
        self.selection = None if setting is None else setting.selection

    def stays_float(self, node: ir.Node) -> bool:
        """Check whether `selection` keeps `node` in float."""
        return self.selection is not None and self.selection.reason(node) is not None
