"""Imports between rooms (the folders and files of a package), those for type checkers included: none upward, no circle.

`python -m pytest -s tests/test_layers.py` prints the graph. The order is that of import-linter's contracts in
pyproject.toml.
"""

import ast
import subprocess
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("testbed", "transports", "switch_agg")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
ORDERS = {each["containers"][0]: each["layers"] for each in CONTRACTS if "containers" in each}


def sources(package: str) -> dict[str, Path]:
    """Path of each module, by its dotted name."""
    argv = ["git", "ls-files", f"{package}/*.py"]
    names = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): ROOT / name for name in names}


def imports(modules: dict[str, Path]) -> list[tuple[str, str]]:
    """(importer, imported module) wherever one of these imports something, at its top or inside."""
    found = []
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None, f"{module}: write the whole name of what is imported"
                found += [(module, f"{node.module}.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.Import):
                found += [(module, alias.name) for alias in node.names]
    return found


def arrows(package: str) -> Counter[tuple[str, str]]:
    """How often each room imports from each other."""
    found: Counter[tuple[str, str]] = Counter()
    for importer, imported in imports(sources(package)):
        if importer == package:
            continue  # it offers what is below it to others, and nobody below takes that from it
        if imported.startswith(f"{package}."):
            one, other = ([*module.split("."), "__init__"][1] for module in (importer, imported))
            found[one, other] += one != other
    return +found


@pytest.mark.parametrize("package", ORDERS)
def test_no_room_imports_one_above_it_or_beside_it(package: str) -> None:
    levels = {room.strip(): number for number, layer in enumerate(ORDERS[package]) for room in layer.split("|")}
    found = arrows(package)
    for (importer, imported), count in sorted(found.items(), key=lambda each: (levels[each[0][0]], levels[each[0][1]])):
        print(f"{package}: {importer} -> {imported} ({count})")  # noqa: T201
    assert [arrow for arrow in found if levels[arrow[0]] >= levels[arrow[1]]] == []


@pytest.mark.parametrize("package", ORDERS)
def test_no_rooms_import_each_other_in_a_circle(package: str) -> None:
    below: dict[str, set[str]] = {}
    for importer, imported in arrows(package):
        below.setdefault(importer, set()).add(imported)
    TopologicalSorter(below).prepare()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_module_is_imported_from_outside_its_package(package: str) -> None:
    wrong = []
    modules = {name: path for each in PACKAGES for name, path in sources(each).items()}
    for importer, imported in imports(sources(package)):
        parts = imported.split(".")
        for number, part in enumerate(parts):
            private = part.startswith("_") and not part.startswith("__") and ".".join(parts[: number + 1]) in modules
            if private and not f"{importer}.".startswith(".".join(parts[:number]) + "."):
                wrong.append(f"{importer} imports {imported}")
    assert wrong == []
