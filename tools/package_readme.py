"""Write PACKAGE.md: the README as wheel and sdist show it, without links that only work in the repository.

python tools/package_readme.py            # writes the file
python tools/package_readme.py --check    # exit status 1 where it is stale

No address of the repository is known, so a link to a file becomes its path, which the source distribution has.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "PACKAGE.md"
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"## Five minutes\n.*?(?=To install into an environment of your own)", re.S)
INSTALL = """## Install

"""


def text() -> str:
    """The README with paths in place of links, and without the commands of the repository's Makefile."""
    readme = MAKE.sub(INSTALL, (ROOT / "README.md").read_text(encoding="utf-8"))
    readme = readme.replace("pip install -c constraints.txt '.[train]'", "pip install 'onnxqat[train]'")
    readme = readme.replace(
        "`make docs` builds the site from [docs/](docs/index.md).", "In `docs/` of the source distribution."
    )
    return LINK.sub(lambda found: f"{found[1]} (`{found[2]}`)" if found[1] != found[2] else f"`{found[1]}`", readme)


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        return int(not FILE.is_file() or FILE.read_text(encoding="utf-8") != text())
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
