"""The CUDA kernels without a GPU: their bits in Triton's interpreter, their code for a GPU, and how they are traced."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxqat.bridge.kernels import fastest
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.types import QParams, QType
from tests import once
from tests.bridge.kernel_cases import RAISED, cases
from tests.torch_releases import since_2_7

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
# Dynamo instantiates the class itself when it traces an autograd function.
dynamo = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning"
)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    def make(folder: Path) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.bridge.interpreted_kernels"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (folder / "found.json").write_text(done.stdout.splitlines()[-1], encoding="utf-8")

    folder = once.folder(tmp_path_factory, "interpreted_kernels", make)
    found: dict[str, str] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", [*(case.name for case in cases()), *map(str, RAISED)])
def test_interpreted_kernels_give_the_bits_of_the_reference(name: str, interpreted: dict[str, str]) -> None:
    assert not interpreted[name], interpreted[name]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Triton's target where there is no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    if not hasattr(triton.runtime.driver, "_active"):
        pytest.skip("Triton before 3.3 compiles in another way")
    target = GPUTarget("cuda", 90, 32)

    class Driver:
        def get_current_target(self) -> Any:
            return target

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    return target


@pytest.mark.parametrize(("wide", "dtype"), [(False, "fp32"), (True, "fp32"), (False, "bf16")])
def test_compiled_forward_divides_exactly_and_moves_whole_vectors(wide: bool, dtype: str, hopper: Any) -> None:
    import triton
    from triton.compiler import ASTSource

    from onnxqat.bridge.kernels import triton_kernels

    pointers = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "scale_ptr": "*fp32", "zero_point_ptr": "*i32"}
    constants = {"QUANT_MIN": -8, "QUANT_MAX": 7, "PER_CHANNEL": False, "WIDE_GRID": wide, "RELU": wide}
    constants |= {"RAISED_TO": 8, "BLOCK": 2048}
    signature = {
        **pointers,
        "count": "i32",
        "channels": "i32",
        "stride": "i32",
        **dict.fromkeys(constants, "constexpr"),
    }
    aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 4)}
    source = ASTSource(triton_kernels.forward, signature=signature, constexprs=constants, attrs=aligned)
    code = triton.compile(source, target=hopper).asm["ptx"]
    assert "div.rn.f32" in code
    assert not any(word in code for word in ("approx", ".ftz", "div.full", "fma."))
    assert "ld.global.v4.b32" in code
    assert "st.global.v4.b32" in code


def quantizer() -> FakeQuantize:
    grid = QType.of(8, signed=False)
    values = QParams(np.asarray(0.05, np.float32), np.asarray(3, np.int64), grid, scale_bits=8)
    return FakeQuantize(values, tensor="x", role="activation", symmetric=False)


@dynamo
def test_a_compiler_sees_one_kernel_each_way(hopper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the graph cannot run, but it is the one that inductor would get, in one piece."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    monkeypatch.setattr(fastest, "fuses", lambda x: True)
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        (results,) = graph.graph.output_node().args
        values = [None if node is None else node.meta["val"] for node in cast(Any, results)]
        return make_boxed_func(lambda *_: [None if v is None else torch.zeros(v.shape, dtype=v.dtype) for v in values])

    torch._dynamo.reset()
    model = nn.Sequential(nn.ReLU(), quantizer(), nn.ReLU())
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    torch.compile(model, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))(x).sum().backward()
    torch._dynamo.reset()
    assert len(graphs) == 2
    for graph in graphs:
        kernels = [n for n in graph.graph.nodes if "triton_kernel_wrapper" in str(n.target)]
        assert len(kernels) == 1
        apart = ("aten.div", "aten.clamp", "aten.frexp")  # of values and of the scale
        assert not any(word in str(n.target) for n in graph.graph.nodes for word in apart)
        written = {"y_ptr", "grad_x_ptr", "sums_ptr"}
        assert set(kernels[0].kwargs["tensors_to_clone"]) <= written, "what is read is not copied"


class Asks(nn.Module):
    """Says in its graph what :mod:`fastest` thinks of the tracer."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if fastest.exporting() else x - 1


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_no_kernel(strict: bool) -> None:
    program = torch.export.export(Asks(), (torch.zeros(2),), strict=strict)
    assert float(program.module()(torch.zeros(2))[0]) == 1.0


@since_2_7
def test_compiled_programs_may_hold_kernels() -> None:
    assert float(torch.compile(Asks(), fullgraph=True, backend="eager")(torch.zeros(2))[0]) == -1.0
    assert not fastest.exporting()
