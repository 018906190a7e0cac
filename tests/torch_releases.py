"""What the oldest torch that onnxqat supports cannot do; docs/dependencies.md lists it."""

import pytest
import torch

OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
since_2_7 = pytest.mark.skipif(OLD, reason="torch 2.6 cannot do this")
