"""The folder passes/ is installed as onnxqat.passes, and no package folder is forgotten."""

import importlib
import os
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def packages_on_disk(root: Path, name: str) -> set[str]:
    """Dotted names of the folders below `root` that have an ``__init__.py``; links are not followed."""
    found = set()
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [entry for entry in subfolders if not Path(folder, entry).is_symlink()]
        if "__init__.py" in files:
            found.add(".".join([name, *Path(folder).relative_to(root).parts]))
    return found


def test_every_package_folder_is_listed(repository: Path) -> None:
    listed = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    on_disk = packages_on_disk(repository / "onnxqat", "onnxqat")
    on_disk |= packages_on_disk(repository / "passes", "onnxqat.passes")
    assert len(listed) == len(set(listed))
    assert set(listed) == on_disk


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    """A folder without ``__init__.py`` would be missing from the wheel, and from the check above."""
    files = [*(repository / "onnxqat").rglob("*.py"), *(repository / "passes").rglob("*.py")]
    assert [str(f) for f in files if not (f.parent / "__init__.py").exists()] == []


def test_link_resolves_to_passes(repository: Path) -> None:
    link = repository / "onnxqat" / "passes"
    if (repository / "PKG-INFO").is_file():
        pytest.skip("a source distribution, whose archive leaves out links to folders")
    if link.is_file():  # git and archives write a link that they cannot make as a file with its target
        pytest.skip("a checkout without symbolic links; the package-dir map of pyproject.toml does the work")
    assert link.is_symlink()
    assert not Path(os.readlink(link)).is_absolute()
    assert link.resolve() == repository / "passes"


def test_passes_is_no_top_level_package(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy of every class would make isinstance lie."""
    monkeypatch.syspath_prepend(str(repository))
    with pytest.raises(ImportError, match=r"import onnxqat\.passes"):
        importlib.import_module("passes")


def test_data_files_match_the_package_data(repository: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(settings["package-data"]) == {"onnxqat"}
    root = repository / "onnxqat"
    shipped = {path for pattern in settings["package-data"]["onnxqat"] for path in root.glob(pattern)}
    data = {path for path in root.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert data <= shipped
