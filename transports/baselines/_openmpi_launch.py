"""Making workers that run already the ranks of one MPI job, across network namespaces, by the real `mpirun`.

Every worker listens on a Unix socket in a directory of its group. Rank 0 starts mpirun with a host file of the
members' addresses; mpirun starts its daemons through an agent that enters the namespaces of the worker with that
address, where ssh would log in; the daemons start a slot for each rank (`_openmpi_slot.py`), and the slot tells the
worker who it is in MPI. What the ranks then exchange goes by TCP over the emulated interface and nothing else.

The daemons take their host's name for the machine's, and those with one name for one machine: each gets a name (a UTS
namespace) of its own.
"""

import contextlib
import importlib.metadata
import ipaddress
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from transports.baselines import _openmpi_slot
from transports.errors import OptionError, TransportError, UnsupportedError
from transports.group import Group, published
from transports.interfaces import interface_of_address

FIX: Final = "pip install 'ina-testbed[mpi]'"
_POLL_S: Final = 0.05
_END_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """Where a rank is."""

    address: str
    pid: int
    network: int
    """The inode of its network namespace."""
    machine: str
    """Of its kernel since it was booted."""

    @classmethod
    def own(cls, address: str) -> "Member":
        """Of this process."""
        return cls(
            address=address,
            pid=os.getpid(),
            network=Path("/proc/self/ns/net").stat().st_ino,
            machine=Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        )


