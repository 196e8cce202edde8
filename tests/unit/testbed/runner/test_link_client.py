import os
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.runner.link_client import SOCKET_NAME, choose_run, live_run_ids
from testbed.system.run_state import RunState


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run_id in ("261121t080000-aaaaaa", "261121t080000-aabbbb", "261121t090000-cccccc", "261121t100000-dddddd"):
        state = RunState.create(run_id, root=tmp_path)
        if not run_id.endswith("d"):  # that one takes no questions yet
            (state.directory / SOCKET_NAME).touch()
    return tmp_path


def test_a_run_is_named_by_the_beginning_of_its_id_or_is_the_last(root: Path) -> None:
    assert choose_run("261121t09", root=root) == "261121t090000-cccccc"
    assert choose_run("last", root=root) == "261121t090000-cccccc"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, "several runs are alive.*261121t080000-aaaaaa, 261121t080000-aabbbb, 261121t090000-cccccc"),
        ("261121t080000-aa", "several runs begin with '261121t080000-aa'"),
        ("x", "no run that is alive begins with 'x'; there are 261121t080000-aaaaaa"),
    ],
)
def test_a_name_that_fits_none_or_several_is_refused_with_those_alive(root: Path, name: str | None, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        choose_run(name, root=root)


def test_a_run_whose_coordinator_has_died_is_not_alive(root: Path) -> None:
    for run_id in live_run_ids(root=root)[1:]:
        path = root / run_id / "state.json"
        # Another process that began at another time has its pid now.
        path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
    assert choose_run(None, root=root) == "261121t080000-aaaaaa"


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    for name in (None, "last", "x"):
        with pytest.raises(SpecError, match="no run is alive here"):
            choose_run(name, root=tmp_path)
