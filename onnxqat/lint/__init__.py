"""Reading QDQ files critically: defects (lint), what stands where and why (explain), and what two files differ in (diff)."""

from onnxqat.callable_package import make_callable

make_callable(__name__)
