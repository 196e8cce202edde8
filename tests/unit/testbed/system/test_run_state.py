import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.system.processes import ProcessIdentity
from testbed.system.run_state import RunState, abandoned_directories, new_run_id, run_ids


def rewrite(state: RunState, **changes: object) -> None:
    path = state.directory / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_run_ids_are_unique_and_fit_a_file_name() -> None:
    made = {new_run_id() for _ in range(100)}
    assert len(made) == 100
    assert all(len(run_id) <= 20 and "/" not in run_id and "." not in run_id for run_id in made)


def test_the_directory_is_private_and_names_this_process_as_the_coordinator(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    assert stat.S_IMODE(state.directory.stat().st_mode) == 0o750
    assert state.owned().coordinator.pid == os.getpid()
    assert state.coordinator_alive()
    assert run_ids(root=tmp_path) == ["r1"]


def test_workers_reach_their_own_directory_and_replace_nothing_of_others_in_it(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (state.workers_directory, state.scratch_directory)]
    assert modes == [0o2750, 0o3770]
    assert not state.directory.stat().st_mode & stat.S_IXOTH
    assert os.access(state.scratch_directory, os.W_OK)


def test_an_intent_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    state.add_cgroup(Path("/sys/fs/cgroup/cpu/testbed-r1"))
    state.add_interface("tb-none0")
    state.add_path(tmp_path / "elsewhere")
    state.add_process("own", os.getpid())
    assert RunState.load("r1", root=tmp_path).owned() == state.owned()
    assert state.processes() == [ProcessIdentity.own()]
    state.remove_cgroup(Path("/sys/fs/cgroup/cpu/testbed-r1"))
    state.remove_interface("tb-none0")
    state.remove_path(tmp_path / "elsewhere")
    left = RunState.load("r1", root=tmp_path).owned()
    assert (left.cgroups, left.interfaces, left.paths) == ([], [], [])


def test_changes_from_many_threads_are_all_kept(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    threads = [threading.Thread(target=state.add_cgroup, args=(Path(f"/g{i}"),)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(RunState.load("r1", root=tmp_path).owned().cgroups) == {Path(f"/g{i}") for i in range(16)}


def test_a_coordinator_that_has_ended_is_dead(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from testbed.system.run_state import RunState;"
    script += "RunState.create('r1', root=Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert not RunState.load("r1", root=tmp_path).coordinator_alive()


def test_a_pid_that_was_given_to_another_process_is_not_the_coordinator(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    own = state.owned().coordinator
    rewrite(state, coordinator={"name": "coordinator", "pid": own.pid, "start_time": own.start_time - 1})
    assert not RunState.load("r1", root=tmp_path).coordinator_alive()


def test_nothing_of_an_earlier_boot_is_alive(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    state.add_process("own", os.getpid())
    rewrite(state, boot_id="another")
    loaded = RunState.load("r1", root=tmp_path)
    assert not loaded.coordinator_alive()
    assert loaded.processes() == []


def test_a_state_file_that_cannot_be_understood_is_named(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    rewrite(state, surprise=1)
    with pytest.raises(MissingRequirementError, match=r"(?s)r1/state\.json.*surprise"):
        RunState.load("r1", root=tmp_path)


def test_what_exists_already_cannot_become_the_runs(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    with pytest.raises(MissingRequirementError, match="exists already"):
        state.add_path(tmp_path)
    with pytest.raises(MissingRequirementError, match="exists already"):
        state.add_interface("lo")


def test_a_run_id_is_used_once_and_a_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    RunState.create("r1", root=tmp_path)
    with pytest.raises(MissingRequirementError, match="r1"):
        RunState.create("r1", root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r1"]


@pytest.mark.privileged
def test_root_is_not_advised_to_be_root_where_nothing_can_be_written() -> None:
    with pytest.raises(MissingRequirementError, match="must be writable, also for root") as caught:
        RunState.create("r1", root=Path("/proc/testbed"))
    assert "run as root" not in str(caught.value)


def test_removing_is_idempotent(tmp_path: Path) -> None:
    state = RunState.create("r1", root=tmp_path)
    (state.directory / "control.sock").touch()
    state.remove()
    state.remove()
    assert list(tmp_path.iterdir()) == []


def test_only_directories_whose_maker_is_dead_are_abandoned(tmp_path: Path) -> None:
    own = ProcessIdentity.own()
    (tmp_path / f".r1.{own.pid}.{own.start_time}").mkdir()
    dead = tmp_path / f".r2.{own.pid}.{own.start_time - 1}"
    dead.mkdir()
    (tmp_path / ".foreign").mkdir()
    assert abandoned_directories(root=tmp_path) == [dead]
    assert run_ids(root=tmp_path) == []
