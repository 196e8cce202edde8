from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.experiment.host import Limits, core_list
from testbed.hosts import cgroups
from testbed.hosts.base import Throttling
from testbed.hosts.cgroups import (
    Controller,
    ProcessCgroup,
    find_controller,
    needed_controllers,
    parse_throttling,
    remove_cgroup,
    settings,
)
from testbed.system.run_state import RunState, new_run_id

VERSION_1 = """\
23 28 0:22 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
"""


def controller(name: str, version: int) -> Controller:
    return Controller(name=name, mount_point=Path("/sys/fs/cgroup"), version=version)  # type: ignore[arg-type]


def test_version_1_controllers_are_found_by_name_even_when_mounted_together() -> None:
    cpu, memory = find_controller("cpu", VERSION_1), find_controller("memory", VERSION_1)
    assert cpu == Controller(name="cpu", mount_point=Path("/sys/fs/cgroup/cpu,cpuacct"), version=1)
    assert memory == Controller(name="memory", mount_point=Path("/sys/fs/cgroup/memory"), version=1)


def test_a_version_2_hierarchy_counts_only_if_it_has_the_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    mountinfo = f"41 31 0:38 / {tmp_path} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    assert find_controller("cpu", mountinfo) == Controller(name="cpu", mount_point=tmp_path, version=2)
    assert find_controller("memory", mountinfo) is None


@pytest.mark.parametrize(
    ("cpu_cores", "quota_us", "period_us"),
    [(0.5, 5000, 10000), (1.5, 15000, 10000), (0.1, 1000, 10000), (0.02, 1000, 50000)],
)
def test_cpu_quotas_are_the_cores_requested_and_not_too_short(cpu_cores: float, quota_us: int, period_us: int) -> None:
    limits = Limits(cpu_cores=cpu_cores)
    assert settings(controller("cpu", 1), limits) == {
        "cpu.cfs_period_us": str(period_us),
        "cpu.cfs_quota_us": str(quota_us),
    }
    assert settings(controller("cpu", 2), limits) == {"cpu.max": f"{quota_us} {period_us}"}


def test_memory_limits_are_whole_pages() -> None:
    limits = Limits(memory_bytes=1_000_000)
    assert settings(controller("memory", 1), limits) == {"memory.limit_in_bytes": "999424"}
    assert settings(controller("memory", 2), limits) == {"memory.max": "999424"}


def test_no_limit_writes_nothing() -> None:
    assert not settings(controller("cpu", 1), Limits(memory_bytes=4096))
    assert not settings(controller("memory", 1), Limits(cpu_cores=1.0))


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_cgroup(tmp_path / "never-made")


@pytest.mark.parametrize(
    ("cores", "text"), [((0,), "0"), ((0, 1, 2, 5), "0-2,5"), ((3, 1), "1,3"), ((7, 8, 0), "0,7-8")]
)
def test_cores_are_written_as_the_kernel_writes_them(cores: tuple[int, ...], text: str) -> None:
    assert core_list(cores) == text
    for version in (1, 2):
        assert settings(controller("cpuset", version), Limits(pinned_cores=cores)) == {"cpuset.cpus": text}


def test_only_what_is_requested_needs_a_controller() -> None:
    assert needed_controllers(Limits()) == []
    assert needed_controllers(Limits(cpu_cores=1, pinned_cores=(0,), memory_bytes=2**30)) == ["cpu", "cpuset", "memory"]


def test_throttling_is_read_from_both_versions_and_subtracts() -> None:
    first = parse_throttling("nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n")
    second = parse_throttling("usage_usec 9\nnr_periods 300\nnr_throttled 50\nthrottled_usec 3500000\n")
    assert first == Throttling(num_periods=100, num_throttled=40, throttled_s=2.5)
    assert second is not None
    assert second.since(first) == Throttling(num_periods=200, num_throttled=10, throttled_s=1.0)
    assert parse_throttling("usage_usec 9\nuser_usec 5\n") is None


