"""Specs that come with the package, by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import load
from testbed.experiment.shipped import shipped_specs, spec_path


def test_every_spec_of_the_folder_is_known_by_its_name() -> None:
    known = shipped_specs()
    assert {path.name for path in known.values()} == {path.name for path in Path("experiments").glob("*.yaml")}
    assert load(known["quickstart"]).name == "quickstart"


def test_a_package_of_the_user_s_hides_no_spec(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "plan", "quickstart"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_name_alone_is_looked_up_and_a_file_of_that_name_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_path(Path("quickstart")) == shipped_specs()["quickstart"]
    (tmp_path / "quickstart").mkdir()
    assert spec_path(Path("quickstart")) == shipped_specs()["quickstart"], "a folder is no spec"
    (tmp_path / "quickstart").rmdir()
    (tmp_path / "quickstart").write_text("name: mine")
    assert spec_path(Path("quickstart")) == Path("quickstart")


def test_a_path_means_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("mine.yaml"), tmp_path / "quickstart", Path("folder/quickstart")):
        assert spec_path(path) == path
    for path in (Path("experiments/quickstart.yaml"), Path("quickstart.yaml")):
        with pytest.raises(
            SpecError, match=r"no such file; the spec that comes with the package is called quickstart$"
        ):
            spec_path(path)
    (tmp_path / "quickstart.yaml").write_text("name: mine")
    assert spec_path(Path("quickstart.yaml")) == Path("quickstart.yaml")


def test_a_name_that_is_neither_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"quickstrat: there is no such file, and no spec .*quickstart"):
        spec_path(Path("quickstrat"))
