"""What a release holds beside the code agrees with it: generated pages, versions, the workflow, the package's page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import onnxqat
from tests.source_tree import REPOSITORY


@pytest.mark.parametrize("tool", ["api_reference", "package_readme"])
def test_generated_pages_are_those_of_the_sources(tool: str) -> None:
    done = subprocess.run([sys.executable, str(REPOSITORY / "tools" / f"{tool}.py"), "--check"], check=False)
    assert done.returncode == 0, f"run python tools/{tool}.py"


HIDDEN = {".ci", ".dockerignore", ".github", ".pre-commit-config.yaml"}
"""Files and folders that setuptools takes into a source distribution by name alone."""


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    listed = set(re.findall(r"^### (\w+)$", read("docs/api.md"), re.M))
    assert {name for name in onnxqat.__all__ if name != "__version__"} - listed == set()


def test_the_page_of_the_package_has_no_link_into_the_repository() -> None:
    (name,) = re.findall(r'^readme = "([^"]+)"', read("pyproject.toml"), re.M)
    assert re.findall(r"\]\((?!https?:)[^)]*\)", read(name)) == []


def test_the_citation_names_the_release_and_the_licence() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    assert cited["version"] == onnxqat.__version__
    assert f'license = "{cited["license"]}"' in read("pyproject.toml")


def test_the_workflow_runs_what_continuous_integration_runs() -> None:
    (job,) = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    lowest = re.findall(r'requires-python = ">=([\d.]+)"', read("pyproject.toml"))
    assert job["strategy"]["matrix"]["python"][0] == lowest[0]


def test_the_source_distribution_has_what_its_tests_and_its_container_read() -> None:
    kept = [line.split()[1:] for line in read("MANIFEST.in").splitlines() if line.split()[0] in ("include", "graft")]
    names = {name for line in kept for name in line}
    hidden = {path.name for path in REPOSITORY.glob(".*") if path.name in HIDDEN}
    assert hidden == HIDDEN
    assert HIDDEN - names == set()


def test_hooks_and_container_name_what_exists() -> None:
    (hooks,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    development = read("pyproject.toml").partition("\ndev = [\n")[2].partition("\n]")[0]
    tools = {Path(hook["entry"].split()[0]).name for hook in hooks["hooks"]}
    assert {tool for tool in tools if f'"{tool}' not in development} == set()
    assert "'.[all]'" in read("Containerfile")
    assert re.search(r"^torch==", read("constraints.txt"), re.M)
