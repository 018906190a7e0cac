"""The examples of the documentation run, and name only options that exist.

A fenced block is run where it is tagged ``python`` (a first line ``# name.py`` makes it a file instead) or ``console``
(its lines that start with ``$ onnxqat``); the blocks of a page run in order, in one folder that holds a model, images
and data. A comment ``<!-- not run: reason -->`` on the line before a block takes it out.
"""

import contextlib
import io
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml

import onnxqat
from onnxqat.cli import main
from tests import once
from tests.source_tree import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("docs/**/*.md"), REPOSITORY / "README.md"])
BLOCK = re.compile(
    r"(?P<skip><!-- not run: (?P<reason>.+?) -->\n)?^```(?P<tag>python|console)\n(?P<body>.*?)^```$", re.M | re.S
)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Tag and body of each block that is to be run."""
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if not found["skip"]:
            yield found["tag"], found["body"]


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


WITH_EXAMPLES = [page for page in PAGES if any(blocks(page))]


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's net after some epochs, some digits as images and as arrays, and the files that the commands make."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from onnxqat.insertion.insert import insert_qdq
    from onnxqat.training import digits

    torch.set_num_threads(1)

    def make(folder: Path) -> None:
        images, labels = digits.load()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(digits, "EPOCHS", 6)
            digits.export(digits.train(images["train"], labels["train"]), folder / "model.onnx")
        digits.write_samples(folder, images["test"][:64], labels["test"][:64], 64)
        numpy.savez(folder / "test.npz", image=images["test"][96:160], labels=labels["test"][96:160])
        insert_qdq(folder / "model.onnx", data={"image": images["test"][:64]})
        shutil.copy(folder / "model.qdq.onnx", folder / "tuned.qdq.onnx")

    return once.folder(tmp_path_factory, "digits_of_the_pages", make)


def run_console(body: str) -> None:
    commands = [line[2:] for line in body.splitlines() if line.startswith("$ ")]
    assert commands, "a console block without a command"
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "onnxqat", f"{command}: only onnxqat is run"
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            status = main.run(arguments)
        assert status == 0, f"{command}\n{said.getvalue()}"


def run_python(body: str, namespace: dict[str, Any], where: str) -> None:
    as_file = re.match(r"# (\w+\.py)\n", body)
    if as_file:
        Path(as_file[1]).write_text(body, encoding="utf-8")
        return
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(body, where, "exec"), namespace)


def close_arrays(namespace: dict[str, Any]) -> None:
    """Close what ``numpy.load`` opened in the examples of a page; as in a script, nothing else does.

    Functions of the page hold its names and these hold the functions, so that the files would be closed in some later
    test, with the warning that they were not.
    """
    for value in namespace.values():
        if isinstance(value, numpy.lib.npyio.NpzFile):
            value.close()


@pytest.mark.filterwarnings("ignore:training did not help")  # a few steps on a few digits; the page says what then
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name)
def test_examples_run(page: Path, digits_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    shutil.copytree(digits_folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))  # a file that a page wrote is imported by a later block of it
    namespace: dict[str, Any] = {"__name__": "example"}
    for tag, body in blocks(page):
        if tag == "console":
            run_console(body)
        else:
            run_python(body, namespace, name(page))
    close_arrays(namespace)


@pytest.mark.filterwarnings("default")  # those of the packages of the kernel are not ours
def test_a_notebook_runs_in_a_kernel(digits_folder: Path, tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path / "work"
    shutil.copytree(digits_folder, folder)
    notebook = nbformat.read(REPOSITORY / "docs" / "notebooks" / "quantize_and_train.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [[output.get("data", {}) for output in cell.outputs] for cell in notebook.cells if "outputs" in cell]
    pages = [data["text/html"] for outputs in shown for data in outputs if "<iframe" in data.get("text/html", "")]
    assert len(pages) == 2  # of validate, and the interactive report
    bars = [data["text/plain"] for outputs in shown for data in outputs if "<progress" in data.get("text/html", "")]
    assert "train: 20 of 20" in bars
    assert len(bars) == 4  # one for each function that works for a while


def test_pages_with_examples() -> None:
    commands = {f"docs/commands/{p.name}" for p in (REPOSITORY / "docs" / "commands").glob("*.md")}
    assert set(map(name, WITH_EXAMPLES)) >= (commands - {"docs/commands/demo.md", "docs/commands/generate.md"}) | {
        "README.md",
        "docs/calibration.md",
        "docs/training.md",
    }


def test_every_public_name_has_an_example() -> None:
    code = [body for page in PAGES for tag, body in blocks(page) if tag == "python"]
    used = {n for n in onnxqat.__all__ for body in code if re.search(rf"\bonnxqat\.{n}\b|import .*\b{n}\b", body)}
    assert set(onnxqat.__all__) - used == set()


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "commands"], ids=name)
def test_options_of_a_command(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main.run([page.stem, "--help"]) == 0
    exist = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", capsys.readouterr().out)) - {"--help"}
    text = page.read_text(encoding="utf-8")
    table = {
        option
        for row in re.findall(r"^\| `-.*$", text, re.M)
        for option in re.findall(r"`(--?[a-z][\w-]*)", row.split(" | ")[0])
    }
    assert table <= exist
    if table:
        short = {"-o": "--output", "-c": "--calibration", "--lr": "--learning-rate"}
        documented = table | {long for brief, long in short.items() if brief in table}
        assert {o for o in exist if o.startswith("--")} - documented - {"--lr", "--output", "--verbose"} == set()


def test_every_page_is_in_the_navigation() -> None:
    def listed(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from listed(inner)

    navigation = set(listed(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    docs = REPOSITORY / "docs"
    assert navigation == {str(p.relative_to(docs)) for p in docs.glob("**/*.md")}


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link, as the site names them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_anchors_of_links() -> None:
    links = {
        (page, target, anchor)
        for page in PAGES
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", page.read_text(encoding="utf-8"))
    }
    assert links
    missing = [
        f"{name(page)}: {target}#{anchor}"
        for page, target, anchor in links
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


def test_links_between_pages() -> None:
    targets = {
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    }
    assert targets
    assert [f"{name(page)}: {target}" for page, target in targets if not (page.parent / target).is_file()] == []
