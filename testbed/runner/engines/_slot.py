"""What one machine does for a sweep that runs elsewhere: one run at a time, as a process of its own; and its record.

Knows nothing of what carries the calls. Every call of a session but `claim` proves that the session is alive and
prolongs its lease (testbed.runner.engines._lease); the run is ended by its keeper when the lease is (_keeper), and the
slot is let go when nobody can want it any more: nobody has called for twice as long as a lease and its grace last.

    <directory>/               TESTBED_SLOT_DIRECTORY of the process, /var/lib/testbed/slot otherwise
      lock                     flock(2) of whoever has the slot, and of its run: while either lives, nobody else has it
      attempts/<number>/       spec.yaml, what was printed, and below records/ the record in the making
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from testbed.runner.engines._keeper import ENDED
from testbed.runner.engines._lease import Fence, RefusedError, UnfitError
from testbed.runner.engines._transfer import CHUNK_BYTES, File, TransferError, files_of
from testbed.store.documents import Origin, origin_here
from testbed.system.interruptions import SIGNALS
from testbed.system.processes import RUN_ID_VARIABLE
from transports.collectives.costs import Costs

DIRECTORY_VARIABLE: Final = "TESTBED_SLOT_DIRECTORY"
DIRECTORY: Final = "/var/lib/testbed/slot"
PROGRAM: Final = (sys.executable, "-P", "-m", "testbed", "run")
_CLEAN: Final = (sys.executable, "-P", "-m", "testbed", "clean")
_CLEAN_TIMEOUT_S: Final = 60.0
_KEPT: Final = frozenset(("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"))
_KEPT_PREFIXES: Final = ("LC_", "XDG_", "DOCKER_")
_SAID_BYTES: Final = 2000
_POLL_S: Final = 0.1
_NUM_SILENT_STEPS: Final = 10
"""In which the time without a call is counted."""


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """What a run sees of the environment of whoever starts it: what a login has, and where Docker is.

    What sets threads, devices, modules or ranks for other programs would change the run.
    """
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What decides whether results of two machines may stand side by side."""

    origin: Origin
    """Of what it would make."""
    delay_backends: tuple[str, ...]
    """Those that work there."""
    costs: Costs
    """What `testbed fit` found there, which decides how some runs are planned; the defaults where it has not run."""

    def unlike(self, other: "Description", *, with_costs: bool) -> tuple[str, ...]:
        """In what the other one differs from this, for runs that are planned by costs or not."""
        found = [*other.origin.unlike(self.origin)]
        if other.delay_backends != self.delay_backends:
            found.append(f"other delay backends ({', '.join(other.delay_backends) or 'none'})")
        if with_costs and other.costs != self.costs:
            found.append("another result of `testbed fit`, by which runs are planned: copy fit.json of the cache")
        return tuple(found)


