"""A barrier that names the ranks that did not come.

Ranks meet in the group's store, beside its data connections: the barrier is for finding out who is stuck, so it must
work while operations are stuck, and a rank that does not come must not cost the others their group.

Each rank writes that it has arrived. Rank 0, once it sees everybody, writes `passed`; whoever runs out of time before
that writes who is missing. Only the first of these counts (compare-and-set), so all ranks end alike, and one that comes
late reads that it was given up, instead of meeting the others' next barrier.

A store outlives the groups that meet in it: what a group has written must not let one of the same name, made later,
pass. So each member counts how often it has made the group, and the n-th of one meets the n-th of the others.
"""

import time
from collections.abc import Sequence
from typing import Final, Protocol

POLL_MIN_S: Final = 0.001
POLL_MAX_S: Final = 0.05
"""Between two looks into the store: at first often, because most barriers pass at once."""

_PASSED: Final = "passed"


class MeetingStore(Protocol):
    """What is used of a torch.distributed store."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them have been written."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write if the key holds what is expected (an empty string: nothing), and say what it holds now."""

    def delete_key(self, key: str, /) -> bool:
        """Forget a key."""


class MonitoredBarrier:
    """One member's side of a group's monitored barriers, the n-th of each meeting the n-th of the others."""

    def __init__(self, store: MeetingStore, rank: int, size: int, timeout_s: float, *, number: int = 1) -> None:
        """`number`: how often this member has made the group over this store."""
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._prefix = f"monitored_barrier/{number}"
        self._number = 0

    def wait(self, timeout_s: float | None = None, *, wait_all_ranks: bool = False) -> None:
        """Return when every rank has come, within `timeout_s` or the group's timeout.

        Raises RuntimeError otherwise, in the words of torch's gloo, which programs look for. Rank 0 names the first
        rank that is missing, or all of them with `wait_all_ranks`; any other rank says that it has come itself and who
        has not.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if limit_s <= 0:
            raise RuntimeError(f"Rank {self._rank} timed out in monitoredBarrier after 0 ms.")
        deadline_s = time.monotonic() + limit_s
        self._number += 1
        self._store.set(self._arrival(self._rank), "here")
        outcome = self._outcome(deadline_s)
        if outcome != _PASSED:
            missing = [int(rank) for rank in outcome.split(",")]
            raise RuntimeError(_complaint(self._rank, missing, limit_s, wait_all_ranks=wait_all_ranks))
        self._forget_previous()

    def _outcome(self, deadline_s: float) -> str:
        """`passed`, or the ranks that were missing when the first to give up did so."""
        everybody = [self._arrival(rank) for rank in range(self._size)]
        pause_s = POLL_MIN_S
        while time.monotonic() < deadline_s:
            if self._store.check([self._result()]):
                break
            if self._rank == 0 and self._store.check(everybody):
                break
            time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
            pause_s = min(2 * pause_s, POLL_MAX_S)
        missing = [rank for rank, arrival in enumerate(everybody) if not self._store.check([arrival])]
        return self._decide(",".join(map(str, missing)) or _PASSED)

    def _decide(self, outcome: str) -> str:
        """Make it the outcome unless there is one; the outcome."""
        return self._store.compare_set(self._result(), "", outcome).decode()

    def _forget_previous(self) -> None:
        """Everybody has come here, so nobody looks at the barrier before any more."""
        if self._number > 1:
            self._store.delete_key(self._arrival(self._rank, self._number - 1))
            if self._rank == 0:
                self._store.delete_key(self._result(self._number - 1))

    def _arrival(self, rank: int, number: int | None = None) -> str:
        return f"{self._prefix}/{number or self._number}/{rank}"

    def _result(self, number: int | None = None) -> str:
        return f"{self._prefix}/{number or self._number}/result"


def _complaint(rank: int, missing: Sequence[int], limit_s: float, *, wait_all_ranks: bool) -> str:
    ranks = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
    late = f"{ranks} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms"
    if rank == 0 or rank in missing:
        return late
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        f"rank 0: {late}"
    )
