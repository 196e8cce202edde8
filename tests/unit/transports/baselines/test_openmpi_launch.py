import subprocess
from pathlib import Path

import pytest

from transports.baselines._openmpi_launch import Member, agent_script, library_variables, mpirun_arguments
from transports.errors import OptionError, UnsupportedError


def members(num_networks: int) -> list[Member]:
    return [
        Member(address=f"10.0.{rank}.1", pid=1000 + rank, network=rank % num_networks, machine="here")
        for rank in range(4)
    ]


def test_the_agent_knows_the_namespaces_of_every_address(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text(agent_script(members(4)))
    (tmp_path / "nsenter").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "nsenter").chmod(0o700)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    entered = subprocess.run(
        ["sh", str(agent), "10.0.2.1", "prted", "--x"], env=environment, capture_output=True, text=True, check=True
    )
    assert entered.stdout.startswith("--target 1002 --net --mount")
    assert entered.stdout.endswith("sh 2 prted --x\n")
    unknown = subprocess.run(
        ["sh", str(agent), "10.0.9.1"], env=environment, capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 1
    assert "no member has 10.0.9.1" in unknown.stderr


def test_members_on_several_machines_are_refused_with_the_fix() -> None:
    elsewhere = Member(address="10.0.9.1", pid=1, network=1, machine="there")
    with pytest.raises(OptionError, match="start the whole program with mpirun"):
        agent_script([*members(1), elsewhere])


def test_an_address_is_never_more_than_a_word_to_the_shell() -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4"):
        agent_script([Member(address="$(reboot)", pid=1, network=1, machine="here")])


def test_the_agent_is_for_members_in_several_network_namespaces() -> None:
    apart, together = (mpirun_arguments(Path("/run/x"), members(number)) for number in (4, 1))
    assert "/run/x/agent" in apart
    assert "/run/x/agent" not in together
    assert apart[apart.index("--np") + 1] == together[together.index("--np") + 1] == "4"


def test_the_library_travels_by_tcp_on_one_interface() -> None:
    variables = library_variables("127.0.0.1")
    assert variables["OMPI_MCA_btl"] == "tcp,self"
    assert variables["OMPI_MCA_btl_tcp_if_include"] == "lo"
    with pytest.raises(UnsupportedError, match=r"no interface has the address 192\.0\.2\.1"):
        library_variables("192.0.2.1")
