"""Write docs/torch_operators.md: what becomes of each operator of the torch operator table.

python tools/torch_operators.py            # writes the page
python tools/torch_operators.py --check    # exit status 1 where the page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.from_torch import operator_table as table  # noqa: E402

PAGE = REPOSITORY / "docs" / "torch_operators.md"
INTRODUCTION = """# Operators of torch

Written by `tools/torch_operators.py`; a test fails when it is stale.

The 62 operators that Knight's manual lists, each exported by `onnxqat.export` behind a layer that learns. Every row is a test: the file is quantized with both tables, imported, trained for a step and written back. With its quantizers off it equals the file without pairs to float rounding, with them on it gives onnxruntime's values but for those next to a rounding tie. torch's newer exporter writes the same operators, some under other names (`Gemm` for `MatMul` and `Add`); a test takes the rows through it too.

Class, what the operator is by its nature: **W** has weights · **A** computes, input and output are quantized where there is an integer kernel · **P** moves data, the output lies on the input's grid · **F** stays float · **I** integers come out. The last two columns say what the table of the backend does, for the row standing alone in front of a graph output: behind *float* are the operators that no pair touches. Arithmetic on shapes is left out.

| # | torch | ONNX | class | onnxruntime-cpu | tsqat |
|---|---|---|---|---|---|
"""
RECURRENT = """
**Recurrent layers.** Compilers in these tables have no integer kernels for RNN, LSTM and GRU, so they stay float there. The table `academic` quantizes their weights W and R per row of a gate, and they train like any other. For another backend, add those pairs to its file, in a second run:

<!-- not run: there is no such model in the tests of the documentation; test_operator_table.py runs it -->
```python
weights = Overrides(include=("/lstm/*",), weight_bits=8)  # onnxqat.placement.table_overrides
onnxqat.insert_qdq("model.qdq.onnx", "academic", data=data, keep=True, overrides=weights)
```

The step from one hidden state to the next lies inside the operator, where no pair can be: hidden states are never quantized.
"""


def page() -> str:
    """The page as it should be."""
    lines = []
    for number, rows in table.TABLE.items():
        for row in rows:
            title = f"{number:02} {row.title}"
            backends = [table.treatment(title, backend) for backend in ("onnxruntime-cpu", "tsqat")]
            cells = [
                str(number),
                f"`{row.title}`",
                table.told_operators(title),
                row.kind,
                *backends,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return INTRODUCTION + "\n".join(lines) + "\n" + RECURRENT


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page()
    if parser.parse_args().check:
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
