"""What a launcher such as `mpirun` finds in the first host: something in the place of ssh, and a list of the hosts.

Launchers start their processes on other hosts by `ssh HOST COMMAND`. Emulated hosts have no sshd; a script enters the
namespaces of the host instead, with the variables that are that host's own.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

SCRIPT: Final = "ssh"
HOSTFILE: Final = "hostfile"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reachable:
    """A host that the launcher starts processes on."""

    address: str
    pid: int
    """Of a process that holds its namespaces."""
    variables: Mapping[str, str]
    """That processes there have, and elsewhere others."""


def script_text(hosts: Mapping[str, Reachable]) -> str:
    """A shell script called as ssh is: `ssh [OPTION...] [USER@]HOST COMMAND...`; by name or address. Pure.

    As with ssh the command is one for a shell there. The working directory stays the caller's, as the files do.
    """
    cases = []
    for name, host in hosts.items():
        variables = " ".join(f"{key}={quote(value)}" for key, value in host.variables.items())
        cases.append(f"{name} | {host.address}) pid={host.pid} && export {variables} ;;\n")
    return (
        "#!/bin/sh\n"
        "# In the place of ssh, for launchers: enters a host of this run.\n"
        'while :; do case "$1" in -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;; -*) shift ;; *) break ;; esac; done\n'
        '[ $# -ge 2 ] || { echo "usage: $0 [OPTION...] HOST COMMAND..." >&2; exit 255; }\n'
        "host=${1#*@}\nshift\n"
        'case "$host" in\n'
        + "".join(cases)
        + f'*) echo "$0: there is no $host here; there are {" ".join(hosts)}" >&2; exit 255 ;;\n'
        "esac\n"
        'exec nsenter --target "$pid" --net --mount --uts --wdns="$PWD" -- sh -c "$*"\n'
    )


def hostfile_text(hosts: Mapping[str, Reachable]) -> str:
    """One process on each host, in their order (mpirun(1), --hostfile). Pure."""
    return "".join(f"{name} slots=1\n" for name in hosts)


def launcher_variables(directory: Path) -> dict[str, str]:
    """By which launchers find both; Open MPI's `mpirun` needs nothing on its command line. Pure."""
    script, hostfile = str(directory / SCRIPT), str(directory / HOSTFILE)
    return {
        "TESTBED_SSH": script,
        "TESTBED_HOSTFILE": hostfile,
        "PRTE_MCA_plm_ssh_agent": script,  # Open MPI 5
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_default_hostfile": hostfile,
        "OMPI_MCA_plm_rsh_agent": script,  # Open MPI 4
        "OMPI_MCA_orte_default_hostfile": hostfile,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # it refuses root, which everybody in a namespace is
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # the hosts share the machine's cores
    }


def write_launcher(directory: Path, hosts: Mapping[str, Reachable]) -> None:
    """Write both files."""
    script = directory / SCRIPT
    script.write_text(script_text(hosts))
    script.chmod(stat.S_IRWXU)
    (directory / HOSTFILE).write_text(hostfile_text(hosts))
