import subprocess
from pathlib import Path

from testbed.runner.launcher import (
    HOSTFILE,
    SCRIPT,
    Reachable,
    hostfile_text,
    launcher_variables,
    script_text,
    write_launcher,
)

HOSTS = {
    "w0": Reachable(address="10.0.0.2", pid=11, variables={"TESTBED_ADDRESS": "10.0.0.2"}),
    "w1": Reachable(address="10.0.0.6", pid=12, variables={"TESTBED_ADDRESS": "10.0.0.6", "ODD": "it's $HOME; x"}),
}


def called(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """With a nsenter that says how it was called."""
    (tmp_path / "nsenter").write_text('#!/bin/sh\necho "$TESTBED_ADDRESS/$ODD/$*"\n')
    (tmp_path / "nsenter").chmod(0o755)
    write_launcher(tmp_path, HOSTS)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    return subprocess.run(
        [tmp_path / SCRIPT, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )


def test_a_host_is_entered_by_its_name_or_address_with_its_own_variables(tmp_path: Path) -> None:
    for host in ("w1", "10.0.0.6", "root@w1"):
        said = called(tmp_path, "-x", "-o", "StrictHostKeyChecking=no", host, "PATH=/a", "prted", "--x").stdout.strip()
        assert said == (
            f"10.0.0.6/it's $HOME; x/--target 12 --net --mount --uts --wdns={tmp_path} -- sh -c PATH=/a prted --x"
        )


def test_a_host_that_is_not_there_is_sshs_error(tmp_path: Path) -> None:
    done = called(tmp_path, "w7", "true")
    assert done.returncode == 255
    assert "there is no w7 here; there are w0 w1" in done.stderr
    assert called(tmp_path, "w1").returncode == 255, "there is no login"


def test_each_host_gets_one_process_in_their_order() -> None:
    assert hostfile_text(HOSTS) == "w0 slots=1\nw1 slots=1\n"
    assert script_text(HOSTS).count(") pid=") == 2


def test_mpirun_finds_both_without_arguments() -> None:
    found = launcher_variables(Path("/run/testbed/r"))
    assert {found[name] for name in ("TESTBED_SSH", "PRTE_MCA_plm_ssh_agent")} == {f"/run/testbed/r/{SCRIPT}"}
    assert {found[name] for name in ("TESTBED_HOSTFILE", "PRTE_MCA_prte_default_hostfile")} == {
        f"/run/testbed/r/{HOSTFILE}"
    }
