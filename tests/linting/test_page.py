"""docs/lint.md says what the rules say."""

import subprocess
import sys

from tests.source_tree import REPOSITORY


def test_the_page_of_rules_is_that_of_the_tool() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "lint_rules.py"), "--check"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
