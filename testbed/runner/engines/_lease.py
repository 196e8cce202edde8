"""Who may use a machine's slot, and until when a run on it may go on. Pure.

A sweep holds a slot by a lease. Whoever makes the run ends it when the lease does, so that a sweep that has not heard
of a machine for longer than that knows that nothing of it runs there any more, without having reached it (Gray and
Cheriton, Leases, SOSP 1989). No clocks are compared: each call that the slot answers proves that its previous answer
may have arrived, so it prolongs the lease to `lease_s` after *that* answer was given, which is no later than `lease_s`
after the sweep got it. Calls that arrive later than that change nothing, however long they were under way.

Sessions have fencing numbers: a later session of the same sweep takes the slot at once, an earlier one is refused.
"""

import math
from dataclasses import dataclass


class RefusedError(Exception):
    """The slot is not this session's, or not in time."""


class UnfitError(Exception):
    """The machine lacks something that the runs need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How soon a machine that does not answer counts as lost."""

    lease_s: float = 20.0
    grace_s: float = 15.0
    """So long a run that is to end has to remove what it made, before it is killed."""
    margin_s: float = 5.0
    """For clocks that do not run alike, and processes that wait for a core."""
    poll_s: float = 0.5

    @property
    def over_s(self) -> float:
        """After a machine's last answer was received: by then no run goes on there that was going on before it."""
        return self.lease_s + self.grace_s + self.margin_s


class Fence:
    """The slot's side. Times are the slot's own clock."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.owner = ""
        self.session = 0
        self._given_up = 0
        self.answered_s = -math.inf
        """When the latest call that was not refused was answered."""

    def claim(self, owner: str, session: int, now_s: float, *, given_up: int = 0) -> None:
        """Take the slot; attempts up to the number `given_up` are not begun any more.

        Raises RefusedError where a later session of the owner, or another owner, has it.
        """
        if owner == self.owner and session < self.session:
            raise RefusedError(f"a later process ({self.session}) of the same sweep has the slot")
        if owner != self.owner and now_s < self.answered_s + self.lease_s:
            raise RefusedError(f"another sweep has the slot: {self.owner}")
        self._given_up = max(given_up, self._given_up if owner == self.owner else 0)
        self.owner, self.session = owner, session
        self.answered_s = now_s

    def begin(self, session: int, number: int, now_s: float) -> float:
        """The same as :meth:`renew`, for an attempt that is to begin. Raises RefusedError where it was given up, or a
        later one has begun: the call was under way for too long."""
        if session == self.session and number <= self._given_up:
            raise RefusedError(f"attempt {number} was given up before it began")
        deadline_s = self.renew(session, now_s)
        self._given_up = number
        return deadline_s

    def renew(self, session: int, now_s: float) -> float:
        """A call of that session: until when its run may go on. Raises RefusedError."""
        if session != self.session:
            raise RefusedError(f"the slot is held by process {self.session} of {self.owner}")
        deadline_s = self.answered_s + self.lease_s
        if now_s >= deadline_s:
            raise RefusedError(f"the lease ended {now_s - deadline_s:.1f} s before this call came")
        self.answered_s = now_s
        return deadline_s

    def answered(self, now_s: float) -> None:
        """The answer to the call that came last is given only now: it took a while."""
        self.answered_s = now_s

    def release(self) -> None:
        """Nobody has the slot."""
        self.owner, self.answered_s = "", -math.inf


class Contact:
    """The sweep's side of one machine. Times are the sweep's own clock."""

    def __init__(self, timing: Timing, now_s: float) -> None:
        self._over_s = timing.over_s
        self._heard_s = now_s

    def heard(self, now_s: float) -> None:
        """An answer has come."""
        self._heard_s = now_s

    def left_s(self, now_s: float) -> float:
        """How long a run there may still go on if nothing more is heard."""
        return max(0.0, self._heard_s + self._over_s - now_s)
