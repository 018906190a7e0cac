"""Hand-off to compilers: the deploy form, a real compilation, its numbers and what runs on integers."""

from onnxqat.callable_package import make_callable

make_callable(__name__)
