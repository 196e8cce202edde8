"""What becomes of attempts on machines that fall silent, fail or are refused: each is heard of, whatever happens."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import expand
from testbed.runner.engines import _machine, _machines
from testbed.runner.engines._lease import Fence, RefusedError, Timing
from testbed.runner.engines._machine import arrived
from testbed.runner.engines._machines import Machines
from testbed.runner.engines._slot import Description, Request, Status
from testbed.runner.engines._transfer import File, files_of
from testbed.runner.engines.base import Attempt, Event, Finished, Gone, Late, Lost, Ready, Session
from testbed.runner.program import origin_of_runs
from testbed.store.documents import Origin
from testbed.system.command_files import files_digest
from tests.cheap_runs import CheapRuns
from tests.fake_ray import FakeRay, Node
from transports.collectives.costs import DEFAULT_COSTS

TIMING = Timing(lease_s=0.4, grace_s=0.2, margin_s=0.2, poll_s=0.01)
HERE = Description(
    origin=Origin(commit="", machine="m", settings={}, code="c", program=None, image=None, decided={}),
    delay_backends=("netem",),
    costs=DEFAULT_COSTS,
)
EXPERIMENT: Experiment = expand({"name": "x"}).points[0].experiment
Open = Callable[..., Machines]


class ScriptedSlot:
    """Holds its machine as a real one does; what it says of runs is the test's."""

    def __init__(self, node: Node, says: Callable[[int], Status | Exception], lease_s: float) -> None:
        self._fence = Fence(lease_s)
        self._says = says
        self._number = 0
        self.node = node
        self.started_s = 0.0

    def claim(self, owner: str, session: int, given_up: int = 0) -> Description:
        self._fence.claim(owner, session, time.monotonic(), given_up=given_up)
        return HERE

    def start(self, session: int, request: Request) -> None:
        self.started_s = time.monotonic()
        self._fence.begin(session, request.number, self.started_s)
        self._number = request.number

    def hold(self, session: int) -> None:
        self._fence.renew(session, time.monotonic())

    def poll(self, session: int) -> Status:
        self._fence.renew(session, time.monotonic())
        said = self._says(self._number)
        if isinstance(said, Exception):
            raise said
        return said

    def release(self, session: int) -> None:
        if session != self._fence.session:
            raise RefusedError("it is another one's")
        self._fence.release()


def goes_on(number: int) -> Status:
    return Status(number=number, exit_code=None, has_record=False, said="")