def describe_here() -> Description:
    """This machine."""
    from testbed.experiment.delay_backends.base import delay_backends
    from testbed.machine.doctor import missing_for_backend
    from testbed.machine.fit import known_costs

    works = tuple(name for name in delay_backends() if not missing_for_backend(name))
    return Description(origin=origin_here(), delay_backends=works, costs=known_costs())


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run that is to be made."""

    number: int
    """Of the attempt."""
    spec: str
    """Resolved, as YAML."""
    arguments: Sequence[str]
    """Further ones of `testbed run`."""
    working_directory: str
    """Where a command of the user's runs."""

    def command(self, directory: Path, program: Sequence[str]) -> list[str]:
        """What is executed; what it needs is put into the directory."""
        spec = directory / "spec.yaml"
        spec.write_text(self.spec)
        return [*program, str(spec), "--output", str(directory / "records"), "--json", *self.arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Beside a login's."""
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentRequest:
    """The agent of a machine of an emulation over several that is to be started (testbed.hosts.machine_agent)."""

    number: int
    run_id: str
    path: str
    """At which the run waits for it."""
    working_directory: str = "/"

    def command(self, _directory: Path, _program: Sequence[str]) -> list[str]:
        """What is executed."""
        return [sys.executable, "-P", "-m", "testbed.hosts.machine_agent", self.path]

    @property
    def environment(self) -> dict[str, str]:
        """Beside a login's."""
        return {RUN_ID_VARIABLE: self.run_id}


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """How far a run has come."""

    number: int
    """Of its attempt."""
    exit_code: int | None
    """None: it goes on."""
    has_record: bool
    """Whether it left one whole record."""
    said: str
    """The end of what it printed on standard error."""

    @property
    def was_ended(self) -> bool:
        """Whether somebody ended it before it came to its end."""
        return self.exit_code in (ENDED, 130) or (self.exit_code or 0) > 128


class _Run:
    """A run, or an agent of one, and its keeper."""

    def __init__(
        self,
        request: Request | AgentRequest,
        directory: Path,
        *,
        program: Sequence[str],
        lock: int,
        grace_s: float,
        deadline_s: float,
    ) -> None:
        self._number = request.number
        self._directory = directory
        self._grace_s = grace_s
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "records").mkdir(parents=True)
        command = request.command(directory, program)
        keeper = [sys.executable, "-I", str(Path(__file__).with_name("_keeper.py"))]
        limits = [str(lock), str(grace_s), str(deadline_s)]
        with (directory / "stdout").open("wb") as output, (directory / "stderr").open("wb") as errors:
            self._keeper = subprocess.Popen(
                [*keeper, *limits, *command],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=output,
                stderr=errors,
                cwd=request.working_directory,
                env=scrubbed(os.environ) | request.environment,
                pass_fds=[lock],
                start_new_session=True,
            )

    def prolong(self, deadline_s: float) -> None:
        """The lease goes on until then."""
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self._keeper.stdin.write(f"{deadline_s}\n".encode())

    def status(self) -> Status:
        """How far it has come."""
        code = self._keeper.poll()
        said = (self._directory / "stderr").read_bytes()[-_SAID_BYTES:].decode(errors="replace")
        return Status(number=self._number, exit_code=code, has_record=self.record() is not None, said=said.strip())

    def record(self) -> Path | None:
        """The one that it left, whole."""
        records = list((self._directory / "records").iterdir())
        return records[0] if len(records) == 1 and (records[0] / "summary.json").is_file() else None

    def end(self) -> None:
        """And wait until it has."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(2 * self._grace_s + 10)
        shutil.rmtree(self._directory, ignore_errors=True)


_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


def _call(
    method: "Callable[Concatenate[Slot, _Arguments], _Answer]",
) -> "Callable[Concatenate[Slot, _Arguments], _Answer]":
    """Of a slot: while it lasts, the slot is not let go."""

    @wraps(method)
    def call(self: "Slot", /, *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Answer:
        with self._calling:
            return method(self, *arguments, **keywords)

    return call


class Slot:
    """A machine's. Not to be called from two threads at once."""

    def __init__(
        self,
        *,
        lease_s: float,
        grace_s: float,
        on_abandoned: Callable[[], object],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`on_abandoned` is called, by another thread, when the slot has been let go because nobody has held it for
        so long that its sweep must have been killed."""
        self._directory = Path(os.environ.get(DIRECTORY_VARIABLE, DIRECTORY))
        self._program = tuple(program)
        self._grace_s = grace_s
        self._fence = Fence(lease_s)
        self._lock: int | None = None
        self._run: _Run | None = None
        self._on_abandoned = on_abandoned
        self._calling = threading.Lock()
        threading.Thread(target=self._watch, name="slot", daemon=True).start()

    @_call
    def claim(self, owner: str, session: int, given_up: int = 0) -> Description:
        """Take the slot for a session of the sweep `owner`, which begins no attempt up to the number `given_up` again:
        whatever of it ran is ended, and what dead runs left on the machine is removed. Raises RefusedError."""
        self._fence.claim(owner, session, time.monotonic(), given_up=given_up)
        self._end_run()
        if self._lock is None:
            self._lock = self._locked()
        shutil.rmtree(self._directory / "attempts", ignore_errors=True)
        _as_a_login_would()
        subprocess.run(_CLEAN, env=scrubbed(os.environ), capture_output=True, timeout=_CLEAN_TIMEOUT_S, check=False)
        described = describe_here()
        self._fence.answered(time.monotonic())
        return described

    @_call
    def start(self, session: int, request: Request | AgentRequest) -> None:
        """Begin a run, or an agent of one. Raises RefusedError, UnfitError."""
        deadline_s = self._fence.begin(session, request.number, time.monotonic())
        assert self._lock is not None
        self._end_run()
        if not Path(request.working_directory).is_dir():
            raise UnfitError(f"it has no directory {request.working_directory}, where the sweep was started")
        directory = self._directory / "attempts" / str(request.number)
        self._run = _Run(
            request,
            directory,
            program=self._program,
            lock=self._lock,
            grace_s=self._grace_s,
            deadline_s=deadline_s,
        )

    @_call
    def hold(self, session: int) -> None:
        """Keep the slot, with nothing to do. Raises RefusedError."""
        self._fence.renew(session, time.monotonic())

    @_call
    def poll(self, session: int) -> Status:
        """How far the run has come. Raises RefusedError, which says so where it has left a record all the same."""
        run = self._run
        try:
            deadline_s = self._fence.renew(session, time.monotonic())
        except RefusedError as refused:
            if run is None or session != self._fence.session or not run.status().has_record:
                raise
            raise RefusedError(f"{refused}; its run has left a record") from None
        if run is None:
            raise RefusedError("nothing runs")
        run.prolong(deadline_s)
        return run.status()

    @_call
    def files(self, session: int) -> tuple[str, list[File]]:
        """The name of the record that the run left, and what is in it. Raises RefusedError, TransferError."""
        record = self._record(session)
        files = files_of(record)  # hashes all of it, which may take longer than a lease
        self._fence.answered(time.monotonic())
        return record.name, files

    @_call
    def read(self, session: int, path: str, offset: int) -> bytes:
        """A part of a file of the record. Raises RefusedError, TransferError."""
        record = self._record(session)
        if not (record / path).resolve().is_relative_to(record.resolve()):
            raise TransferError(f"{path!r} is no path inside a record")
        with (record / path).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    @_call
    def release(self, session: int) -> None:
        """End what runs and let the slot go. Raises RefusedError where it is another session's."""
        if session != self._fence.session:
            raise RefusedError(f"the slot is held by process {self._fence.session} of {self._fence.owner}")
        self._let_go()

    def process_id(self) -> int:
        """Of whoever answers."""
        return os.getpid()

    def _record(self, session: int) -> Path:
        deadline_s = self._fence.renew(session, time.monotonic())
        record = None if self._run is None else self._run.record()
        if self._run is None or record is None:
            raise TransferError("the run has left no record")
        self._run.prolong(deadline_s)
        return record

    def _watch(self) -> None:
        """In steps: of the time in which this process was stopped, only one counts, and then it hears what was sent to
        it meanwhile."""
        answered_s, num_silent = self._fence.answered_s, 0
        while num_silent < _NUM_SILENT_STEPS:
            time.sleep(2 * (self._fence.lease_s + self._grace_s) / _NUM_SILENT_STEPS)
            with self._calling:
                num_silent = num_silent + 1 if self._fence.answered_s == answered_s else 0
                answered_s = self._fence.answered_s
                if num_silent == _NUM_SILENT_STEPS:
                    try:
                        self._let_go()
                    finally:
                        self._on_abandoned()

    def _let_go(self) -> None:
        self._end_run()
        if self._lock is not None:
            shutil.rmtree(self._directory / "attempts", ignore_errors=True)
            os.close(self._lock)
            self._lock = None
        self._fence.release()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def _locked(self) -> int:
        """The descriptor of the slot's lock, once nobody else has it: a run whose slot died is ended by its keeper."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._directory / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline_s = time.monotonic() + self._fence.lease_s + 2 * self._grace_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    holder = path.read_text().strip()
                    os.close(descriptor)
                    raise RefusedError(f"{path} is locked, last by process {holder or 'unknown'}") from None
                time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def end_process() -> None:
    """This one, at once: whoever carries the calls sees that it has died, and lets go what it held for it."""
    os._exit(0)


def _as_a_login_would() -> None:
    """What children inherit beside the environment: Ray makes its workers nice, and the first to be killed where memory
    is short."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        Path("/proc/self/oom_score_adj").write_text("0")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
