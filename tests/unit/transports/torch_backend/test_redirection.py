"""The redirection changes torch for a whole process, so what it does is seen in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from transports.torch_backend.redirection import target

PROGRAM = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
named = {"backend": sys.argv[4]} if sys.argv[4] != "none" else {}
dist.init_process_group(
    init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=int(sys.argv[3]), **named)
tensor = torch.ones(10)
dist.all_reduce(tensor)
assert tensor.eq(dist.get_world_size()).all()
group = dist.new_group([0], backend="gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
print(dist.get_backend(), dist.get_backend(group), dist.get_backend(mesh.get_group()))
"""


def run(store: Path, record: Path | None, backend: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "RANK": "0"}
    environment |= {} if record is None else {"TESTBED_REDIRECT": str(record)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), "0", "1", backend],
        capture_output=True,
        text=True,
        env=environment,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("requested", "found"),
    [
        ("gloo", "testbed"),
        ("NCCL", "testbed"),
        ("undefined", "testbed"),
        ("cpu:gloo,cuda:nccl", "testbed"),
        ("mpi", "mpi"),
        ("cpu:mpi,cuda:nccl", "cpu:mpi,cuda:nccl"),
        ("testbed", "testbed"),
    ],
)
def test_gloo_and_nccl_are_replaced_and_others_are_not(requested: str, found: str) -> None:
    assert target(requested, "testbed") == found


def test_groups_by_whatever_function_are_ours_and_are_written_down(tmp_path: Path) -> None:
    record = tmp_path / "redirected"
    record.touch()
    done = run(tmp_path / "store", record, "cpu:gloo,cuda:nccl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["testbed"] * 3
    assert record.read_text().splitlines() == ["0 cpu:gloo,cuda:nccl", "0 gloo"]


def test_a_group_that_asks_for_ours_by_name_is_written_down_too(tmp_path: Path) -> None:
    """Else the verdict would say that the command used no torch.distributed."""
    record = tmp_path / "redirected"
    record.touch()
    done = run(tmp_path / "store", record, "testbed")
    assert done.returncode == 0, done.stderr
    assert record.read_text().splitlines()[0] == "0 testbed"


BARRIERS = """
import sys, torch.distributed as dist
from datetime import timedelta
backend = sys.argv[2]
dist.init_process_group(backend, init_method="file://" + sys.argv[1], rank=0, world_size=1)
dist.monitored_barrier()
dist.monitored_barrier(dist.new_group([0]), 5.0, wait_all_ranks=True)
dist.distributed_c10d.monitored_barrier(timeout=timedelta(seconds=5))
try:
    dist.monitored_barrier(timeout=timedelta(0))
except RuntimeError as error:
    print(error)
"""


def meet(store: Path, environment: dict[str, str], backend: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARRIERS, str(store), backend],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "RANK": "0"} | environment,
        timeout=90,
        check=False,
    )


def test_a_script_that_requested_gloo_has_its_monitored_barrier(tmp_path: Path) -> None:
    record = tmp_path / "redirected"
    record.touch()
    done = meet(tmp_path / "store", {"TESTBED_REDIRECT": str(record)}, "gloo")
    assert done.returncode == 0, done.stderr
    assert "Rank 0 timed out in monitoredBarrier" in done.stdout


def test_without_redirection_torch_refuses_the_backend_by_its_name(tmp_path: Path) -> None:
    """Why the group's own method is to be called."""
    done = meet(tmp_path / "store", {}, "testbed")
    assert done.returncode != 0
    assert "only implemented for GLOO" in done.stderr


def test_torch_is_not_imported_when_redirecting_cannot_be_written_down(tmp_path: Path) -> None:
    done = run(tmp_path / "store", tmp_path / "absent" / "redirected", "gloo")
    assert done.returncode != 0
    assert "TESTBED_REDIRECT" in done.stderr
