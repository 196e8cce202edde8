"""How long computing lasts: as long as it takes, so many times as long, or as long as a device would take.

The trainer tells a pacer where in an iteration it is, and a pacer waits. Waiting is sleeping: the core is free for
others, and for this worker's own communication. Between the parts of computing lies communication, which is left alone.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from testbed.traces.schedule import ComputeSchedule

if TYPE_CHECKING:
    import torch


class InputMoments(NamedTuple):
    """Of an iteration's batch, as far as the iteration waited for it."""

    read_s: float
    """The host had it; not before the iteration began."""
    copied_s: float
    """It was where it is computed with, and computing began."""


class ComputePacer(ABC):
    """The pacer of one worker's computing. Moments are of CLOCK_MONOTONIC."""

    has_schedule: bool = False
    """Whether moments are due whatever the host does meanwhile, so that it may go on before they have come."""
    pace_s: float = 0.0
    """What the computing of an iteration should last, slowdown included; 0: as long as it takes."""
    overrun_s: float = 0.0
    """By how much a gradient of the present iteration was handed over later than it was due, at most."""

    @abstractmethod
    def bind(self, parameters: "Iterable[torch.Tensor]") -> None:
        """A model's, in the order of registration: those that the other methods will name."""

    @abstractmethod
    def restart(self) -> None:
        """What comes next does not follow the iteration before: a barrier lies between."""

    @abstractmethod
    def begin(self, slowdown: float) -> float:
        """An iteration begins, whose computing takes `slowdown` times as long; returns when it has begun."""

    @abstractmethod
    def data_loaded(self, read_s: float | None) -> InputMoments:
        """The host has the iteration's batch, which was read at that moment (None: it had not to be read); says when it
        is there and when computing begins."""

    @abstractmethod
    def before_waiting(self, parameters: "Iterable[torch.Tensor]") -> None:
        """In the forward pass, wait until it comes to these parameters, which a gradient will be waited for."""

    @abstractmethod
    def after_waiting(self, waited_s: float) -> None:
        """Go on with the forward pass after so much waiting for a gradient."""

    @abstractmethod
    def forward_ended(self) -> float:
        """The host is through with the forward pass; returns when the forward pass has ended."""

    @abstractmethod
    def hand_over(self, parameters: "Iterable[torch.Tensor]") -> None:
        """Wait until backward has made the gradients of these parameters."""

    @abstractmethod
    def backward_ended(self) -> None:
        """Wait until backward has made all gradients."""

    @abstractmethod
    def update(self, at_s: float) -> None:
        """The optimizer's step begins, at that moment."""

    @abstractmethod
    def update_ended(self) -> float:
        """The host is through with the optimizer's step; returns when that has ended."""

    @abstractmethod
    def end(self) -> float:
        """The host is through with the iteration; returns when that has ended."""


class StretchingPacer(ComputePacer):
    """Real computing, made to last `slowdown` times as long.

    It is measured on the clock, so that what other processes take from it is stretched as well.
    """

    def __init__(self) -> None:
        self._slowdown = 1.0
        self._begun_s = 0.0

    def bind(self, parameters: "Iterable[torch.Tensor]") -> None:
        """All computing is alike."""

    def restart(self) -> None:
        """Each iteration begins when it begins."""

    def begin(self, slowdown: float) -> float:
        """Now."""
        self._slowdown = slowdown
        self._begun_s = time.monotonic()
        return self._begun_s

    def data_loaded(self, read_s: float | None) -> InputMoments:
        """Now, where it is computed with; reading is not computing, and not stretched."""
        now_s = time.monotonic()
        if read_s is not None:
            self._begun_s = now_s
        return InputMoments(now_s, now_s)

    def before_waiting(self, parameters: "Iterable[torch.Tensor]") -> None:  # noqa: ARG002 (all computing counts)
        """What has been computed is stretched."""
        self._stretch()

    def after_waiting(self, waited_s: float) -> None:  # noqa: ARG002 (it is not computing)
        """Computing goes on."""
        self._begun_s = time.monotonic()

    def forward_ended(self) -> float:
        """Once it is stretched."""
        return self._stretch()

    def hand_over(self, parameters: "Iterable[torch.Tensor]") -> None:  # noqa: ARG002 (all computing counts)
        """What has been computed is stretched: a straggler's bucket is handed over when a slower worker's would be, so
        that its communication overlaps the rest of the backward pass as a slower worker's does."""
        self._stretch()

    def backward_ended(self) -> None:
        """What has been computed is stretched."""
        self._stretch()

    def update(self, at_s: float) -> None:  # noqa: ARG002 (it begins when the host does)
        """Now."""
        self._begun_s = time.monotonic()

    def update_ended(self) -> float:
        """Once it is stretched."""
        return self._stretch()

    def end(self) -> float:
        """Now."""
        return time.monotonic()

    def _stretch(self) -> float:
        """Return when the computing since it began, or since the last stretch, has taken so many times as long."""
        if self._slowdown > 1:
            time.sleep((self._slowdown - 1) * (time.monotonic() - self._begun_s))
        self._begun_s = time.monotonic()
        return self._begun_s


