"""Write docs/operators.md: which operators the bridge implements, and what is known of each.

python tools/operator_table.py            # writes the page, prints what onnx has and the bridge has not
python tools/operator_table.py --check    # exit status 1 where the page is stale
"""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import torch

from onnxqat.backends import schema
from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import QatError
from onnxqat.ops import operators
from onnxqat.ops.definition import OpDef

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "operators.md"
TESTS = sorted((REPOSITORY / "tests" / "bridge").rglob("test_*.py"))
OLDEST_OPSET = 7
CASES_FOR_A_GRADIENT = 8

INTRODUCTION = """# Operators

Written by `tools/operator_table.py` with onnx {version}; a test fails when it is stale.

- **versions**: schema versions that the import implements. A number of operators takes older ones too, where they \
read the same.
- **tested**: cases of ONNX's own node tests that contain the operator, and files of `tests/bridge` that name it.
- **quantized by**: backend tables that place pairs around the operator, let a grid pass through it, or fuse it. The \
others stay float.
- **gradient**: of one of the first {cases} node cases with float inputs, or with any float output. *yes*: a float \
input gets a finite gradient that is not all 0; *zero*: only zeros, as of steps; *none*: no path from a float input to \
a float output; -: nothing to differentiate in the cases. Where an operator has no node case, *tests* says that a test \
file which names it computes gradients.

Where a function is finite but infinitely steep, at the end of its domain (Sqrt at 0, Acosh at 1, Asin and Acos at -1 \
and 1, Pow at 0 with a fractional exponent, norms of zero vectors), the gradient is 0. Outside the domain the value is \
NaN, as ONNX says, and the gradient 0: one element there does not spoil the weights. At a pole, where the value is \
infinite, so is the gradient.

Of ONNX's own 1,305 node cases without strings, images, random numbers, sequences and preview operators, all pass \
within the suite's tolerances.

A constant weight of MatMulNBits is a float master with a quantizer and is written back into its bytes, the same \
bytes where nothing was trained. It stays packed integers, whose scales train, where zero points are floats, a scale \
is 0 or something else reads the constant too. The tables of GatherBlockQuantized keep their codes, as rows are picked \
from these, and so do float4 weights of NVFP4: what they are multiplied by is quantized in turn (float8 codes with a \
second scale), and that quantizer is the one that trains.
"""

# Domain or operator: why it is not implemented.
REASONS = {
    "ai.onnx.ml": "trees, tables and strings of classical models, without anything to train by gradients",
    "ImageDecoder": "decodes files; belongs to loading data",
    "RegexFullMatch": "strings, which torch has not",
    "StringConcat": "strings, which torch has not",
    "StringNormalizer": "strings, which torch has not",
    "StringSplit": "strings, which torch has not",
    "Gradient": "asks for the gradient of a part of the graph; the imported module has it from autograd",
}


@functools.cache
def schema_versions() -> dict[tuple[str, str], list[int]]:
    """Versions of each operator of onnx, oldest first."""
    found: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for one in onnx.defs.get_all_schemas_with_history():
        found[one.domain, one.name].append(one.since_version)
    return {key: sorted(versions) for key, versions in sorted(found.items())}


def missing() -> dict[tuple[str, str], list[int]]:
    """Operators of onnx without a lowering."""
    return {key: versions for key, versions in schema_versions().items() if key not in operators.table()}


def uncovered() -> dict[tuple[str, str], list[int]]:
    """Versions of the operators that are implemented, in force at opset 7 or later, which are not covered."""
    found = {}
    for key, versions in schema_versions().items():
        row = operators.table().get(key)
        if row is None:
            continue
        oldest = max((v for v in versions if v <= OLDEST_OPSET), default=versions[0])
        open_ = [v for v in versions if v >= oldest and not row.since <= v <= row.reviewed]
        if open_:
            found[key] = open_
    return found


@functools.cache
def node_cases() -> dict[tuple[str, str], list[Any]]:
    """ONNX's node tests by the operators in them; those that write an operator out as a function count for none."""
    from onnx.backend.test.case.node import collect_testcases

    found: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if "_expanded" in case.name:
                continue
            for key in sorted({(node.domain, node.op_type) for node in case.model.graph.node}):
                found[key].append(case)
    return found


@functools.cache
def test_files() -> dict[Path, str]:
    """Text of the tests of the bridge."""
    return {path: path.read_text(encoding="utf-8") for path in TESTS}


def naming(name: str) -> list[Path]:
    """Test files that name an operator, in quotes or in ONNX's text form."""
    return [path for path, text in test_files().items() if re.search(rf'"{name}"|\b{name} ?[(<]', text)]


