"""Imports point down only; heavy packages are imported where they are needed."""

import ast
import graphlib
from pathlib import Path

from tests.source_tree import imported, module_name, nodes, package_files, parse, run_at_import

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "_version",
        "errors",
        "types",
        "verdict",
        "shell",
        "counts",
        "notebook_progress",
        "discover",
        "displayed",
        "numerics",
        "lazy_names",
        "lazy_sympy",
        "former_names",
        "printing",
        "exits",
        "yaml_mappings",
    ),
    ("isolation",),
    ("graph",),
    ("extension", "promises"),
    ("ops",),
    ("data",),
    ("arithmetic",),
    ("integer_functions",),
    ("analysis",),
    ("backends",),
    ("placement",),
    ("passes",),
    ("subgraphs",),
    ("runtime",),
    ("pipeline",),
    ("calibration",),
    ("equalization",),
    ("metrics",),
    ("generation",),
    ("bridge",),
    ("insertion",),
    ("training",),
    ("validation",),
    ("linting",),
    ("from_torch",),
    ("deployment",),
    ("bit_allocation",),
    ("diagnosis",),
    ("compat",),
    ("autotune",),
    ("report",),
    ("recipes",),
    ("kinds",),
    ("extend",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MAY_IMPORT_TORCH = ("onnxqat.bridge", "onnxqat.training", "onnxqat.from_torch", "onnxqat.compat")


def layer(module: str) -> str | None:
    """First name below ``onnxqat``, or None for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == "onnxqat" and len(parts) > 1 else None


def test_every_module_has_a_layer() -> None:
    found = {layer(module_name(path)) for path in package_files()} - {None}
    assert found <= set(LEVEL), "give each new top-level module or folder its place in LAYERS"


def test_imports_point_down() -> None:
    upward = []
    for path in package_files():
        importer = module_name(path)
        if importer == "onnxqat":
            continue  # the lazy public names reach everything
        for node in nodes(path):
            for target in imported(node):
                name = layer(target)
                if name in LEVEL and LEVEL[name] > LEVEL[layer(importer) or ""]:
                    upward.append(f"{importer}:{getattr(node, 'lineno', 0)} imports {target}")
    assert upward == []


def test_imports_are_absolute() -> None:
    relative = [
        module_name(path)
        for path in package_files()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_tools_and_tests_are_not_imported() -> None:
    wrong = [
        f"{module_name(path)} imports {target}"
        for path in package_files()
        for node in nodes(path)
        for target in imported(node)
        if target.split(".")[0] in {"tools", "tests"}
    ]
    assert wrong == []


def test_torch_is_imported_at_the_top_of_bridge_and_training_only() -> None:
    wrong = []
    for path in package_files():
        name = module_name(path)
        if name.startswith(MAY_IMPORT_TORCH):
            continue
        for statement in run_at_import(parse(path).body):
            wrong += [f"{name} imports {target}" for target in imported(statement) if target.split(".")[0] == "torch"]
    assert wrong == []


def test_the_page_on_architecture_names_the_layers(repository: Path) -> None:
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Layers")[1].split("```")[1]
    stated = [tuple(name.strip() for name in layer.split(",")) for layer in block.split("→")]
    assert stated == list(LAYERS)


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and for type checkers count: what needs them cannot be read or moved alone."""
    modules = {module_name(path): path for path in package_files()}
    arrows: dict[str, set[str]] = {}
    for name, path in modules.items():
        if name == "onnxqat":
            continue  # the lazy public names reach everything, and nothing imports them
        found = {target for node in nodes(path) for target in imported(node)}
        named = {target if target in modules else target.rpartition(".")[0] for target in found}
        arrows[name] = (named & modules.keys()) - {name}
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError, which lists the modules
