"""The whole way of a model in one call: calibrate, fine-tune where that is needed, prove, hand off."""

from onnxqat.callable_package import make_callable

make_callable(__name__)
