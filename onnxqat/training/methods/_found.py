"""Look-up of a method: a file of this package, a file of the user's, or another package's entry point.

A method file has a class ``Method``, a :class:`onnxqat.bridge.quantizers.fake_quantize.FakeQuantize`, and may have a function
``reference(x, qparams, ...)`` that computes the same in numpy.
"""

from __future__ import annotations

from types import ModuleType

from onnxqat import extension
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UnsupportedError

PACKAGE = "onnxqat.training.methods"
KIND = extension.Kind(
    name="method",
    package=PACKAGE,
    group="onnxqat.methods",
    lacks=extension.class_named("Method", lambda: FakeQuantize),
    page="docs/methods.md",
)

_OTHER_LEVELS = "ONNX's quantizers have equal steps between their codes, so no Q/DQ pair can hold it"
REFUSED = {
    "n2uq": f"its learned thresholds lie at unequal distances (Liu et al., CVPR 2022); {_OTHER_LEVELS}",
    "apot": f"its levels are sums of powers of two (Li et al., ICLR 2020); {_OTHER_LEVELS}",
    "nnie": f"its levels are powers of two, a logarithmic grid; {_OTHER_LEVELS}",
    "lq_nets": f"its levels are sums of learned numbers (Zhang et al., ECCV 2018); {_OTHER_LEVELS}",
}
"""Methods that cannot be written as Q/DQ, and why."""


def definition(name: str) -> ModuleType:
    """The module of method `name`: a name, or the path of a file that ends in ``.py``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file that is missing,
            cannot be imported or has no class ``Method``.
        UnsupportedError: ``quantizer-unsupported`` for a method that cannot be written as Q/DQ.
    """
    key = name.replace("-", "_").lower()
    if key in REFUSED:
        raise UnsupportedError(
            "quantizer-unsupported",
            f"the method {name!r} cannot be exported: {REFUSED[key]}",
            hint="lsq-plus learns scale and offset of an equal grid, dorefa bends the weights in front of one",
        )
    return extension.load(KIND, name)
