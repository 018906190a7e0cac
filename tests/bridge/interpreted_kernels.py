"""Runs the Triton kernels in Triton's interpreter and prints as JSON what each case has to say; see the test.

A process of its own, because TRITON_INTERPRET is read when Triton is imported.
"""

import json
import os
import traceback

os.environ["TRITON_INTERPRET"] = "1"

from onnxqat.bridge.kernels import triton_fake_quantize
from tests.bridge.kernel_cases import RAISED, Case, Raised, cases, check, check_raised


def failure(case: Case | Raised) -> str:
    """What went wrong; empty when nothing did."""
    try:
        if isinstance(case, Case):
            check(triton_fake_quantize, case, truncates=True)
        else:
            check_raised(triton_fake_quantize, case)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    """All cases by name."""
    found = {case.name: failure(case) for case in cases()}
    print(json.dumps(found | {str(raised): failure(raised) for raised in RAISED}))


if __name__ == "__main__":
    main()