class SchedulePacer(ComputePacer):
    """Computing that lasts as long as a device would take, whatever the host does meanwhile.

    Every moment is due at a fixed distance from the iteration's begin, and the next iteration begins when this one's
    optimizer step is due to end: what the host spends, on computing, copies, hooks, the optimizer and bookkeeping, lies
    inside the waits and is never added to them. Where the host is late it catches up in the next wait; by how much
    gradients were late is counted.
    """

    has_schedule = True

    def __init__(self, schedule: ComputeSchedule) -> None:
        """In seconds of the wall clock."""
        self._schedule = schedule
        self._needed_s: Mapping[torch.Tensor, float] = {}
        self._ready_s: Mapping[torch.Tensor, float] = {}
        self._slowdown = 1.0
        self._begun_s = 0.0
        self._computing_s: float | None = None
        """When computing began in the present or last iteration; None: a barrier lies between."""
        # Of computing that nothing holds up: what its loading takes longer than computing with the batch before.
        self._loading_left_s = schedule.input_s - schedule.compute_s
        """Of the next batch, at the end of the last iteration before a barrier; negative: for how long the host has had
        it by then, in which it is copied."""
        self._zero_s = 0.0
        """When computing would have begun, had it waited for nothing since."""
        self._following_s: float | None = None
        """When the next iteration begins; None: at the call of :meth:`begin`."""

    def bind(self, parameters: "Iterable[torch.Tensor]") -> None:
        """The schedule's tensors, in their order."""
        parameters = list(parameters)
        self._needed_s = dict(zip(parameters, self._schedule.needed_s, strict=True))
        self._ready_s = dict(zip(parameters, self._schedule.ready_s, strict=True))

    def restart(self) -> None:
        """Returns once the last optimizer step is due to have ended; :meth:`begin` then begins the next iteration."""
        if self._following_s is not None:
            time.sleep(max(0.0, self._following_s - time.monotonic()))
            if self._computing_s is not None:
                self._loading_left_s = self._computing_s + self._schedule.input_s - self._following_s
        self._computing_s = self._following_s = None

    def begin(self, slowdown: float) -> float:
        """Begin an iteration; returns when the one before has ended."""
        now_s = time.monotonic() if self._following_s is None else self._following_s
        self._begun_s = self._zero_s = now_s
        self._slowdown = slowdown
        self.pace_s = slowdown * self._schedule.compute_s
        self.overrun_s = 0.0
        return now_s

    def data_loaded(self, read_s: float | None) -> InputMoments:
        """Where nothing was read, a batch takes the time that the schedule says, since the one before it was computed
        with; over a barrier its loading stands still, so that the first iteration of a phase is like the others. The
        host's own loading is not the device's."""
        schedule, begun_s = self._schedule, self._begun_s
        if read_s is None and self._computing_s is not None:
            read_s = self._computing_s + schedule.input_s
        elif read_s is None:
            read_s = begun_s + self._loading_left_s
        copied_s = max(begun_s, read_s + schedule.host_to_device_s)
        self._computing_s = self._zero_s = copied_s
        return InputMoments(min(copied_s, max(begun_s, read_s)), copied_s)

    def before_waiting(self, parameters: "Iterable[torch.Tensor]") -> None:
        """Wait until the first of these parameters is needed."""
        self._wait(min(self._needed_s[each] for each in parameters))

    def after_waiting(self, waited_s: float) -> None:
        """Everything is due so much later."""
        self._zero_s += waited_s

    def forward_ended(self) -> float:
        """It is due to; the host may go on with backward meanwhile, because no gradient is handed over before."""
        return self._due_s(self._schedule.forward_s)

    def hand_over(self, parameters: "Iterable[torch.Tensor]") -> None:
        """Wait until the last of these gradients is due."""
        self._wait_for_gradients(max(self._ready_s[each] for each in parameters))

    def backward_ended(self) -> None:
        """Wait until the last gradient is due."""
        self._wait_for_gradients(self._schedule.backward_s)

    def update(self, at_s: float) -> None:
        """The optimizer step begins, once layers at the front that have no gradients are through, too; it lasts as long
        as the schedule says."""
        computed_s = self._due_s(self._schedule.forward_s + self._schedule.backward_s)
        self._following_s = max(at_s, computed_s) + self._slowdown * self._schedule.update_s

    def update_ended(self) -> float:
        """It is due to; the host may go on with the next iteration meanwhile."""
        assert self._following_s is not None, "update() comes before"
        return self._following_s

    def end(self) -> float:
        """With the optimizer's step: the host's bookkeeping is not the device's."""
        return self.update_ended()

    def _wait_for_gradients(self, ready_s: float) -> None:
        at_s = self._schedule.forward_s + ready_s
        self._wait(at_s)
        self.overrun_s = max(self.overrun_s, time.monotonic() - self._due_s(at_s))

    def _due_s(self, at_s: float) -> float:
        return self._zero_s + self._slowdown * at_s

    def _wait(self, at_s: float) -> None:
        time.sleep(max(0.0, self._due_s(at_s) - time.monotonic()))
