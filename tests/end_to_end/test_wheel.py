"""The wheel in an empty environment: what is inside, what works with the packages that it asks for and no others, and
a run that leaves what was installed as it was.

The environment's packages are links to those that these tests run with, of exactly the distributions that the wheel
requires, theirs included: nothing is fetched, and nothing that is not required can be imported.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.axes import ROOT
from tests.verdicts import assert_no_fault_of_the_links

PACKAGES = ("testbed", "switch_agg", "transports", "experiments")
SHORT = (
    *("--set", "workload.pace={forward: 50ms, backward: 100ms}", "--set", "workload.iterations=4"),
    *("--set", "workload.warmup=2", "--set", "workload.compute_only=1", "--set", "metrics.port=0"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (made,) = folder.glob("*.whl")
    return made


def required(name: str, extras: frozenset[str] = frozenset(), seen: set[str] | None = None) -> Iterator[str]:
    """The distributions that one requires here, with those that these require, by name."""
    seen = set() if seen is None else seen
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        wanted = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": each}) for each in (*extras, "")
        )
        key = f"{requirement.name}{sorted(requirement.extras)}"
        if wanted and key not in seen:
            seen.add(key)
            if requirement.name != "ina-testbed":
                yield requirement.name
            yield from required(requirement.name, frozenset(requirement.extras), seen)


class Environment:
    """A virtual environment with the wheel in it."""

    def __init__(self, folder: Path, wheel: Path, extras: frozenset[str]) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, timeout=60)
        self.python = folder / "env" / "bin" / "python"
        (self.site,) = (folder / "env" / "lib").glob("python3*/site-packages")
        for name in required("ina-testbed", extras):
            distribution = importlib.metadata.distribution(name)
            tops = {file.parts[0] for file in distribution.files or () if not file.is_absolute()}
            for top in tops - {"..", "__pycache__"}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(str(distribution.locate_file(top)))
        install = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-deps"]
        subprocess.run([*install, "--no-index", str(wheel)], check=True, timeout=120)

    def testbed(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """As from a shell that has been nowhere near a checkout."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        command = [str(self.python.with_name("testbed")), *words]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=150, check=False
        )

    def answer(self, *words: str) -> Any:
        """What it prints with --json."""
        done = self.testbed(*words, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def installed(self) -> dict[str, int]:
        """Every file of the wheel and when it was written, but for what Python makes of sources."""
        files = (path for package in PACKAGES for path in (self.site / package).rglob("*"))
        return {str(path): path.stat().st_mtime_ns for path in files if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """With what the wheel requires in any case."""
    return Environment(tmp_path_factory.mktemp("small"), wheel, frozenset())


def test_every_file_of_the_packages_is_inside_and_nothing_that_was_built(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES, "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = {
        name.replace("examples/", "experiments/examples/", 1) if name.startswith("examples/") else name
        for name in listed.stdout.split()
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert tracked - inside == set()
    assert {name for name in inside - tracked if not name.startswith("experiments/dashboards/")} == set()
    for suffix in (".yaml", ".c", ".h", ".bpf.c", ".proto", ".j2", ".js", ".css", ".yml", ".typed", ".ipynb"):
        assert any(name.endswith(suffix) for name in inside), suffix


def test_what_needs_no_root_works_with_what_the_wheel_requires(small: Environment) -> None:
    before = small.installed()
    assert "Start with: testbed run quickstart" in small.testbed("--help").stdout
    assert len(small.answer("plan", "quickstart")["directions"]) == 8
    assert small.answer("predict", "quickstart", "--set", "link.rate=1gbit")["iteration_time_s"] > 0.3
    names = {each["name"] for each in small.answer("examples")}
    assert {"quickstart", "zhang_2020", "ddp.py", "iperf.sh", "notebook.ipynb", "dashboards"} <= names
    for name, copied in (("link_speed", "link_speed.yaml"), ("ddp.py", "ddp.py"), ("dashboards", "dashboards")):
        assert small.testbed("examples", "copy", name, "mine").returncode == 0
        assert (small.folder / "mine" / copied).exists()
    again = small.testbed("examples", "copy", "ddp.py", "mine")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert len(small.answer("plan", "mine/link_speed.yaml")["points"]) == 5
    results = small.folder / "results"
    shutil.copytree(ROOT / "tests" / "records" / "version_3", results / "r3")
    assert small.answer("results", "list")["runs"][0]["name"] == "quickstart"
    assert small.testbed("report", "results/r3").returncode == 0
    assert (results / "r3" / "report-figures" / "breakdown.svg").exists()
    assert small.installed() == before


def test_what_runs_experiments_is_missed_with_its_fix_and_nothing_else_is(small: Environment) -> None:
    refused = small.testbed("run", "quickstart")
    assert refused.returncode == 3
    assert "mininet is missing: pip install 'ina-testbed[emulation]'" in refused.stderr
    script = (
        "import testbed\n"
        f"run = testbed.load({str(ROOT / 'tests' / 'records' / 'version_3')!r})\n"
        "assert run.figures['breakdown'].svg() and run.iterations.height and run.scaling_factor\n"
        "assert testbed.predict('quickstart').iteration_time_s > 0.3\n"
        "try:\n    testbed.run('quickstart')\n"
        "except testbed.errors.MissingRequirementError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [str(small.python), "-c", script], cwd=small.folder, capture_output=True, text=True, check=False
    )
    assert "torch is missing: pip install 'ina-testbed[training]'" in done.stdout, done.stderr


def test_doctor_names_what_is_missing_and_how_to_get_it(small: Environment) -> None:
    before = small.installed()
    done = small.testbed("doctor", "--quick", "--json")
    assert done.returncode == 3, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for package, extra in (("mininet", "emulation"), ("torch", "training"), ("grpcio", "control")):
        assert not checks[package]["ok"]
        assert f"pip install 'ina-testbed[{extra}]'" in checks[package]["fix"]
    assert "apt-get install" in checks["C compiler"]["fix"]
    assert str(small.folder / "cache") in checks["C compiler"]["found"]
    assert small.installed() == before


@pytest.mark.privileged
def test_a_run_works_and_what_is_installed_stays_as_it_was(tmp_path: Path, wheel: Path) -> None:
    environment = Environment(tmp_path, wheel, frozenset({"emulation", "training", "control", "metrics"}))
    before = environment.installed()
    done = environment.testbed("run", "quickstart", *SHORT, "--json")
    assert done.returncode in (0, 4), done.stderr
    summary = json.loads(done.stdout)
    assert_no_fault_of_the_links(summary["outcome"], summary["reasons"])
    assert summary["num_iterations"] == 4
    assert (tmp_path / summary["record"] / "report.html").exists()
    assert environment.installed() == before
    assert list((tmp_path / "cache" / "ina-testbed" / "native").glob("tcp-*.so"))
