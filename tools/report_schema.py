"""Write docs/report.schema.json, the JSON schema of `onnxqat report`."""

from __future__ import annotations

from pathlib import Path

from onnxqat.report.model_report import schema

TARGET = Path(__file__).parent.parent / "docs" / "report.schema.json"

if __name__ == "__main__":
    TARGET.write_text(schema.schema_text(), encoding="utf-8")
