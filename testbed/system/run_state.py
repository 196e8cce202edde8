"""What a run owns outside its own memory, written down before it is made: removable after any death.

    /run/testbed/<run id>/          0750, made first
      state.json                    this module's
      links.sock                    to look at links and change them
      workers/                      02750, of the workers' group: what they reach, and containers see
        control.sock                the control plane's, 0660
        scratch/                    03770: what they leave for each other; nobody replaces a file of another
      containers/<node>/            02750, of the workers' group: what only that container sees
        fork.sock                   0660

Processes are the exception: their pid is known only after the fork. They carry the run id in their
environment (testbed.system.processes), from their first instant.
"""

import errno
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import MissingRequirementError
from testbed.system.processes import ProcessIdentity

RUN_ROOT: Final = Path("/run/testbed")
_STATE_FILE: Final = "state.json"
_RUN_ID: Final = re.compile(r"\d{6}t\d{6}-[0-9a-f]{6}")
_NASCENT: Final = re.compile(r"\..+\.([0-9]+)\.([0-9]+)")
"""A directory being made or removed: `.<run id>.<pid>.<start time>` of whoever is at it."""


def new_run_id() -> str:
    """UTC time and a random part, sortable and short: `260915t142233-3fa9c1`."""
    return f"{datetime.now(UTC):%y%m%dt%H%M%S}-{secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    """Whether it is written as `new_run_id` writes them."""
    return _RUN_ID.fullmatch(text) is not None


def boot_id() -> str:
    """Identifies this boot: start times of processes count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class OwnedProcess(BaseModel):
    """A process of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    start_time: int

    @property
    def identity(self) -> ProcessIdentity:
        """What distinguishes the process from a later one of the same pid."""
        return ProcessIdentity(self.pid, self.start_time)


class Owned(BaseModel):
    """The contents of state.json."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    boot_id: str
    coordinator: OwnedProcess
    processes: list[OwnedProcess] = []
    cgroups: list[Path] = []
    interfaces: list[str] = []
    """In the root network namespace; those in the run's own namespaces vanish with them."""
    entered_networks: list[int] = []
    """Network namespaces (inodes) that processes of the run are in, and that are others': what is in them stays."""
    containers: dict[str, str] = {}
    """The endpoint of the Docker daemon that has each, by name."""
    paths: list[Path] = []
    """Files and directories outside the run's directory."""


def _fix(error: OSError, root: Path) -> str:
    """Of a directory that cannot be made."""
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return "run as root"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"its file system is full: make room in {root}"
    return f"{root} must be writable, also for root: look at how it is mounted (findmnt -T {root})"


