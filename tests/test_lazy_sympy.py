"""sympy is loaded when a symbolic dimension is computed with, and nobody but onnx_ir sees a difference."""

from pathlib import Path

import pytest

from tests.test_no_torch import python

NOT_LOADED = """
import sys
import onnxqat.insertion.insert, onnxqat.graph.io, onnx_ir as ir
assert "sympy" not in sys.modules
assert type(ir.__loader__).__module__ != "onnxqat.lazy_sympy" and ir.__spec__.loader is ir.__loader__
"""
ARITHMETIC = (
    NOT_LOADED
    + """
n = ir.SymbolicDim("n")
assert str((n + 1) * 2) == "2*n + 2" and (n + 1).evaluate({"n": 4}) == 5
assert ir.SymbolicDim("max(a, 2*b)").evaluate({"a": 3, "b": 4}) == 8
import sympy
assert sys.modules["sympy"] is sympy and sympy.__spec__.name == "sympy" and hasattr(sympy, "__path__")
assert ir.SymbolicDim(sympy.Symbol("k") + 1).value == "k + 1"
"""
)
TYPES = NOT_LOADED + "import typing\nassert 'sympy' in str(typing.get_type_hints(ir.SymbolicDim.__init__)['value'])\n"
OTHERS = NOT_LOADED + "import sympy.core\nfrom sympy import Symbol\nassert ir.SymbolicDim(Symbol('k')).value == 'k'\n"
SYMPY_FIRST = """
import sympy, sys
known = sys.modules["sympy"]
import onnxqat.graph.io, onnx_ir as ir
assert sys.modules["sympy"] is known is ir._core.sympy
assert str(ir.SymbolicDim("n") + 1) == "n + 1"
"""
ONNX_IR_FIRST = """
import onnx_ir, sys
before = list(sys.meta_path)
import onnxqat.graph.io
assert sys.meta_path == before and onnx_ir._core.sympy is sys.modules["sympy"]
"""
# Somebody whose import runs while onnx_ir's does gets the real sympy, whichever way it asks.
IN_BETWEEN = """
import sys, importlib
from onnxqat import lazy_sympy
stand_in = lazy_sympy.Deferred("sympy")
sys.modules["sympy"] = stand_in
import sympy.core.symbol
from sympy import Symbol
assert Symbol is sys.modules["sympy"].Symbol is stand_in.Symbol and sys.modules["sympy"] is not stand_in
"""


@pytest.mark.parametrize("code", [ARITHMETIC, TYPES, OTHERS, SYMPY_FIRST, ONNX_IR_FIRST, IN_BETWEEN])
def test_in_a_fresh_interpreter(code: str, repository: Path) -> None:
    done = python(repository, code)
    assert done.returncode == 0, done.stderr


def test_symbolic_dimensions_stay(repository: Path) -> None:
    code = """
import onnx, sys
from onnxqat.graph import io
text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,M] x) => (float[N,M] y) { y = Relu(x) }'
model = onnx.parser.parse_model(text)
again = io.to_proto(io.load(model))
assert [d.dim_param for d in again.graph.output[0].type.tensor_type.shape.dim] == ["N", "M"]
assert "sympy" not in sys.modules
"""
    done = python(repository, code)
    assert done.returncode == 0, done.stderr
