"""A sweep over machines that die, fall silent and come back late, in virtual time from a seed.

What decides is the real thing: which attempt is made and expected (Attempts), who may use a machine and until when
(Fence), and when a machine counts as lost (Contact). Modelled are machines, their clocks' independence, messages that
take as long as they like, a keeper that ends a run between its lease's end and the grace after it, actors that die and
leave a run behind, and kill -9 of the sweep between any two steps.
"""

import heapq
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.experiment.sweep import expand
from testbed.report.comparison.points import ComparedPoint
from testbed.runner.attempts import Attempts, Entry, StaleAttemptError
from testbed.runner.engines._lease import Contact, Fence, RefusedError, Timing
from testbed.runner.engines.base import Attempt
from tests.cheap_runs import summary_of
from tests.compared import compared_point

NUM_EXAMPLES: Final = int(os.environ.get("MACHINE_SEEDS", "150"))
TIMING: Final = Timing(lease_s=20.0, grace_s=15.0, margin_s=5.0, poll_s=2.0)
CLAIM_S: Final = 100.0
CALM_S: Final = 3000.0
"""From here on nothing goes wrong any more."""
END_S: Final = 50_000.0
RUN: Final = summary_of(expand({"name": "x"}).points[0].experiment, "valid", "", "", Path())


@dataclass
class Run:
    number: int
    position: int
    ends_s: float
    """By itself."""
    deadline_s: float
    """Of its lease; its keeper takes at most the grace more."""
    taking_s: float
    """That much of the grace."""

    @property
    def over_s(self) -> float:
        return min(self.ends_s, self.deadline_s + self.taking_s)

    def has_record(self, now_s: float) -> bool:
        return self.ends_s <= min(now_s, self.deadline_s)


@dataclass
class Machine:
    """What is on it: the actor's fence, if there is an actor, and runs, of which the lock allows one at a time."""

    name: str
    skew_s: float
    up: bool = True
    cut_off_until_s: float = 0.0
    fence: Fence | None = None
    incarnation: int = 0
    run: Run | None = None


@dataclass
class World:
    random: random.Random
    machines: dict[str, Machine]
    now_s: float = 0.0
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    begun: list[tuple[float, str, Run]] = field(default_factory=list)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_s + delay_s, next(self.order), action))

    def under_way_s(self, machine: Machine) -> float:
        """How long a message takes that is sent now."""
        slow_s = self.random.expovariate(1 / 20) if self.now_s < CALM_S and self.random.random() < 0.2 else 0.0
        held_s = max(0.0, machine.cut_off_until_s - self.now_s)
        return held_s + slow_s + self.random.uniform(0.001, 0.2)

    def begin(self, machine: Machine, attempt: Attempt, deadline_s: float) -> None:
        for other in self.machines.values():
            run = other.run
            alive = run is not None and run.over_s > self.now_s
            assert not (alive and run is not None and run.position == attempt.position), (
                f"{attempt.position} on {machine.name} and {other.name} at {self.now_s}"
            )
        assert machine.run is None or machine.run.over_s <= self.now_s, "two runs on one machine"
        length_s, taking_s = self.random.uniform(1, 60), self.random.uniform(0, TIMING.grace_s)
        machine.run = Run(attempt.number, attempt.position, self.now_s + length_s, deadline_s, taking_s)
        self.begun.append((self.now_s, machine.name, machine.run))


