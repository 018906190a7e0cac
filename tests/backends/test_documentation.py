"""The page about backends is that of the tables."""

from onnxqat.backends import schema
from tools import backend_table


def test_rows_are_those_of_the_tables() -> None:
    text = backend_table.PAGE.read_text(encoding="utf-8")
    assert backend_table.START in text
    assert backend_table.page(text) == text, "run tools/backend_table.py"
    for name in schema.names():
        assert text.count(f"\n| `{name}` | ") == 2


def test_keys_are_all_explained() -> None:
    text = backend_table.PAGE.read_text(encoding="utf-8")
    for kind in (schema.Backend, schema.TypeRow, schema.OpRow, schema.Check, schema.Fact, schema.InputOutput):
        for field in kind.__dataclass_fields__:
            key = {"schema_version": "schema", "inputs": "in", "outputs": "out", "first_last_observer": "first"}.get(
                field, field
            )
            assert f"`{key}" in text, f"{kind.__name__}.{field}"
