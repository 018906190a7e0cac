"""Hook of MkDocs: the release that the pages are about, in the footer of each."""

import re
from pathlib import Path
from typing import Any

VERSION = Path(__file__).resolve().parents[1] / "onnxqat" / "_version.py"


def on_config(config: Any) -> Any:
    found = re.search(r'__version__ = "([^"]+)"', VERSION.read_text(encoding="utf-8"))
    assert found, f"{VERSION} states no version"
    config.copyright = f"onnxqat {found[1]}, Apache-2.0"
    return config