def fails(number: int) -> Status:
    return Status(number=number, exit_code=1, has_record=False, said="it burnt")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens machines for a sweep; silent ones answer again before anybody waits for them at the end."""
    monkeypatch.setattr(_machines, "describe_here", lambda: HERE)
    with ExitStack() as stack:

        def open_(ray: FakeRay, *, number: int = 1, identity: str = "a", goes_by_costs: bool = False) -> Machines:
            session = Session(
                directory=tmp_path,
                number=number,
                identity=identity,
                abandoned=(),
                run=lambda _: pytest.fail("not here"),
                arguments=(),
                goes_by_costs=goes_by_costs,
                console=Console(file=StringIO()),
            )
            made = stack.enter_context(Machines(ray, session, timing=TIMING))
            for node in ray.machines.values():
                stack.callback(node.answers.set)
            return made

        yield open_


def cluster(
    *names: str,
    says: Callable[[int], Status | Exception] = goes_on,
    lease_s: float = TIMING.lease_s,
    made: Callable[..., ScriptedSlot] = ScriptedSlot,
) -> FakeRay:
    """Where no lease is to end, slots have a long one: a busy machine may let its sweep wait for half a second."""
    return FakeRay({f"id-{name}": Node(name) for name in names}, lambda node: made(node, says, lease_s))


def heard(machines: Machines, *kinds: type[Event]) -> list[Event]:
    """Events until one of each of these kinds has come; a sweep that hears nothing would wait for ever."""
    found: list[Event] = []
    over = threading.Event()

    def listen() -> None:
        while not all(any(isinstance(event, kind) for event in found) for kind in kinds):
            found.append(machines.next_event())
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    assert over.wait(30), f"only {found}"
    return found


def attempt(machine: str, number: int = 2) -> Attempt:
    return Attempt(number=number, position=0, machine=machine)


def test_an_attempt_that_ends_in_what_nobody_has_foreseen_is_lost_and_not_waited_for(
    opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machines = opened(cluster("a", "b"))
    gone = tmp_path / "removed"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()  # what a run is requested with cannot be said any more
    machines.start(attempt("a"), EXPERIMENT)
    found = heard(machines, Lost, Gone)
    lost = next(event for event in found if isinstance(event, Lost))
    assert lost.number == 2
    assert "FileNotFoundError" in lost.reason
    monkeypatch.chdir(tmp_path)


def test_a_job_given_to_a_machine_that_has_just_fallen_silent_is_lost_although_the_machine_may_return(
    opened: Open,
) -> None:
    ray = cluster("a", "b")
    machines = opened(ray)
    heard(machines, Ready)
    ray.machines["id-a"].answers.clear()
    time.sleep(TIMING.lease_s / 2)  # its thread asks whether it is there, and hears nothing
    machines.start(attempt("a"), EXPERIMENT)
    found = heard(machines, Lost, Gone)
    gone = next(event for event in found if isinstance(event, Gone))
    assert gone.may_return
    assert [event.number for event in found if isinstance(event, Lost)] == [2]
    ray.machines["id-a"].answers.set()
    assert [event.machine for event in heard(machines, Ready) if isinstance(event, Ready)] == ["a"]


def test_every_machine_has_answered_before_the_sweep_begins_and_what_came_first_is_said_first(opened: Open) -> None:
    """A machine is ready and falls silent before the last one has answered at all."""
    is_silent = threading.Event()

    class FallsSilent(ScriptedSlot):
        """When it says for the first time that it is there: by then its sweep has said that it is ready."""

        def hold(self, session: int) -> None:
            if self.node.address == "a" and not is_silent.is_set():
                self.node.answers.clear()
                is_silent.set()
            super().hold(session)

    ray = cluster("a", "b", made=FallsSilent)
    ray.machines["id-b"].answers.clear()

    def later() -> None:
        is_silent.wait(30)
        time.sleep(TIMING.over_s + TIMING.lease_s)
        ray.machines["id-b"].answers.set()

    thread = threading.Thread(target=later)
    thread.start()
    machines = opened(ray)
    assert ray.machines["id-b"].answers.is_set(), "it did not wait for every machine"
    thread.join()
    of_a = [event for event in heard(machines, Gone, Ready) if isinstance(event, Ready | Gone) and event.machine == "a"]
    assert [type(event) for event in of_a][:2] == [Ready, Gone]


def test_a_silent_machine_loses_its_attempt_once_nothing_runs_there_and_is_late_when_it_returns(opened: Open) -> None:
    slots: list[ScriptedSlot] = []

    def made(*arguments: Any) -> ScriptedSlot:
        slots.append(ScriptedSlot(*arguments))
        return slots[-1]

    def falls_silent(number: int) -> Status:
        ray.machines["id-a"].answers.clear()  # what it says of the run is held back already
        return goes_on(number)

    ray = cluster("a", says=falls_silent, lease_s=30.0, made=made)
    machines = opened(ray)
    machines.start(attempt("a"), EXPERIMENT)
    found = heard(machines, Lost, Gone)
    # Its last answer was that to the start, from which on a run may have so long.
    assert time.monotonic() - slots[0].started_s > TIMING.lease_s + TIMING.grace_s
    assert [event.number for event in found if isinstance(event, Lost)] == [2]
    ray.machines["id-a"].answers.set()
    found = heard(machines, Late, Ready)
    assert [event.number for event in found if isinstance(event, Late)] == [2]


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (fails, "its run left no record (exit code 1: it burnt)"),
        (lambda _: RefusedError("the lease ended"), "the lease ended"),
        (lambda _: OSError("the disk is full"), "its slot failed: OSError: the disk is full"),
    ],
)
def test_every_attempt_that_comes_to_nothing_is_lost_once_and_its_machine_is_ready_again(
    opened: Open, says: Callable[[int], Status | Exception], reason: str
) -> None:
    machines = opened(cluster("a", says=says, lease_s=30.0))
    heard(machines, Ready)
    for number in (2, 3):
        machines.start(attempt("a", number), EXPERIMENT)
        found = heard(machines, Lost, Ready)
        assert [(event.number, event.reason) for event in found if isinstance(event, Lost)] == [(number, reason)]
        assert not [event for event in found if isinstance(event, Finished)]


def test_a_sweep_in_a_directory_of_the_same_name_elsewhere_does_not_take_the_slot(opened: Open) -> None:
    ray = cluster("a", lease_s=30.0)
    machines = opened(ray, number=3)
    machines.start(attempt("a", 4), EXPERIMENT)
    heard(machines, Ready)
    other = opened(ray, number=9, identity="b")
    (gone,) = heard(other, Gone)
    assert isinstance(gone, Gone)
    assert re.fullmatch(r"another sweep has the slot: .* \(a\)", gone.reason)
    with pytest.raises(MissingRequirementError, match="no machine of the Ray cluster can be used"):
        other.next_event()


def test_a_machine_that_was_fitted_otherwise_makes_no_runs_that_are_planned_by_what_was_fitted(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = replace(HERE, costs=replace(DEFAULT_COSTS, message_s=60e-6))
    monkeypatch.setattr(_machines, "describe_here", lambda: fitted)
    heard(opened(cluster("a")), Ready)
    (gone,) = heard(opened(cluster("a"), goes_by_costs=True), Gone)
    assert isinstance(gone, Gone)
    assert gone.reason.startswith("another result of `testbed fit`")


def test_a_machine_with_another_image_makes_one_run_and_no_further_ones(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is refused, and so would be all others: a point that meets it again and again would be given up."""
    built = CheapRuns(tmp_path / "results", runtime={"kind": "docker", "image_id": "sha256:2"})(EXPERIMENT)
    here = origin_of_runs(EXPERIMENT)._replace(image="sha256:1")
    monkeypatch.setattr(_machine, "origin_of_runs", lambda _: here)

    class LeavesRecord(ScriptedSlot):
        def files(self, _session: int) -> tuple[str, list[File]]:
            return "record", files_of(Path(built.record))

        def read(self, _session: int, path: str, offset: int) -> bytes:
            return (Path(built.record) / path).read_bytes()[offset:]

    def ended(number: int) -> Status:
        return Status(number=number, exit_code=0, has_record=True, said="")

    machines = opened(cluster("a", says=ended, lease_s=30.0, made=LeavesRecord))
    heard(machines, Ready)
    machines.start(attempt("a"), EXPERIMENT)
    lost, gone = heard(machines, Lost, Gone)
    assert isinstance(lost, Lost)
    assert isinstance(gone, Gone)
    assert lost.reason == gone.reason
    assert re.search(r"another image .*: sha256:2 instead of sha256:1", gone.reason)
    assert not gone.may_return


def test_a_record_of_another_program_is_not_the_one_that_was_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ddp.py").write_text("print(1)\n")
    argv = ["python", "ddp.py"]
    experiment = expand({"name": "x", "workload": {"kind": "command", "argv": argv}}).points[0].experiment
    here = origin_of_runs(experiment)
    same = CheapRuns(tmp_path / "results", program_sha256=files_digest(argv, tmp_path))(experiment)
    assert arrived(Path(same.record), experiment, here) == same
    other = CheapRuns(tmp_path / "results", program_sha256="0" * 64)(experiment)
    with pytest.raises(SpecError, match="it was made otherwise than it would be here: another program"):
        arrived(Path(other.record), experiment, here)
