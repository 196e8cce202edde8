"""Where results go is checked before a run, and written to after it."""

from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError, SpecError
from testbed.tracking.targets import TRACKERS, Target, Tracker, parse_targets, track
from tests.unit.testbed.tracking.test_numbers import RECORD


def test_a_target_is_a_name_and_a_place() -> None:
    assert parse_targets(["tensorboard:runs", "mlflow:http://localhost:5000"]) == [
        Target("tensorboard", "runs"),
        Target("mlflow", "http://localhost:5000"),
    ]


@pytest.mark.parametrize("text", ["wandb:x", "tensorboard", "tensorboard:", ":x"])
def test_what_is_no_target_is_named_with_what_is(text: str) -> None:
    with pytest.raises(SpecError, match=f"--track {text}: write tensorboard:DIR or mlflow:URI"):
        parse_targets([text])


def test_a_library_that_is_missing_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "mlflow", Tracker("no_such_package", "", "URI"))
    with pytest.raises(MissingRequirementError, match=r"pip install 'ina-testbed\[tracking\]'"):
        parse_targets(["mlflow:x"])


def test_every_record_goes_to_every_target_and_what_became_of_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    targets = [Target("tensorboard", str(tmp_path / name)) for name in ("a", "b")]
    track([RECORD], targets, say=said.append)
    track([RECORD], targets[:1], say=said.append)
    assert said == [
        f"version_3: written to {targets[0]}",
        f"version_3: written to {targets[1]}",
        f"version_3: is already in {targets[0]}",
    ]


def test_a_target_that_refuses_says_that_the_record_is_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = Target("tensorboard", str(tmp_path / "file"))
    with pytest.raises(MissingRequirementError, match=rf"the record is whole; .*results track {RECORD} --to {target}"):
        track([RECORD], [target], say=lambda _: None)


def test_nothing_that_is_no_record_is_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a record"):
        track([tmp_path], [Target("tensorboard", str(tmp_path / "runs"))], say=lambda _: None)
    assert list(tmp_path.iterdir()) == []
