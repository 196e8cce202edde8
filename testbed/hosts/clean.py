"""Remove exactly what a dead run has left: its processes, namespaces, control groups, files; nothing else.

Namespaces, the veth pairs in them and their tc settings have no owner but the processes inside: they vanish
with them, so cleaning ends processes and waits until none is left in any network namespace of the run.
"""

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from testbed.errors import Interrupted, MissingRequirementError, SpecError, TestbedError
from testbed.hosts.cgroups import remove_cgroup
from testbed.hosts.docker_cli import FIX, Docker
from testbed.hosts.machine_agent import remove_links
from testbed.system.kernel import network_namespace
from testbed.system.processes import ProcessIdentity, end_processes, processes_in_network, processes_of_run
from testbed.system.run_state import RUN_ROOT, RunState, abandoned_directories, is_run_id, run_ids

_log: Final = logging.getLogger(__name__)

_GRACE_S: Final = 1.0
_COORDINATOR_GRACE_S: Final = 15.0
"""How long a coordinator that gets SIGTERM has to tear its run down itself."""
_TIMEOUT_S: Final = 10.0
_HOLDER_GRACE_S: Final = 1.0
"""So long a foreign process may stay in a namespace of the run: a short command that someone ran there ends."""
_POLL_S: Final = 0.5
FORGET_FIX: Final = (
    "start that Docker daemon and clean again, or, if it is gone for good: testbed clean --forget (nothing of these "
    "containers runs any more)"
)

