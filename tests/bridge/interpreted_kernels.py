"""Runs the Triton kernels in Triton's interpreter and prints as JSON what each case has to say; see the test.

A process of its own, because TRITON_INTERPRET is read when Triton is imported.
"""

import json
import os
import traceback

os.environ["TRITON_INTERPRET"] = "1"

from onnxqat.bridge.kernels import triton_fake_quantize
from tests.bridge.kernel_cases import Case, cases, check


def failure(case: Case) -> str:
    """What went wrong; empty when nothing did."""
    try:
        check(triton_fake_quantize, case, truncates=True)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    """All cases by name."""
    print(json.dumps({case.name: failure(case) for case in cases()}))


if __name__ == "__main__":
    main()
