"""Write docs/lint.md: every rule of the lint, with its reason, remedy and source.

python tools/lint_rules.py            # writes the page
python tools/lint_rules.py --check    # exit status 1 where the page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onnxqat.linting.lint import all_rules
from onnxqat.linting.rule import Rule

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lint.md"

INTRODUCTION = """# Lint rules

Written by `tools/lint_rules.py`; a test fails when it is stale. [`onnxqat lint`](commands/lint.md) applies them.

*error*: wrong numbers, or the file is refused. *warning*: costs accuracy or speed. *note*: worth knowing. A place can be milder than its rule: one unsigned zero point for all weights is a note, one a channel a warning. **fix** marks what `--fix` mends.
"""

GENERAL = """
## Any QDQ file

Where a backend is given, its table decides about the rules marked with an asterisk: targets differ in them.
"""

TARGET = """
## Targets

With `--backend`. What is right is read from the backend's table; no name of a backend is in the rules.
"""

OWN_RULES = """
## Rules of your own

A Python file with a tuple `RULES` adds its rules to these: `--rules FILE`, or an entry point of the group `onnxqat.rules`. [A lint rule](extending.md#a-lint-rule) has an example.
"""

HEAD = "| Code | Severity | Defect | What comes of it | Remedy | Source |\n|---|---|---|---|---|---|\n"


def row(rule: Rule) -> str:
    """The rule as a row of a Markdown table."""
    marks = (" **fix**" if rule.fix is not None else "") + (" \\*" if rule.table_decides else "")
    cells = (f"`{rule.code}`{marks}", rule.severity, rule.defect, rule.reason, rule.remedy, rule.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def page() -> str:
    """The whole page."""
    general, target = ("".join(row(rule) for rule in all_rules() if rule.target is kind) for kind in (False, True))
    return INTRODUCTION + GENERAL + "\n" + HEAD + general + TARGET + "\n" + HEAD + target + OWN_RULES


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where the page is stale")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
    if stale:
        print(f"{PAGE.name} is stale: run python tools/lint_rules.py", file=sys.stderr)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