class RunState:
    """The state file of one run. Every change is on disk when the call returns; callable from any thread."""

    def __init__(self, directory: Path, owned: Owned) -> None:
        self.directory = directory
        self._owned = owned
        self._lock = threading.Lock()

    @classmethod
    def create(cls, run_id: str, *, root: Path = RUN_ROOT) -> Self:
        """Make the run's directory with this process as its coordinator. Raises MissingRequirementError."""
        own = ProcessIdentity.own()
        coordinator = OwnedProcess(name="coordinator", pid=own.pid, start_time=own.start_time)
        owned = Owned(run_id=run_id, boot_id=boot_id(), coordinator=coordinator)
        # It gets its name only with the state in it; its first name says who is making it.
        nascent = root / f".{run_id}.{own.pid}.{own.start_time}"
        try:
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
            nascent.mkdir(mode=0o750)
            state = cls(nascent, owned)
            state._write()
            for path, mode in ((state.workers_directory, 0o2750), (state.scratch_directory, 0o3770)):
                path.mkdir()
                path.chmod(mode)  # whatever the umask is
            state.directory = nascent.rename(root / run_id)
        except OSError as error:
            shutil.rmtree(nascent, ignore_errors=True)
            raise MissingRequirementError(
                f"cannot make {root / run_id}: {error.strerror or error}; {_fix(error, root)}"
            ) from error
        return state

    @classmethod
    def load(cls, run_id: str, *, root: Path = RUN_ROOT) -> Self:
        """Read a run's state. Raises FileNotFoundError, MissingRequirementError if it cannot be understood."""
        path = root / run_id / _STATE_FILE
        try:
            return cls(path.parent, Owned.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise MissingRequirementError(
                f"{path} is no state file of this version ({error}); end its processes, remove {path.parent}"
            ) from error

    @property
    def run_id(self) -> str:
        """The run's name; also the name of its directory."""
        return self._owned.run_id

    @property
    def workers_directory(self) -> Path:
        """What workers reach: files made in it are of their group."""
        return self.directory / "workers"

    @property
    def scratch_directory(self) -> Path:
        """What workers leave for each other. Their input to nobody else: what is in it may be anything."""
        return self.workers_directory / "scratch"

    def open_to(self, group_id: int) -> None:
        """Let workers of that group reach what is theirs. Needs root."""
        for path, mode in ((self.workers_directory, 0o2750), (self.scratch_directory, 0o3770)):
            os.chown(path, -1, group_id)
            path.chmod(mode)  # chown may have cleared the bit that hands the group on

    def container_directory(self, node: str, group_id: int) -> Path:
        """Make what only that node's container sees. Needs root."""
        path = self.directory / "containers" / node
        path.mkdir(parents=True)
        os.chown(path, -1, group_id)
        path.chmod(0o2750)
        return path

    def owned(self) -> Owned:
        """A copy of everything the run owns now."""
        with self._lock:
            return self._owned.model_copy(deep=True)

    def coordinator_alive(self) -> bool:
        """Whether the process that made the run still lives."""
        return self._owned.boot_id == boot_id() and self._owned.coordinator.identity.alive()

    def processes(self) -> list[ProcessIdentity]:
        """The recorded processes that still live, without the coordinator."""
        if self._owned.boot_id != boot_id():
            return []
        return [process.identity for process in self.owned().processes if process.identity.alive()]

    def add_process(self, name: str, pid: int) -> None:
        """Record a process that was just started; does nothing if it has ended already."""
        self.add_processes({name: pid})

    def add_processes(self, pids: Mapping[str, int]) -> None:
        """Record several at once, by name."""
        started = [
            OwnedProcess(name=name, pid=pid, start_time=identity.start_time)
            for name, pid in pids.items()
            if (identity := ProcessIdentity.of(pid)) is not None
        ]
        if started:
            self._change(lambda owned: owned.processes.extend(started))

    def add_cgroup(self, path: Path) -> None:
        """Intend to make a cgroup."""
        self._change(lambda owned: owned.cgroups.append(path))

    def remove_cgroup(self, path: Path) -> None:
        """The cgroup has been removed, or was never made: it need not be recorded."""
        self._change(lambda owned: setattr(owned, "cgroups", [each for each in owned.cgroups if each != path]))

    def add_entered_network(self, inode: int) -> None:
        """Intend to start a process in somebody else's network namespace."""
        self._change(lambda owned: owned.entered_networks.append(inode))

    def add_interface(self, name: str) -> None:
        """Intend to make an interface in the root network namespace; it must not exist yet."""
        if Path("/sys/class/net", name).exists():
            raise MissingRequirementError(f"an interface {name} exists already: ip link delete {name}")
        self._change(lambda owned: owned.interfaces.append(name))

    def remove_interface(self, name: str) -> None:
        """The interface has been removed."""
        self._change(lambda owned: owned.interfaces.remove(name))

    def add_containers(self, endpoint: str, names: Iterable[str]) -> None:
        """Intend to make containers."""
        self._change(lambda owned: owned.containers.update(dict.fromkeys(names, endpoint)))

    def forget_containers(self, names: Iterable[str]) -> None:
        """Nobody can say any more whether they exist."""
        gone = frozenset(names)
        self._change(
            lambda owned: setattr(
                owned, "containers", {name: each for name, each in owned.containers.items() if name not in gone}
            )
        )

    def add_path(self, path: Path) -> None:
        """Intend to make a file or directory outside the run's directory; it must not exist yet."""
        assert path.is_absolute(), f"an owned path must be absolute: {path}"
        if path.exists() or path.is_symlink():
            raise MissingRequirementError(f"{path} exists already and is not this run's: remove it")
        self._change(lambda owned: owned.paths.append(path))

    def remove_path(self, path: Path) -> None:
        """The file or directory has been removed."""
        self._change(lambda owned: owned.paths.remove(path))

    def remove(self) -> None:
        """Remove the run's directory; the run owns nothing any more. Idempotent."""
        with self._lock:
            # Renamed first: a directory that is half removed must not be found under a run's name.
            own = ProcessIdentity.own()
            gone = self.directory.with_name(f".{self.run_id}.{own.pid}.{own.start_time}")
            try:
                self.directory.rename(gone)
            except FileNotFoundError:
                return
            shutil.rmtree(gone)

    def _change(self, change: Callable[[Owned], None]) -> None:
        with self._lock:
            change(self._owned)
            self._write()

    def _write(self) -> None:
        path = self.directory / _STATE_FILE
        temporary = path.with_suffix(".tmp")
        with temporary.open("w") as file:
            file.write(self._owned.model_dump_json(indent=2))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def run_ids(*, root: Path = RUN_ROOT) -> list[str]:
    """The runs that are running or have left their state, oldest first."""
    return sorted(path.parent.name for path in root.glob(f"[!.]*/{_STATE_FILE}"))


def abandoned_directories(*, root: Path = RUN_ROOT) -> list[Path]:
    """Directories whose maker died while making or removing them; no run is known by them."""
    found = []
    for path in root.glob(".*"):
        match = _NASCENT.fullmatch(path.name)
        if match and not ProcessIdentity(int(match[1]), int(match[2])).alive():
            found.append(path)
    return found
