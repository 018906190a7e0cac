"""Write docs/integer_operators.md: integer functions with their bounds, what was measured, and their widths.

python tools/integer_operators.py            # writes the page
python tools/integer_operators.py --check    # exit status 1 where the page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from onnxqat.integer_functions import library  # noqa: E402
from tests.integer_functions import cases  # noqa: E402

PAGE = REPOSITORY / "docs" / "integer_operators.md"
MARKS = ("<!-- bounds: written by tools/integer_operators.py -->\n", "<!-- end of bounds -->\n")
ERRORS = """| Operator | Codes | Bound | Largest error | Mean error | Bits of the widest stage |
|---|---|---|---|---|---|
"""


def table() -> str:
    """Bounds and errors of each operator at 8 and at 16 bits."""
    lines = []
    for operator in library.kinds():
        for storage in sorted({x for x, _ in cases.TYPES if x.startswith("u")}, key=len):
            case = cases.case(operator, storage, storage)
            bound, errors = case.function.error_bound(case.x, case.y, case.call), case.errors
            widest = max(case.function.stages(), key=lambda stage: stage.bits)
            figures = (f"{number:.1e}" for number in (bound, errors.max(), errors.mean()))
            cells = (f"`{operator}`", storage, *figures, f"{widest.bits} ({widest.name})")
            lines.append("| " + " | ".join(cells) + " |")
    return ERRORS + "\n".join(lines) + "\n"


def page() -> str:
    """The page as it should be: its text, with a new table."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}{table()}{MARKS[1]}{after}"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    stale = PAGE.read_text(encoding="utf-8") != page()
    if parser.parse_args().check:
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
