"""House rules that no linter knows: mirrors, registries, what must and must not stand in the tree."""

import re
import subprocess
from pathlib import Path

import pytest

from testbed.experiment.background.base import BACKGROUNDS
from testbed.experiment.placements.base import PLACEMENTS
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.experiment.slowdowns.base import SLOWDOWNS
from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.experiment.workloads.base import WORKLOADS
from transports.baselines.base import STACKS
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("testbed", "transports", "switch_agg", "experiments")
AXES = (TOPOLOGIES, PLACEMENTS, RUNTIMES, SLOWDOWNS, BACKGROUNDS, WORKLOADS, STACKS, CHANNELS, COLLECTIVES, COMPRESSORS)


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in done.stdout.splitlines()]


def test_every_unit_test_mirrors_a_source_file() -> None:
    for test in tracked("tests/unit/**/test_*.py", "tests/unit/*/test_*.py"):
        mirrored = test.relative_to(ROOT / "tests" / "unit")
        name = mirrored.name.removeprefix("test_")
        candidates = [ROOT / mirrored.parent / name, ROOT / mirrored.parent / f"_{name}"]
        assert any(path.exists() for path in candidates), f"{test} tests no source file of its name"


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.axis)
def test_a_file_on_an_axis_registers_one_value_of_its_name(axis) -> None:  # type: ignore[no-untyped-def]
    assert axis.kinds()
    for cls in axis:
        if not cls.__module__.startswith(PACKAGES):
            continue  # another test's own
        assert cls.__module__.rpartition(".")[2] in axis.kinds()
        assert cls.__doc__


def test_folders_that_would_shadow_packages_have_no_init() -> None:
    assert not (ROOT / "tests" / "__init__.py").exists()
    assert not (ROOT / "docker" / "__init__.py").exists()


def test_every_package_is_typed() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").exists()


def test_nothing_cleans_by_name_or_runs_a_shell_string() -> None:
    forbidden = re.compile(r"killall|pkill\s|\bmn -c\b|rm -rf? /tmp/\*|shell=True|os\.system\(")
    for path in tracked("*.py", "*.sh", "Makefile", ".ci/run"):
        if path != Path(__file__).resolve():
            assert not forbidden.search(path.read_text()), path


def test_no_unfinished_work_is_left_in_the_packages() -> None:
    unfinished = re.compile(
        r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError|pytest\.(skip|mark\.skip|xfail)|mark\.xfail"
    )
    for path in tracked("*.py"):
        if path != Path(__file__).resolve() and "_pb2" not in path.name:
            assert not unfinished.search(path.read_text()), path


def test_packages_do_not_print() -> None:
    for package in PACKAGES:
        for path in tracked(f"{package}/*.py", f"{package}/**/*.py"):
            assert not re.search(r"^\s*print\(", path.read_text(), re.MULTILINE), path


def test_commands_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", text))
    assert {"demo", "test"} <= named <= targets
    for spec in re.findall(r"experiments/[\w/-]+\.yaml", text):
        assert (ROOT / spec).exists()
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (ROOT / picture).exists()


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
