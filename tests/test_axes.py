"""What a value on an axis means is said by the value: nobody outside its folder asks which one it is."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from switch_agg.dataplanes.base import data_planes
from tests.axes import AXES, ROOT

PACKAGES: Final = ("testbed", "transports", "switch_agg")
FOLDERS: Final = {*(axis.package.replace(".", "/") for axis in AXES), "switch_agg/dataplanes"}
KINDS: Final = {*(kind for axis in AXES for kind in axis.kinds()), *data_planes()}


def is_value(path: Path) -> bool:
    return str(path.parent) in FOLDERS and not path.name.startswith("_") and path.stem != "base"


def imported(tree: ast.Module) -> dict[str, Path]:
    """What is imported by name, and the file that it comes from."""
    return {
        alias.asname or alias.name: Path(f"{node.module.replace('.', '/')}.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def requested(path: Path, text: str) -> Iterator[str]:
    """Each place where the file asks which value of an axis it has before it."""
    tree = ast.parse(text)
    values = {name for name, source in imported(tree).items() if is_value(source) and source.parent != path.parent}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            if named & values:
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            kind = any(
                isinstance(side, ast.Attribute) and side.attr in ("kind", "dataplane", "backend") for side in sides
            )
            words = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
            if kind and words & KINDS:
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Match) and isinstance(node.subject, ast.Attribute) and node.subject.attr == "kind":
            yield f"{path}:{node.lineno}: match {ast.unparse(node.subject)}"


def sources() -> list[Path]:
    return [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_nobody_asks_which_value_it_is() -> None:
    assert [line for path in sources() for line in requested(path, (ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "from transports.collectives.in_network import InNetwork\nisinstance(x, InNetwork)",
        "from transports.channels.mptcp import Mptcp as M\nisinstance(x, (int, M))",
        "from testbed.experiment.delay_backends.tap import TapStage\nisinstance(x.stage, TapStage)",
        "x.fusion.kind == 'priority'",
        "if 'none' != x.compression.kind: pass",
        "x.kind in ('merged', 'time')",
        "match x.fusion.kind:\n    case 'size': pass",
        "collective.dataplane == 'ebpf'",
    ],
)
def test_the_question_is_recognised(text: str) -> None:
    assert list(requested(Path("testbed/plan/plan.py"), text))


def test_other_questions_are_not_taken_for_it() -> None:
    text = "from testbed.plan.plan import Plan\nisinstance(x, Plan)\nstep.kind == 'reduce'\nstandard.kind == other.kind"
    assert list(requested(Path("testbed/runner/run.py"), text)) == []