def test_version_2_switches_the_controllers_on_from_the_top_and_reads_back(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (top / "cgroup.subtree_control").write_text("memory\n")
    state = RunState.create(new_run_id(), root=tmp_path)
    mountinfo = f"41 31 0:38 / {top} rw - cgroup2 cgroup2 rw\n"
    cgroup = ProcessCgroup("w0", state, mountinfo=mountinfo)
    cgroup.limit(Limits(cpu_cores=0.5, pinned_cores=(0, 1), memory_bytes=2**30))
    of_run = top / f"testbed-{state.run_id}"
    assert cgroup.procs_files == [of_run / "w0" / "cgroup.procs"]
    assert state.owned().cgroups == [of_run, of_run / "w0"]
    assert (top / "cgroup.subtree_control").read_text() == "+memory"  # the last; a real one adds
    assert (of_run / "cgroup.subtree_control").read_text() == "+memory"
    assert {path.name: path.read_text() for path in (of_run / "w0").iterdir()} == {
        "cpu.max": "5000 10000",
        "cpuset.cpus": "0-1",
        "memory.max": str(2**30),
    }
    assert cgroup.differences() == []
    (of_run / "w0" / "cpu.max").write_text("max 100000\n")
    assert cgroup.differences() == [f"{of_run}/w0/cpu.max reads 'max 100000', requested '5000 10000'"]


def test_a_missing_controller_is_an_error_with_the_fix(tmp_path: Path) -> None:
    state = RunState.create(new_run_id(), root=tmp_path)
    with pytest.raises(MissingRequirementError, match=r"w0 .* cpuset controller.*mount -t cgroup"):
        ProcessCgroup("w0", state, mountinfo="23 28 0:22 / /proc rw - proc proc rw\n").limit(Limits(pinned_cores=(0,)))


def test_groups_that_cannot_be_made_leave_nothing_to_remove(tmp_path: Path) -> None:
    """A mount point below which nothing can be made, as in a container that may not write to it."""
    (tmp_path / "mounted").write_text("")
    state = RunState.create(new_run_id(), root=tmp_path)
    mountinfo = f"32 31 0:29 / {tmp_path}/mounted ro - cgroup cgroup ro,cpu\n"
    cgroup = ProcessCgroup("w1", state, mountinfo=mountinfo)
    with pytest.raises(MissingRequirementError, match=r"cannot set the cpu limit of w1: .*writable"):
        cgroup.limit(Limits(cpu_cores=0.5))
    cgroup.remove()
    assert state.owned().cgroups == []


class Mounted:
    """A controller below a directory of the test's, in which groups are directories."""

    def __init__(self, directory: Path) -> None:
        self.controller = Controller(name="cpu", mount_point=directory / "mounted", version=1)

    def group(self, name: str, **files: str) -> Path:
        path = self.controller.mount_point / name
        path.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (path / file.replace("_", ".", 1)).write_text(f"{text}\n")
        return path


def test_an_idle_group_yields_to_its_siblings_and_to_nobody_else(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    run = mounted.group("runs/own")
    beside, inside = mounted.group("idle", cpu_idle="1"), mounted.group("idle/deeper")
    elsewhere = mounted.group("others/idle", cpu_idle="1")
    (tmp_path / "cpu.idle").write_text("1\n")

    def yields(group: Path, to: Path = run) -> bool:
        return cgroups.is_idle_beside(mounted.controller, group, to)

    assert yields(beside)
    assert yields(inside), "with the group that it is in"
    assert yields(mounted.group("runs/idle", cpu_idle="1"))
    assert not yields(elsewhere), "it has its part of what `others` has, which weighs as much as `runs`"
    assert not yields(mounted.group("busy"))
    assert not yields(inside, to=beside), "both are idle"
    assert yields(mounted.group("runs/own/idle", cpu_idle="1")), "a child competes with its parent's own threads"


def test_quotas_of_all_groups_above_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = Mounted(tmp_path)
    root, leaf = mounted.group(""), mounted.group("slice/scope", cpu_stat="nr_periods 0\nnr_throttled 0")
    (root / "cpu.stat").write_text("usage_usec 5\n")
    above = mounted.group("slice", cpu_stat="nr_periods 100\nnr_throttled 60\nthrottled_usec 1000000")
    monkeypatch.setattr(cgroups, "find_controller", lambda *_: mounted.controller)
    monkeypatch.setattr(cgroups, "group_of", lambda *_: leaf)
    nothing = Throttling(num_periods=0, num_throttled=0, throttled_s=0.0)
    assert cgroups.own_throttling() == {
        leaf: nothing,
        above: Throttling(num_periods=100, num_throttled=60, throttled_s=1.0),
    }
    (root / "cpu.max").write_text("50000 100000\n")
    as_of_a_container = replace(mounted.controller, version=2)
    assert cgroups.quota_cores(as_of_a_container, leaf) == 0.5
    monkeypatch.setattr(cgroups, "group_of", lambda *_: None)
    assert cgroups.own_throttling() == {}
