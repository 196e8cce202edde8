"""One machine's slot: its run is a process of its own, sees no more than a login does, and ends with its lease."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.runner.engines import _slot
from testbed.runner.engines._keeper import ENDED
from testbed.runner.engines._lease import RefusedError, UnfitError
from testbed.runner.engines._slot import DIRECTORY_VARIABLE, AgentRequest, Description, Request, Slot, scrubbed
from testbed.runner.engines._transfer import File, files_of
from testbed.store.documents import Origin
from testbed.system.processes import RUN_ID_VARIABLE
from transports.collectives.costs import DEFAULT_COSTS

HERE = Description(
    origin=Origin(commit="", machine="m", settings={}, code="c", program=None, image=None, decided={}),
    delay_backends=("netem",),
    costs=DEFAULT_COSTS,
)
SAYS = """
import json, os, pathlib, sys, time
directory = pathlib.Path(sys.argv[sys.argv.index("--output") + 1]) / "record"
directory.mkdir()
(directory / "said.json").write_text(json.dumps([os.getpid(), dict(os.environ), sys.argv[1:], os.nice(0), os.getcwd()]))
while pathlib.Path("wait").exists():
    time.sleep(0.01)
(directory / "summary.json").write_text("{}")
"""
Open = Callable[..., Slot]


@pytest.fixture
def slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Makes slots of one machine; what still runs at the end is ended."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "slot"))
    monkeypatch.setattr(_slot, "describe_here", lambda: HERE)
    monkeypatch.setattr(_slot, "_CLEAN", ("true",))
    monkeypatch.setattr(_slot, "_as_a_login_would", lambda: None)
    made: list[Slot] = []

    def make(*, lease_s: float = 5.0, grace_s: float = 1.0, abandoned: threading.Event | None = None) -> Slot:
        program = (sys.executable, "-c", SAYS)
        made.append(
            Slot(lease_s=lease_s, grace_s=grace_s, program=program, on_abandoned=(abandoned or threading.Event()).set)
        )
        return made[-1]

    yield make
    for each in made:
        each.release(each._fence.session)


def request(folder: Path, number: int = 7) -> Request:
    return Request(number=number, spec="name: x", arguments=("--calibrate", "full"), working_directory=str(folder))


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def said(folder: Path, number: int = 7) -> Path:
    return folder / "slot" / "attempts" / str(number) / "records" / "record" / "said.json"


def written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def processes(folder: Path, number: int = 7) -> list[int]:
    """Those of an attempt, its keeper included: their command lines name its spec. One that has ended has none."""
    spec, found = os.fsencode(folder / "slot" / "attempts" / str(number) / "spec.yaml"), []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found += [int(each.parent.name)] if spec in each.read_bytes().split(b"\0") else []
    return found


def test_a_run_is_executed_and_its_record_is_read(tmp_path: Path, slot: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = slot()
    assert one.claim("sweep", 1) == HERE
    one.start(1, request(tmp_path))
    until(lambda: one.poll(1).exit_code is not None)
    status = one.poll(1)
    assert (status.exit_code, status.has_record, status.was_ended) == (0, True, False)
    name, files = one.files(1)
    assert (name, [file.path for file in files]) == ("record", ["said.json", "summary.json"])
    pid, environment, arguments, _, folder = json.loads(one.read(1, "said.json", 0))
    assert pid != os.getpid()
    assert [key for key in environment if key.startswith(("RAY", "PYTHON", "OMP"))] == []
    assert arguments[0] == str(tmp_path / "slot/attempts/7/spec.yaml")
    assert arguments[-3:] == ["--json", "--calibrate", "full"]
    assert folder == str(tmp_path)
    one.release(1)
    assert not (tmp_path / "slot" / "attempts").exists()


def test_only_what_a_login_has_is_kept_of_an_environment() -> None:
    kept = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "XDG_CACHE_HOME": "/c", "DOCKER_HOST": "d"}
    others = ("RAY_JOB_ID", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "TESTBED_RUN_ID")
    assert scrubbed({**kept, **dict.fromkeys(others, "1"), "RANK": "0"}) == kept


def test_a_run_ends_with_its_lease_although_nobody_can_say_so(tmp_path: Path, slot: Open) -> None:
    """What is looked at does not depend on how far the run has come by then: on a busy machine its Python is still
    starting."""
    (tmp_path / "wait").touch()
    one, begun_s = slot(lease_s=0.7), time.monotonic()
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    assert one._run is not None
    assert one._run._keeper.wait(30) == ENDED, "it has ended what had begun"
    assert time.monotonic() - begun_s >= 0.7
    assert processes(tmp_path) == []
    with suppress(RefusedError):  # the slot's own lease ends somewhat later: it begins with a later answer
        assert one.poll(1).was_ended
    one._fence.lease_s = 30.0  # the next run may take as long as it likes to begin
    one.claim("sweep", 1)
    one.start(1, request(tmp_path, 8))
    until(lambda: written(said(tmp_path, 8)))
    assert len(processes(tmp_path, 8)) == 2, "the run and its keeper"


def test_a_late_record_is_spoken_of_and_not_given(tmp_path: Path, slot: Open) -> None:
    one = slot(lease_s=30.0)
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    until((said(tmp_path).parent / "summary.json").exists)
    one._fence.answered(time.monotonic() - 30.1)  # so long ago that its lease has ended
    with pytest.raises(RefusedError, match="its run has left a record"):
        one.poll(1)
    with pytest.raises(RefusedError, match="the lease ended"):
        one.files(1)


def test_a_record_that_takes_longer_to_hash_than_a_lease_lasts_is_given_all_the_same(
    tmp_path: Path, slot: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed_s = 0.0

    def slowly(record: Path) -> list[File]:
        nonlocal hashed_s
        hashed_s += 31.0
        return files_of(record)

    monkeypatch.setattr(_slot, "files_of", slowly)
    # The slot's clock alone: what the machine does between two calls of the test is no part of the lease.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + hashed_s, sleep=time.sleep)
    monkeypatch.setattr(_slot, "time", clock)
    one = slot(lease_s=30.0)
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    until(lambda: one.poll(1).exit_code is not None)
    assert [file.path for file in one.files(1)[1]] == ["said.json", "summary.json"]
    assert hashed_s == 31.0
    assert one.read(1, "summary.json", 0) == b"{}"


def test_a_later_session_ends_what_an_earlier_one_runs(tmp_path: Path, slot: Open) -> None:
    (tmp_path / "wait").touch()
    one = slot()
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    until(lambda: written(said(tmp_path)))
    pid = json.loads(said(tmp_path).read_text())[0]
    one.claim("sweep", 2)
    assert not Path(f"/proc/{pid}").exists()
    for call in (one.poll, one.hold, one.files, one.release):
        with pytest.raises(RefusedError, match="held by process 2"):
            call(1)
    with pytest.raises(RefusedError, match="another sweep has the slot: sweep"):
        one.claim("another", 9)


def test_the_lock_is_held_as_long_as_the_run_lives(tmp_path: Path, slot: Open) -> None:
    """A slot whose process is killed takes its keeper's standard input with it; a stopped keeper keeps the lock."""
    (tmp_path / "wait").touch()
    one = slot(lease_s=60.0, grace_s=0.3)  # longer than the other one waits: it is not what ends the run
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    until(lambda: written(said(tmp_path)))
    pid = json.loads(said(tmp_path).read_text())[0]
    assert one._run is not None
    keeper = one._run._keeper
    assert keeper.stdin is not None
    assert one._lock is not None
    keeper.send_signal(signal.SIGSTOP)
    keeper.stdin.close()
    os.close(one._lock)
    one._lock = None
    another = slot(lease_s=0.1, grace_s=0.1)
    with pytest.raises(RefusedError, match=f"lock is locked, last by process {os.getpid()}"):
        another.claim("sweep", 2)
    assert Path(f"/proc/{pid}").exists()
    keeper.send_signal(signal.SIGCONT)
    another._fence.lease_s = 30.0  # so long it waits for the lock, which the keeper may need a while to let go
    another.claim("sweep", 2)
    assert not Path(f"/proc/{pid}").exists()


