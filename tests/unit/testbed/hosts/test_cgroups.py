from pathlib import Path

import pytest

from testbed.hosts.base import Limits
from testbed.hosts.cgroups import Controller, find_controller, remove_cgroup, settings

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
def test_cpu_quotas_are_the_cores_asked_for_and_not_too_short(cpu_cores: float, quota_us: int, period_us: int) -> None:
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
