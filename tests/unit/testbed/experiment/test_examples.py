"""What comes with the package: everything is listed with what it is about, and copied without harm."""

from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.examples import copy_example, examples
from testbed.experiment.experiment import load


def test_everything_there_is_has_a_name_of_its_own_and_says_what_it_is_about() -> None:
    found = {example.name: example for example in examples()}
    assert len(found) == len(examples())
    kinds = {kind: {name for name, each in found.items() if each.kind == kind} for kind in ("spec", "paper", "script")}
    assert kinds["spec"] == {path.stem for path in Path("experiments").glob("*.yaml")}
    assert kinds["paper"] == {path.parent.name for path in Path("experiments/papers").glob("*/paper.yaml")}
    assert kinds["script"] == {
        path.name for path in Path("examples").iterdir() if path.suffix in (".py", ".sh", ".ipynb")
    }
    assert "dashboards" in found
    for example in found.values():
        assert example.path.exists()
        assert len(example.about) > 15
        assert not example.about.startswith(("#", "!"))
    assert found["link_speed"].about.startswith("How fast must the links be")
    assert found["link_speed"].about.endswith("?")
    assert found["iperf.sh"].about.startswith("One server")


def test_a_file_and_a_folder_are_copied(tmp_path: Path) -> None:
    spec = copy_example("quickstart", tmp_path / "new" / "folder")
    assert spec == tmp_path / "new" / "folder" / "quickstart.yaml"
    assert load(spec) == load(Path("experiments/quickstart.yaml"))
    paper = copy_example("zhang_2020", tmp_path)
    assert {path.name for path in paper.iterdir()} == {
        path.name for path in Path("experiments/papers/zhang_2020").iterdir()
    }
    assert list(copy_example("dashboards", tmp_path).glob("*.json"))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("mine")
    (tmp_path / "ddp.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "zhang_2020").mkdir()
    for name in ("quickstart", "ddp.py", "zhang_2020"):
        with pytest.raises(SpecError, match="is there already and is left as it is"):
            copy_example(name, tmp_path)
    assert (tmp_path / "quickstart.yaml").read_text() == "mine"
    assert not list((tmp_path / "zhang_2020").iterdir())


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"quickstart\.yaml: there is no such example; `testbed examples` lists them"):
        copy_example("quickstart.yaml", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(MissingRequirementError, match="cannot write"):
        copy_example("quickstart", tmp_path / "file")