class Sweep:
    """A process of it, as testbed.runner.sweep and engines._machine go about it."""

    def __init__(self, world: World, disk: "Disk") -> None:
        self.world, self.disk, self.alive = world, disk, True
        self.attempts = Attempts(disk.last, disk.entries)
        abandoned = self.attempts.abandoned
        self.session = self.attempts.begin_session()
        self.save()
        self.contacts = {name: Contact(TIMING, world.now_s) for name in world.machines}
        self.calls: dict[str, int] = dict.fromkeys(world.machines, 0)
        self.latest: dict[str, int] = dict.fromkeys(world.machines, 0)
        self.idle: set[str] = set()
        self.waiting = {each.machine for each in abandoned if each.over_s}
        # Nothing begins before the machines have been claimed, or what ran on them has surely ended.
        world.later(TIMING.over_s, lambda: self.have_ended(*self.waiting))
        self.have_ended()
        for name in world.machines:
            self.claim(name)

    def have_ended(self, *names: str) -> None:
        """No abandoned attempt runs on these machines any more."""
        if self.alive:
            self.waiting -= set(names)
            if not self.waiting:
                self.attempts.close_abandoned()
                self.save()

    def save(self) -> None:
        self.disk.last, self.disk.entries = self.attempts.last, list(self.attempts.entries)

    def call(self, name: str, ask: Callable[[Machine], Any], then: Callable[[Any], None], *, claims: bool) -> None:
        """What the slot says to it; `then` hears the answer, or None when nothing has come in time: of a claim after a
        while, of anything else when nothing can run there any more."""
        world, machine = self.world, self.world.machines[name]
        self.calls[name] += 1
        number, incarnation = self.calls[name], machine.incarnation

        def arrives() -> None:
            if not machine.up or (not claims and machine.incarnation != incarnation):
                return
            try:
                said = ask(machine)
            except RefusedError as refused:
                said = refused
            world.later(world.under_way_s(machine), lambda: answered(said))

        def answered(said: Any) -> None:
            if not self.alive:
                return
            if self.calls[name] != number:
                if isinstance(said, dict) and said["has_record"]:
                    self.come_late(said["number"])
                return
            self.calls[name] += 1
            if not isinstance(said, RefusedError):
                self.contacts[name].heard(world.now_s)
            then(said)

        def given_up() -> None:
            if not self.alive or self.calls[name] != number:
                return
            if not claims and (left_s := self.contacts[name].left_s(world.now_s)) > 0:
                world.later(left_s, given_up)
                return
            self.calls[name] += 1
            then(None)

        world.later(world.under_way_s(machine), arrives)
        world.later(CLAIM_S if claims else self.contacts[name].left_s(world.now_s) + 1e-6, given_up)

    def claim(self, name: str, lost: Attempt | None = None) -> None:
        """And say that the attempt is lost as soon as its run has surely ended."""

        def ask(machine: Machine) -> str:
            now_s = self.world.now_s + machine.skew_s
            fence = machine.fence or Fence(TIMING.lease_s)
            fence.claim("sweep", self.session, now_s, given_up=self.latest[name])
            machine.fence = fence
            if machine.run is not None and machine.run.over_s > self.world.now_s:
                if machine.run.deadline_s > self.world.now_s:
                    machine.run.deadline_s = self.world.now_s  # its keeper's standard input ends
                raise RefusedError("its lock is held until the run has ended")
            machine.run = None
            return "claimed"

        def then(said: Any) -> None:
            over = said == "claimed" or self.contacts[name].left_s(self.world.now_s) == 0
            if lost is not None and over:
                self.attempts.lose(lost.number, "lost")
                self.save()
            if said == "claimed":
                if self.waiting:
                    self.have_ended(name)
                self.idle.add(name)
                self.hold(name)
            else:
                again = None if over else lost
                self.world.later(1.0, lambda: self.claim(name, again) if self.alive else None)

        self.call(name, ask, then, claims=True)

    def renewed(self, machine: Machine, number: int | None = None) -> float:
        if machine.fence is None:
            raise RefusedError("nobody has claimed it")
        now_s = self.world.now_s + machine.skew_s
        if number is None:
            return machine.fence.renew(self.session, now_s) - machine.skew_s
        return machine.fence.begin(self.session, number, now_s) - machine.skew_s

    def hold(self, name: str) -> None:
        def then(said: Any) -> None:
            if isinstance(said, float):
                self.world.later(TIMING.lease_s / 4, lambda: self.hold(name) if self.alive else None)
            else:
                self.idle.discard(name)
                self.claim(name)

        if name in self.idle and not self.begin(name):
            self.call(name, self.renewed, then, claims=False)

    def begin(self, name: str) -> bool:
        if self.waiting:
            return False
        attempt = self.attempts.begin(self.disk.points, 1, machine=name, over_s=TIMING.over_s)
        if attempt is None:
            return False
        self.save()
        self.idle.discard(name)
        self.latest[name] = attempt.number

        def ask(machine: Machine) -> str:
            deadline_s = self.renewed(machine, attempt.number)
            self.world.begin(machine, attempt, deadline_s)
            return "begun"

        def then(said: Any) -> None:
            if said == "begun":
                self.poll(name, attempt)
            else:
                self.claim(name, attempt)

        self.call(name, ask, then, claims=False)
        return True

    def poll(self, name: str, attempt: Attempt) -> None:
        def ask(machine: Machine) -> dict[str, Any]:
            run = machine.run
            if run is not None and run.number == attempt.number and run.has_record(self.world.now_s):
                try:
                    self.renewed(machine)
                except RefusedError:
                    return {"number": run.number, "has_record": True, "refused": True}
                return {"number": run.number, "has_record": True, "refused": False}
            deadline_s = self.renewed(machine)
            if run is None or run.number != attempt.number or run.over_s <= self.world.now_s:
                raise RefusedError("it was ended")
            run.deadline_s = max(run.deadline_s, deadline_s)
            return {"number": run.number, "has_record": False, "refused": False}

        def then(said: Any) -> None:
            if not isinstance(said, dict) or said["refused"]:
                self.claim(name, attempt)
            elif said["has_record"]:
                self.take_in(name, attempt)
            else:
                self.world.later(TIMING.poll_s, lambda: self.poll(name, attempt) if self.alive else None)

        self.call(name, ask, then, claims=False)

    def take_in(self, name: str, attempt: Attempt) -> None:
        self.attempts.expect(attempt.number)
        self.disk.taken.append(attempt.number)
        # The record has its name: from here on the point has its run, whatever the sweep still writes.
        self.disk.points[attempt.position] = with_run(self.disk.points[attempt.position])
        if self.world.now_s < CALM_S and self.world.random.random() < 0.05:
            self.alive = False  # killed before it has written that down
            return
        self.attempts.accept(attempt.number, f"record {attempt.number}")
        self.save()
        self.idle.add(name)
        self.hold(name)

    def come_late(self, number: int) -> None:
        """A result that nobody waits for any more; if it is handed in all the same, it is refused."""
        if number in self.attempts.expected:
            return
        try:
            self.attempts.accept(number, "late")
        except StaleAttemptError:
            self.attempts.refuse(number, "late")
            self.disk.num_refused += 1
        else:
            raise AssertionError("a stale record was accepted")