def mpirun_path() -> Path:
    """Of the Open MPI that is installed beside this interpreter, since the library and its mpirun must be of one
    version. Raises UnsupportedError when it or mpi4py is missing."""
    for package in ("mpi4py", "openmpi"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise UnsupportedError(f"stack openmpi: {package} is missing: {FIX}") from None
    path = Path(sys.prefix) / "bin" / "mpirun"
    if not path.exists():
        raise UnsupportedError(f"stack openmpi: there is no {path}: {FIX}")
    return path


def library_path(name: str) -> Path:
    """Of a library of that Open MPI, whatever its version. Raises UnsupportedError."""
    found = sorted((Path(sys.prefix) / "lib").glob(f"{name}*"))
    if not found:
        raise UnsupportedError(f"stack openmpi: there is no {name} in {Path(sys.prefix) / 'lib'}: {FIX}")
    return found[0]


def agent_script(members: Sequence[Member]) -> str:
    """What mpirun calls as `agent ADDRESS COMMAND...` where it would call ssh. Raises OptionError for members that no
    namespace of this machine has."""
    if len({member.machine for member in members}) > 1:
        raise OptionError(
            "stack openmpi joins members on one machine, emulated hosts or local ranks; on a cluster, start the whole "
            "program with mpirun"
        )
    cases = []
    for rank, member in enumerate(members):
        address = ipaddress.ip_address(member.address)  # nothing that a shell would take for more than a word
        cases.append(f"{address}) rank={rank} pid={member.pid} ;;\n")
    return (
        "#!/bin/sh\n"
        'address=$1; shift\ncase "$address" in\n' + "".join(cases) + '*) echo "no member has $address" >&2; exit 1 ;;\n'
        "esac\n"
        'exec nsenter --target "$pid" --net --mount --wdns="$PWD" -- unshare --uts '
        'sh -c \'echo "rank$1" > /proc/sys/kernel/hostname && shift && eval "$*"\' sh "$rank" "$@"\n'
    )


def mpirun_arguments(directory: Path, members: Sequence[Member]) -> list[str]:
    """Behind `mpirun`: one slot for each rank, in the order of the ranks, where its worker is."""
    arguments = ["--allow-run-as-root", "--np", str(len(members)), "--hostfile", str(directory / "hosts")]
    arguments += ["--map-by", "seq:OVERSUBSCRIBE", "--bind-to", "none", "--prtemca", "prte_tmpdir_base", str(directory)]
    if len({member.network for member in members}) > 1:
        arguments += ["--prtemca", "plm_ssh_agent", str(directory / "agent")]
        arguments += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
    return [*arguments, sys.executable, "-S", _openmpi_slot.__file__, str(directory)]


def library_variables(address: str) -> dict[str, str]:
    """How Open MPI is to travel: by TCP on the interface with that address, whatever memory the ranks share; giving
    the core away while it waits, since several ranks share a core."""
    return {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_btl_tcp_if_include": interface_of_address(address),
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OPAL_PREFIX": sys.prefix,
    }


class Job:
    """A worker's part in the MPI job. Rank 0 has mpirun as its child."""

    def __init__(self, group: Group, more_variables: Mapping[str, str]) -> None:
        """Returns when this worker knows which variables make it its rank (:attr:`variables`).

        Raises UnsupportedError without Open MPI, OptionError for members on several machines, PeerTimeoutError or
        TransportError when the job does not come about within the group's timeout.
        """
        mpirun = mpirun_path()
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._slot: socket.socket | None = None
        self._owned = Path(tempfile.mkdtemp(prefix="testbed-openmpi-")) if group.rank == 0 else None
        deadline_s = time.monotonic() + group.timeout_s
        prefix = f"{group.name}/openmpi"
        try:
            if self._owned is not None:
                group.store.set(f"{prefix}/directory", str(self._owned))
            self._directory = Path(published(group, f"{prefix}/directory", 0, "its MPI job's directory", deadline_s))
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._directory / str(group.rank)))
                listener.listen()
                group.store.set(f"{prefix}/{group.rank}", json.dumps(asdict(Member.own(group.address))))
                if self._owned is not None:
                    self._launch(mpirun, self._members(group, prefix, deadline_s))
                self.variables: Final[Mapping[str, str]] = {
                    **self._library_environment(listener, group, deadline_s),
                    **library_variables(group.address),
                    **more_variables,
                }
            # MPI_Init waits for all ranks and lets nothing of Python run meanwhile: nobody calls it before all can.
            group.store.set(f"{prefix}/{group.rank}/ready", "")
            for peer in range(group.size):
                published(group, f"{prefix}/{peer}/ready", peer, "its rank in MPI", deadline_s)
        except BaseException:
            self.end(in_order=False)
            raise

    def _members(self, group: Group, prefix: str, deadline_s: float) -> list[Member]:
        keys = ((rank, f"{prefix}/{rank}") for rank in range(group.size))
        return [Member(**json.loads(published(group, key, rank, "its place", deadline_s))) for rank, key in keys]

    def _launch(self, mpirun: Path, members: Sequence[Member]) -> None:
        agent = self._directory / "agent"
        agent.write_text(agent_script(members), encoding="utf-8")
        agent.chmod(stat.S_IRWXU)
        (self._directory / "hosts").write_text("".join(f"{member.address}\n" for member in members), encoding="utf-8")
        with (self._directory / "log").open("wb") as log:
            self._mpirun = subprocess.Popen(
                [str(mpirun), *mpirun_arguments(self._directory, members)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _library_environment(self, listener: socket.socket, group: Group, deadline_s: float) -> dict[str, str]:
        listener.settimeout(_POLL_S)
        while self._slot is None:
            with contextlib.suppress(TimeoutError):
                self._slot = listener.accept()[0]
            if self._mpirun is not None and self._mpirun.poll() is not None:
                raise TransportError(f"mpirun has ended with status {self._mpirun.returncode}:\n{self._log()}")
            if time.monotonic() > deadline_s:
                raise TransportError(f"mpirun has not started rank {group.rank} in {group.timeout_s} s:\n{self._log()}")
        self._slot.settimeout(max(deadline_s - time.monotonic(), _POLL_S))
        with self._slot.makefile() as lines:
            variables = json.loads(lines.readline() or "{}")
        self._slot.settimeout(None)
        return {name: str(value) for name, value in variables.items()}

    def _log(self) -> str:
        try:
            return (self._directory / "log").read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        except OSError:
            return "(it has written nothing)"

    def wait_lost(self) -> str:
        """Return when mpirun has ended the job although this worker had not left, with what it said; empty when this
        side has ended it."""
        assert self._slot is not None, "a job that came about has a slot"
        with contextlib.suppress(OSError):
            self._slot.recv(1)
        return self._log()

    def end(self, *, in_order: bool) -> None:
        """Let the slot go: as a rank that has finished, or one that failed, which makes mpirun end the others'.
        Idempotent; rank 0 waits for mpirun and removes what the job had."""
        slot = self._slot
        if slot is not None:
            with contextlib.suppress(OSError):
                if in_order:
                    slot.sendall(_openmpi_slot.DONE)
                slot.shutdown(socket.SHUT_RDWR)
            slot.close()
        if self._mpirun is not None:
            try:
                self._mpirun.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._mpirun.terminate()
                try:
                    self._mpirun.wait(_END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._mpirun.kill()
                    self._mpirun.wait()
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)