def tested(row: OpDef) -> str:
    """Evidence that the operator is tested."""
    count = len(node_cases().get((row.domain, row.name), ()))
    parts = [f"{count} node case{'s' * (count != 1)}"] if count else []
    return ", ".join([*parts, *(path.stem.removeprefix("test_") for path in naming(row.name))]) or "no"


@functools.cache
def quantizers() -> dict[str, list[str]]:
    """Backend tables by the operators that they treat."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name in schema.names():
        table = schema.load(name)
        chained = {op for chain in table.fused for step in chain.chain for op in step}
        for op in sorted({o.partition("/")[0] for o in {*table.ops, *table.passthrough, *chained}}):
            found[op].append(name)
    return found


def _slope(case: Any) -> str:
    """Gradient of the float outputs of a case with respect to its float inputs, or "" where there are none."""
    inputs = [np.asarray(array) for array in case.data_sets[0][0] if not isinstance(array, (list, type(None)))]
    if len(inputs) != len(case.data_sets[0][0]) or any(array.dtype == object for array in inputs):
        return ""
    given = [values.tensor(array, ir.DataType.from_numpy(array.dtype)) for array in inputs]
    floats = [g.requires_grad_() for g in given if g.is_floating_point() and g.element_size() > 1]
    if not floats:
        return ""
    result = to_torch(case.model)(*given)
    outputs = [r for r in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(r)]
    reached = [r for r in outputs if r.requires_grad]
    if not reached:
        return "none"
    sum(r.square().sum() for r in reached).backward()
    gradients = [f.grad for f in floats if f.grad is not None]
    if not all(torch.isfinite(g).all() for g in gradients):
        return "infinite"
    return "yes" if any(g.any() for g in gradients) else "zero"


def gradient(row: OpDef) -> str:
    """The best that is found among the first node cases; else whether tests compute gradients."""
    found = set()
    for case in node_cases().get((row.domain, row.name), ())[:CASES_FOR_A_GRADIENT]:
        try:
            found.add(_slope(case))
        except (QatError, TypeError, NotImplementedError, RuntimeError):
            continue
        if "yes" in found:
            break
    for answer in ("yes", "zero", "infinite"):
        if answer in found:
            return answer
    if "none" in found or (row.domain, row.name) in node_cases():
        return "none" if "none" in found else "-"
    return "tests" if any(re.search(r"gradient|backward", test_files()[path]) for path in naming(row.name)) else "-"


def line(row: OpDef) -> str:
    """One row of the page."""
    known = schema_versions().get((row.domain, row.name), [])
    versions = [str(v) for v in known if row.since <= v <= row.reviewed] or [str(row.since)]
    backends = ", ".join(quantizers().get(row.name, ())) if not row.domain else ""
    return f"| {row.name} | {', '.join(versions)} | {tested(row)} | {backends or '-'} | {gradient(row)} |"


def page() -> str:
    """The whole page."""
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # shapes that cannot be inferred are no news here
    torch.manual_seed(0)
    torch.set_num_threads(1)
    parts = [INTRODUCTION.format(version=onnx.__version__, cases=CASES_FOR_A_GRADIENT)]
    rows = sorted(operators.table().values(), key=lambda row: (row.domain, row.name))
    for domain in sorted({row.domain for row in rows}):
        chosen = [row for row in rows if row.domain == domain]
        parts.append(f"## {domain or 'ai.onnx'}\n")
        parts.append("| operator | versions | tested | quantized by | gradient |\n|---|---|---|---|---|")
        parts.append("\n".join(line(row) for row in chosen) + "\n")
    parts.append("## Not implemented\n\nRefused by name.\n\n| operator | reason |\n|---|---|")
    parts.append("\n".join(refused()))
    return "\n".join(parts) + "\n"


def refused() -> list[str]:
    """Rows of what is missing, one for each domain that is missing as a whole."""
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for domain, name in missing():
        label = f"{domain or 'ai.onnx'}.{name}"
        by_reason[REASONS.get(name) or REASONS.get(domain) or "not written yet"].append(label)
    return [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()]


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the page is stale")
    check = parser.parse_args().check
    for (domain, name), versions in missing().items():
        print(f"no lowering: {domain or 'ai.onnx'}.{name} {versions}")
    for (domain, name), versions in uncovered().items():
        print(f"not covered: {domain or 'ai.onnx'}.{name} {versions}")
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
    if stale:
        print(f"{PAGE.name} is stale: run python tools/operator_table.py", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
