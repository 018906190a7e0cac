"""Tables of other packages, and targets that can have none."""

from pathlib import Path

import pytest

from onnxqat.backends import plugins, schema, unsupported_targets
from onnxqat.errors import BackendError

TABLE = "schema: 1\nbackend: my-chip\nextends: onnxruntime-cpu\nio: {outputs: float}\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a distribution that has three entry points."""
    package = tmp_path / "vendor_of_chips"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nOTHER = Path(__file__).parent / 'other.yaml'\n")
    (package / "my_chip.yaml").write_text(TABLE)
    (package / "other.yaml").write_text(TABLE.replace("my-chip", "other"))
    info = tmp_path / "vendor_of_chips-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-of-chips\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{plugins.GROUP}]\nmy-chip = vendor_of_chips\nother = vendor_of_chips:OTHER\n"
        "gone = vendor_of_chips\nbroken = vendor_of_nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_tables_by_entry_point(installed: Path) -> None:
    assert plugins.names() == ["broken", "gone", "my-chip", "other"]
    assert schema.load("my_chip").io.outputs == "float"
    assert schema.load("other").backend == "other"


@pytest.mark.parametrize(("name", "says"), [("gone", "there is no file"), ("broken", "ModuleNotFoundError")])
def test_entry_points_that_lead_nowhere(name: str, says: str, installed: Path) -> None:
    with pytest.raises(BackendError, match=says) as caught:
        schema.load(name)
    assert caught.value.code == "backend-table"
    assert name in caught.value.message


def test_a_table_extends_one_of_an_entry_point(installed: Path) -> None:
    (installed / "mine.yaml").write_text("backend: mine\nextends: my-chip\n")
    assert schema.load(str(installed / "mine.yaml")).io.outputs == "float"


@pytest.mark.parametrize("name", list(unsupported_targets.REFUSED))
def test_refused_targets(name: str) -> None:
    assert name not in schema.names()
    with pytest.raises(BackendError, match="can have no table") as caught:
        schema.load(name)
    assert caught.value.code == "backend-unknown"
    assert unsupported_targets.REFUSED[name] in caught.value.message