def test_a_slot_whose_sweep_was_killed_is_let_go_and_another_sweep_of_any_cluster_gets_it(
    tmp_path: Path, slot: Open
) -> None:
    (tmp_path / "wait").touch()
    abandoned = threading.Event()
    one = slot(lease_s=0.2, grace_s=0.1, abandoned=abandoned)
    one.claim("killed", 1)
    one.start(1, request(tmp_path))
    assert abandoned.wait(60.0)
    assert processes(tmp_path) == []
    assert not (tmp_path / "slot" / "attempts").exists()
    assert slot(lease_s=0.1, grace_s=0.1).claim("another", 1) == HERE, "there is nothing to wait for"


def test_a_slot_that_is_held_or_in_a_call_is_not_let_go(slot: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watch wakes when the test says so: a busy machine has no say in what is silence."""
    asleep, wake = threading.Semaphore(0), threading.Semaphore(0)
    others = set(threading.enumerate())  # slots of other tests

    def sleep(time_s: float) -> None:
        if threading.current_thread() in others:
            time.sleep(time_s)
        else:
            asleep.release()
            wake.acquire()

    monkeypatch.setattr(_slot, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    abandoned = threading.Event()
    one = slot(lease_s=60.0, abandoned=abandoned)
    assert asleep.acquire(timeout=60.0)
    asleep.release()
    one.claim("sweep", 1)
    for _ in range(3):
        for _ in range(_slot._NUM_SILENT_STEPS):  # in the first of which there was a call
            assert asleep.acquire(timeout=60.0)
            wake.release()
        assert asleep.acquire(timeout=60.0)
        asleep.release()
        assert not abandoned.is_set()
        one.hold(1)
    with one._calling:  # a record is hashed, say
        for _ in range(_slot._NUM_SILENT_STEPS + 1):
            wake.release()
        assert not abandoned.wait(0.1)
    assert abandoned.wait(60.0)


def test_a_machine_without_the_directory_cannot_make_the_run(tmp_path: Path, slot: Open) -> None:
    one = slot()
    one.claim("sweep", 1)
    with pytest.raises(UnfitError, match="no directory /no/such"):
        one.start(1, request(Path("/no/such")))


def test_a_killed_run_was_ended(tmp_path: Path, slot: Open) -> None:
    (tmp_path / "wait").touch()
    one = slot()
    one.claim("sweep", 1)
    one.start(1, request(tmp_path))
    until(lambda: written(said(tmp_path)))
    os.kill(json.loads(said(tmp_path).read_text())[0], signal.SIGKILL)
    until(lambda: one.poll(1).exit_code is not None)
    assert (one.poll(1).was_ended, one.poll(1).has_record) == (True, False)


def test_machines_are_unlike_in_what_results_depend_on() -> None:
    assert HERE.unlike(HERE, with_costs=True) == ()
    fitted = replace(DEFAULT_COSTS, message_s=60e-6)
    other = Description(origin=HERE.origin._replace(machine="n", code="d"), delay_backends=(), costs=fitted)
    found = ("another machine (n)", "another version of the code or its packages", "other delay backends (none)")
    assert HERE.unlike(other, with_costs=False) == found
    assert HERE.unlike(other, with_costs=True)[: len(found)] == found
    assert HERE.unlike(other, with_costs=True)[-1].startswith("another result of `testbed fit`")


def test_machines_whose_tcp_is_set_otherwise_are_unlike() -> None:
    one, other = (
        replace(HERE, origin=HERE.origin._replace(settings={"net.ipv4.tcp_wmem": text})) for text in ("1 2 4", "1 2 3")
    )
    assert one.unlike(other, with_costs=False) == ("net.ipv4.tcp_wmem 1 2 3 instead of 1 2 4",)


def test_this_machine_is_described() -> None:
    found = _slot.describe_here()
    assert "cores, Linux" in found.origin.machine
    assert found.origin.code is not None


def test_a_slot_starts_the_agent_of_a_run_elsewhere_and_ends_it_when_it_is_let_go(slot: Open, tmp_path: Path) -> None:
    made, path = slot(), tmp_path / "m1.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.bind(str(path))
        waiting.listen(1)
        waiting.settimeout(60)
        made.claim("a run", 1)
        made.start(1, AgentRequest(number=1, run_id="260915t142233-3fa9c1", path=str(path)))
        connection, _ = waiting.accept()
    with connection:
        agent = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        variables = Path(f"/proc/{agent}/environ").read_bytes().decode().split("\0")
        assert f"{RUN_ID_VARIABLE}=260915t142233-3fa9c1" in variables
        assert not any(each.startswith(DIRECTORY_VARIABLE) for each in variables)
        assert made.poll(1).exit_code is None
        made.release(1)
        assert connection.recv(1) == b""
    assert not Path(f"/proc/{agent}").exists()
