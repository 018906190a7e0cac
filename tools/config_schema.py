"""Write docs/insert_qdq_config.schema.json: the JSON schema of configuration files of insert-qdq.

python tools/config_schema.py
"""

from __future__ import annotations

import json
from pathlib import Path

from onnxqat.placement import config_file

FILE = Path(__file__).resolve().parents[1] / "docs" / "insert_qdq_config.schema.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(config_file.json_schema(), indent=2) + "\n", encoding="utf-8")