@dataclass
class Disk:
    points: list[ComparedPoint]
    last: int = 0
    entries: list[Entry] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    num_refused: int = 0


def with_run(point: ComparedPoint) -> ComparedPoint:
    return replace(point, runs=(*point.runs, RUN))


def disturb(world: World, sweep: list[Sweep]) -> None:
    """Something goes wrong, and after a while the next thing."""
    if world.now_s >= CALM_S:
        for machine in world.machines.values():
            machine.up = True
        return
    machine = world.random.choice(list(world.machines.values()))
    match world.random.choice(["dies", "actor dies", "is cut off", "sweep is killed", "nothing"]):
        case "dies":
            machine.up, machine.run, machine.fence = False, None, None
            machine.incarnation += 1
            world.later(world.random.uniform(1, 300), lambda: setattr(machine, "up", True))
        case "actor dies":
            machine.fence = None
            machine.incarnation += 1
            if machine.run is not None:
                machine.run.deadline_s = min(machine.run.deadline_s, world.now_s)
        case "is cut off":
            machine.cut_off_until_s = world.now_s + world.random.uniform(1, 200)
        case "sweep is killed":
            sweep[0].alive = False
    world.later(world.random.expovariate(1 / 40), lambda: disturb(world, sweep))


@settings(max_examples=NUM_EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 2**32), num_machines=st.integers(1, 4), num_points=st.integers(1, 5), repeat=st.integers(1, 4)
)
def test_each_point_once_and_never_on_two_machines(seed: int, num_machines: int, num_points: int, repeat: int) -> None:
    draw = random.Random(seed)
    names = [f"m{number}" for number in range(num_machines)]
    world = World(draw, {name: Machine(name, draw.uniform(-1e6, 1e6)) for name in names})
    disk = Disk(
        [compared_point({"x": each}, num_requested=repeat, spec_sha256=str(each)) for each in range(num_points)]
    )
    sweep = [Sweep(world, disk)]
    world.later(draw.expovariate(1 / 40), lambda: disturb(world, sweep))
    while any(point.num_missing for point in disk.points):
        stuck = sweep[0].attempts.given_up and not sweep[0].attempts.expected
        if stuck or not sweep[0].alive:
            sweep[0].alive = False
            sweep[0] = Sweep(world, disk)  # the same command
        world.now_s, _, action = heapq.heappop(world.queue)
        assert world.now_s < END_S, "it does not come to its end"
        action()
    assert [len(point.runs) for point in disk.points] == [repeat] * num_points
    assert len(disk.taken) == len(set(disk.taken)) == repeat * num_points
    assert max(Counter(entry.number for entry in disk.entries).values()) == 1
    begun = [run.number for _, _, run in world.begun]
    assert len(begun) == len(set(begun)), "an attempt begins once"