Kind = Literal["coordinator", "container", "process", "namespace", "interface", "cgroup", "path"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """One thing of a run that still exists."""

    run_id: str
    kind: Kind
    what: str
    """A path, an interface's or container's name, `<pid> (<command>)`, or `net:[<inode>]`."""
    problem: str = field(default="", compare=False)
    """Why nothing can be done about it now: a Docker daemon that does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanReport:
    """What cleaning did, or with `dry_run` would do."""

    removed: Sequence[Leftover]
    remaining: Sequence[Leftover]
    """What withstood: a process in an uninterruptible call, a foreign process in one of the namespaces, a container
    whose daemon does not answer."""
    live_run_ids: Sequence[str]
    """Runs that were left alone because their coordinator lives."""


def leftovers(run_id: str | None = None, *, root: Path = RUN_ROOT) -> list[Leftover]:
    """What exists of the run, dead or alive; of every dead run if none is named."""
    if run_id is not None:
        return _Cleaning(run_id, root).leftovers()
    found = [left for dead in _dead_run_ids(root) for left in _Cleaning(dead, root).leftovers()]
    return found + [Leftover(run_id="", kind="path", what=str(path)) for path in abandoned_directories(root=root)]


def named_run(name: str, *, root: Path = RUN_ROOT) -> str:
    """The run whose id begins so; a whole id that nothing is known of is one that has gone, of which processes may be
    left. Raises SpecError naming the runs there are."""
    known = run_ids(root=root)
    found = [run_id for run_id in known if run_id.startswith(name)] if name else []
    if len(found) == 1:
        return found[0]
    if not found and is_run_id(name):
        return name
    there_are = f"there are {', '.join(known)}" if known else "no run has left anything here"
    raise SpecError(f"--run-id: {'several runs begin' if found else 'no run begins'} with {name!r}; {there_are}")


def clean(
    run_id: str | None = None,
    *,
    dry_run: bool = False,
    forget: bool = False,
    patience_s: float = 0.0,
    root: Path = RUN_ROOT,
) -> CleanReport:
    """Remove what dead runs have left; with a run id, that run, even if it lives. Idempotent.

    With `forget`, containers whose Docker daemon does not answer count as removed; without it such a daemon is waited
    for, at most `patience_s`: it may be restarting. The calling process is never touched: a coordinator may clean its
    own run.
    """
    chosen = [run_id] if run_id is not None else _dead_run_ids(root)
    before = leftovers(run_id, root=root)
    live = [other for other in run_ids(root=root) if other not in chosen]
    if dry_run:
        return CleanReport(removed=before, remaining=[], live_run_ids=live)
    remaining: list[Leftover] = []
    for each in chosen:
        _log.info("cleaning run %s", each)
        remaining += _Cleaning(each, root).clean(forget=forget, patience_s=patience_s)
    if run_id is None:
        for path in abandoned_directories(root=root):
            shutil.rmtree(path, ignore_errors=True)
    return CleanReport(
        removed=[left for left in before if left not in remaining], remaining=remaining, live_run_ids=live
    )


def clean_stale(*, root: Path = RUN_ROOT) -> CleanReport:
    """Clean up after every dead run; called at the start of each run."""
    report = clean(root=root)
    for left in report.removed:
        _log.info("removed what run %s had left: %s %s", left.run_id, left.kind, left.what)
    waiting = {left.run_id for left in report.remaining if left.problem}
    for left in report.remaining:
        # A daemon that is gone would be complained of at every run: `testbed clean` and `testbed doctor` say it.
        level = logging.INFO if left.run_id in waiting else logging.WARNING
        _log.log(level, "run %s has left something that cannot be removed: %s %s", left.run_id, left.kind, left.what)
    return report


def _dead_run_ids(root: Path) -> list[str]:
    found = []
    for run_id in run_ids(root=root):
        with suppress(FileNotFoundError):  # it has just ended, and taken its directory along
            if not RunState.load(run_id, root=root).coordinator_alive():
                found.append(run_id)
    return found


class _Cleaning:
    """One run's things, found and removed."""

    def __init__(self, run_id: str, root: Path) -> None:
        self._run_id = run_id
        try:
            self._state: RunState | None = RunState.load(run_id, root=root)
        except FileNotFoundError:
            # Nothing is recorded any more, but processes that carry the run's id may live on.
            self._state = None
        self._namespaces: set[int] = set()

    def _coordinator(self) -> ProcessIdentity | None:
        if self._state is None or not self._state.coordinator_alive():
            return None
        identity = self._state.owned().coordinator.identity
        return None if identity.pid == os.getpid() else identity

    def _processes(self) -> list[ProcessIdentity]:
        """By mark, by record and by control group; and, for later, remembers their network namespaces."""
        found = set(processes_of_run(self._run_id))
        if self._state is not None:
            found.update(self._state.processes())
            for group in self._existing_cgroups():
                found.update(_members(group))
        found.discard(ProcessIdentity.own())
        coordinator = self._coordinator()
        if coordinator is not None:
            found.discard(coordinator)
        shared = {network_namespace(1), network_namespace(os.getpid())}
        if self._state is not None:
            shared.update(self._state.owned().entered_networks)
        self._namespaces.update(
            inode
            for inode in (network_namespace(identity.pid) for identity in found)
            if inode is not None and inode not in shared
        )
        return sorted(found, key=lambda identity: identity.pid)

    def _existing_cgroups(self) -> list[Path]:
        """Children before their parents."""
        recorded = [] if self._state is None else self._state.owned().cgroups
        return sorted((path for path in set(recorded) if path.exists()), key=lambda path: (-len(path.parts), path))

    def _existing_interfaces(self) -> list[str]:
        recorded = [] if self._state is None else self._state.owned().interfaces
        return [name for name in recorded if Path("/sys/class/net", name).exists()]

    def _existing_containers(self) -> Iterator[tuple[Docker, list[str], str]]:
        """By daemon: the run's containers by their label, or, while it does not answer, those recorded, and why."""
        recorded: dict[str, list[str]] = {}
        for name, endpoint in ({} if self._state is None else self._state.owned().containers).items():
            recorded.setdefault(endpoint, []).append(name)
        for endpoint, names in recorded.items():
            docker = Docker(endpoint)
            try:
                yield docker, docker.of_run(self._run_id), ""
            except MissingRequirementError as error:
                yield docker, names, str(error).removesuffix(FIX).strip()

    def _existing_paths(self) -> list[Path]:
        if self._state is None:
            return []
        candidates = [*self._state.owned().paths, self._state.directory]
        return [path for path in candidates if path.exists() or path.is_symlink()]

    def _leftovers(self) -> Iterator[tuple[Kind, str]]:
        """All but containers."""
        coordinator = self._coordinator()
        if coordinator is not None:
            yield "coordinator", coordinator.describe()
        processes = self._processes()
        for identity in processes:
            yield "process", identity.describe()
        holders = set(processes_in_network(self._namespaces)) - set(processes)
        for identity in sorted(holders, key=lambda identity: identity.pid):
            yield (
                "namespace",
                f"net:[{network_namespace(identity.pid)}] held by foreign process {identity.describe()}",
            )
        for name in self._existing_interfaces():
            yield "interface", name
        for path in self._existing_cgroups():
            yield "cgroup", str(path)
        for path in self._existing_paths():
            yield "path", str(path)

    def _containers(self) -> list[Leftover]:
        return [
            Leftover(run_id=self._run_id, kind="container", what=name, problem=problem)
            for _, names, problem in self._existing_containers()
            for name in names
        ]

    def leftovers(self) -> list[Leftover]:
        others = [Leftover(run_id=self._run_id, kind=kind, what=what) for kind, what in self._leftovers()]
        return self._containers() + others

    def clean(self, *, forget: bool, patience_s: float) -> list[Leftover]:
        """Returns what could not be removed."""
        coordinator = self._coordinator()
        if coordinator is not None:
            end_processes([coordinator], grace_s=_COORDINATOR_GRACE_S)
        self._remove_containers()
        self._remove_links_between_machines()
        self._end_processes()
        for name in self._existing_interfaces():
            subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
        for group in self._existing_cgroups():
            try:
                remove_cgroup(group)
            except OSError as error:
                _log.warning("cannot remove %s: %s", group, error)
        self._await_daemons(patience_s)
        if self._state is not None and forget:
            self._state.forget_containers([left.what for left in self._containers() if left.problem])
        if self._state is not None and not any(left.kind != "path" for left in self.leftovers()):
            # Only now: as long as anything is left, the record of it is kept.
            self._remove_paths(self._state)
        return self.leftovers()

    def _remove_links_between_machines(self) -> None:
        """While somebody holds their namespaces: a link's socket is the machine's, and lasts as long as connections in
        the node that nobody answers any more, which is minutes."""
        if self._state is None or not self._state.owned().entered_networks:
            return
        holders = {network_namespace(identity.pid): identity.pid for identity in self._processes()}
        for inode, pid in holders.items():
            if inode in self._namespaces:
                namespace = f"/proc/{pid}/ns/net"
                command = ["nsenter", f"--net={namespace}", "--", "ip", "-o", "link", "show", "type", "vxlan"]
                shown = subprocess.run(command, check=False, capture_output=True)
                lines = shown.stdout.decode().splitlines()
                remove_links(namespace, [line.split()[1].rstrip(":").partition("@")[0] for line in lines])

    def _remove_containers(self) -> dict[str, str]:
        """Returns the problem of each daemon that did not answer or did not obey."""
        problems = {}
        for docker, names, problem in self._existing_containers():
            if problem:
                problems[docker.endpoint] = problem
                continue
            try:
                docker.remove(names)
            except MissingRequirementError as error:  # it ended between two questions
                problems[docker.endpoint] = str(error).removesuffix(FIX).strip()
        return problems

    def _await_daemons(self, patience_s: float) -> None:
        """Until every daemon has removed the run's containers: one that is being restarted answers again."""
        deadline_s, said = time.monotonic() + patience_s, False
        while (problems := self._remove_containers()) and time.monotonic() < deadline_s:
            if not said:
                _log.warning(
                    "waiting at most %.0f s for the Docker daemon at %s, to remove the run's containers: %s",
                    patience_s,
                    ", ".join(problems),
                    "; ".join(problems.values()),
                )
                said = True
            time.sleep(_POLL_S)

    def _end_processes(self) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        # Anything they fork meanwhile carries the mark and is found the next time round.
        while (processes := self._processes()) and time.monotonic() < deadline_s:
            end_processes(processes, grace_s=_GRACE_S, timeout_s=_TIMEOUT_S)
        deadline_s = time.monotonic() + _HOLDER_GRACE_S
        while processes_in_network(self._namespaces) and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def _remove_paths(self, state: RunState) -> None:
        for path in state.owned().paths:
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("cannot remove %s: %s", path, error)
                return
        state.remove()


def _members(group: Path) -> list[ProcessIdentity]:
    try:
        pids = (group / "cgroup.procs").read_text().split()
    except OSError:
        return []
    return [identity for pid in pids if (identity := ProcessIdentity.of(int(pid))) is not None]


DAEMON_PATIENCE_S: Final = 30.0
"""A Docker daemon that answered when the run began and does not at its end is likely being restarted."""


@contextmanager
def owned_run(run_id: str) -> Iterator[RunState]:
    """The state of a run that begins here; before it what dead runs left is removed, after it everything of its own.

    Raises MissingRequirementError when something of the run withstands, and then keeps its state; a run that has failed
    raises its own error, and the log says what withstands.
    """
    clean_stale()
    state = RunState.create(run_id)
    failure: BaseException | None = None
    try:
        yield state
    except BaseException as error:
        failure = error
        raise
    finally:
        # By id, whatever the unwinding inside could not do.
        patience_s = 0.0 if isinstance(failure, Interrupted) else DAEMON_PATIENCE_S
        if remaining := clean(run_id, patience_s=patience_s).remaining:
            things = ", ".join(f"{left.kind} {left.what}" for left in remaining)
            problems = "".join(f" ({text})" for text in dict.fromkeys(left.problem for left in remaining) if text)
            text = f"could not remove {things}{problems}: run `testbed clean`"
            if isinstance(failure, TestbedError):
                _log.warning(text)
            else:
                raise MissingRequirementError(text)
