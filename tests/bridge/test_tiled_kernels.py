"""The CPU kernels that work tile by tile: bits of the reference, and little memory."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onnxqat.bridge.kernels import fastest, reference, tiled
from tests.bridge.kernel_cases import Case, cases, check

CASES = [case for case in cases() if case.x.numel()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_bits_in_tiles(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILE", 48)
    if tiled.covers(case.x, case.quant_min, case.quant_max, case.axis):
        check(tiled, case)
    check(fastest, case)


def test_what_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "TILE", 48)
    covered = {case.name for case in CASES if tiled.covers(case.x, case.quant_min, case.quant_max, case.axis)}
    assert {"0..15 axis None", "-8..7 axis 0", "channels_last axis None", "torch.bfloat16 axis None"} <= covered
    assert not {"channels_last axis 0", "4-d axis 1", "holes axis None", "int32 axis None", "(1,) axis None"} & covered


def test_a_large_tensor_takes_no_other_memory_than_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries are of the size of a tile: no other tensor of the size of the input is allocated."""
    monkeypatch.setattr(tiled, "TILE", 1024)
    x = torch.randn(8 * tiled.TILE * torch.get_num_threads())
    scale, zero_point = torch.tensor(0.1), torch.tensor(3, dtype=torch.int32)
    arguments = (x, scale, zero_point, 0, 15, None)
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            known = {a.untyped_storage().data_ptr() for a in (*args, *(kwargs or {}).values()) if torch.is_tensor(a)}
            if torch.is_tensor(result) and result.untyped_storage().data_ptr() not in known:
                sizes.append(result.numel())
            return result

    with Watch():
        tiled.fake_quantize(*arguments)
        tiled.fake_quantize_backward(x, *arguments)
    assert sorted(sizes)[-2:] == [x.numel()] * 2
    assert sorted(sizes)[-3] <= x.numel() // 8
    sizes.clear()
    with Watch():
        reference.fake_quantize_backward(x, *arguments)
    assert sizes.count(x.numel()) > 2, "the reference does, so this test would notice"
