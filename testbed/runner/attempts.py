"""Which attempts a sweep makes, which it still expects, and what became of the others.

Attempts are numbered for as long as the sweep's directory lives, across processes: a number is on disk before its
attempt begins, and an attempt that has been lost is never expected again. So a result is taken in once, whatever comes
back however late (fencing, as in Kleppmann, How to do distributed locking, 2016).

A run of a point is expected from one machine at a time. A machine that dies costs the point that ran on it another
attempt, and the others nothing.
"""

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from testbed.errors import SpecError
from testbed.record.writer import replace_text
from testbed.report.comparison.points import ComparedPoint
from testbed.runner.engines.base import Abandoned, Attempt
from testbed.runner.turns import next_turn

MAX_LOST: Final = 3
"""A point that was lost so often in one process is given up in it: it may be what kills the machines."""
FILE: Final = "attempts.json"
_SCHEMA_VERSION: Final = 1

End = Literal["open", "accepted", "lost", "refused"]


class StaleAttemptError(Exception):
    """Its result is not expected, or not any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What is known of an attempt."""

    number: int
    spec_sha256: str
    machine: str
    """Empty: that of the sweep's process."""
    begun_at: str
    over_s: float
    """So long after the sweep's process was killed it may go on."""
    end: End = "open"
    """`refused`: lost, and back with a result afterwards."""
    reason: str = ""
    record: str = ""
    """The name of the record that was accepted; of one that arrived from another machine, before it lies among the
    others."""


class Attempts:
    """Of one sweep. Pure but for :meth:`load` and :meth:`save`."""

    def __init__(self, last: int = 0, entries: Sequence[Entry] = (), identity: str = "") -> None:
        self.identity = identity or secrets.token_hex(8)
        """Of the sweep, kept for as long as its directory lives: numbers are comparable within one."""
        self._last = last
        self._entries = {entry.number: entry for entry in entries}
        self._expected: dict[int, Attempt] = {}
        self._num_lost: Counter[int] = Counter()
        self.abandoned = [
            Abandoned(number=each.number, machine=each.machine, over_s=each.over_s)
            for each in entries
            if each.end == "open"
        ]
        """Those that an earlier process was making when it was killed; nobody expects them any more."""

    @property
    def last(self) -> int:
        """The greatest number that was given away."""
        return self._last

    @property
    def expected(self) -> Mapping[int, Attempt]:
        """Attempts that are being made, by number."""
        return dict(self._expected)

    @property
    def given_up(self) -> list[int]:
        """Positions of points that were lost too often."""
        return sorted(position for position, number in self._num_lost.items() if number >= MAX_LOST)

    @property
    def entries(self) -> list[Entry]:
        """Every attempt, in their order."""
        return sorted(self._entries.values(), key=lambda entry: entry.number)

    def begin_session(self) -> int:
        """A fencing number for this process."""
        self._last += 1
        return self._last

    def close_abandoned(self) -> None:
        """None of them runs any more. Until that is known they stay open: this process may be killed, too."""
        for each in self.abandoned:
            self._close(each.number, "lost", "the sweep was killed")

    def begin(
        self, points: Sequence[ComparedPoint], order_seed: int, *, machine: str, over_s: float = 0.0
    ) -> Attempt | None:
        """The attempt that is to be made next on a machine; None where none is, for now or any more."""
        busy = {attempt.position for attempt in self._expected.values()}
        position = next_turn(points, order_seed, busy=busy.union(self.given_up))
        if position is None:
            return None
        self._last += 1
        attempt = Attempt(number=self._last, position=position, machine=machine)
        self._expected[attempt.number] = attempt
        self._entries[attempt.number] = Entry(
            number=attempt.number,
            spec_sha256=points[position].spec_sha256,
            machine=machine,
            begun_at=datetime.now(UTC).isoformat(timespec="seconds"),
            over_s=over_s,
        )
        return attempt

    def expect(self, number: int) -> Attempt:
        """The attempt of that number. Raises StaleAttemptError where nobody expects its result."""
        if number not in self._expected:
            raise StaleAttemptError(f"attempt {number} is not expected; the latest is {self._last}")
        return self._expected[number]

    def arrive(self, number: int, record: str) -> None:
        """Its record is about to be moved to the others. Raises StaleAttemptError."""
        self.expect(number)
        self._entries[number] = replace(self._entries[number], record=record)

    def accept(self, number: int, record: str) -> None:
        """Its result has been taken in. Raises StaleAttemptError."""
        self.expect(number)
        del self._expected[number]
        self._close(number, "accepted", record=record)

    def lose(self, number: int, reason: str) -> Attempt:
        """Nobody expects its result any more. Raises StaleAttemptError."""
        attempt = self.expect(number)
        del self._expected[number]
        self._num_lost[attempt.position] += 1
        self._close(number, "lost", reason)
        return attempt

    def refuse(self, number: int, reason: str) -> None:
        """It came back after it had been lost."""
        if number in self._entries and number not in self._expected:
            self._close(number, "refused", f"{self._entries[number].reason}; {reason}")

    def _close(self, number: int, end: End, reason: str = "", record: str = "") -> None:
        entry = self._entries[number]
        self._entries[number] = replace(entry, end=end, reason=reason, record=record or entry.record)

    def save(self, directory: Path) -> None:
        """Replace the file in a sweep's directory. Raises MissingRequirementError."""
        document = {
            "schema_version": _SCHEMA_VERSION,
            "identity": self.identity,
            "last": self._last,
            "attempts": [asdict(entry) for entry in self.entries],
        }
        replace_text(directory / FILE, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, directory: Path) -> "Attempts":
        """Those of a sweep's directory; none where it has no file. Raises SpecError where that cannot be read."""
        path = directory / FILE
        if not path.exists():
            return cls()
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            version, last = document["schema_version"], int(document["last"])
            entries = [Entry(**entry) for entry in document["attempts"]]
            identity = str(document.get("identity", ""))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SpecError(
                f"{path} cannot be read: {type(error).__name__}: {error}; once no machine runs this sweep, remove it"
            ) from error
        if version != _SCHEMA_VERSION:
            raise SpecError(f"{path}: schema_version {version}; this testbed reads {_SCHEMA_VERSION}")
        return cls(last, entries, identity)


def attempt_texts(attempts: Sequence[Entry], texts: Mapping[str, str], since: str) -> tuple[str, ...]:
    """What became of attempts on other machines that did not come to their end; `texts` are those of the points."""
    return tuple(
        f"attempt {entry.number}, {texts.get(entry.spec_sha256, 'another point')} on {entry.machine}: "
        f"{'lost, and refused when it came back' if entry.end == 'refused' else 'lost'}: {entry.reason}"
        for entry in attempts
        if entry.machine and entry.end in ("lost", "refused") and entry.begun_at >= since
    )
