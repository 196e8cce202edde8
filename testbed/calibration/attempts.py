"""A quantity that is measured again while it is not what was requested, and which of the measurements stands for it.

The first one stands when it holds. One that does not may be the machine's fault: a receiver that runs late makes a
link look slow, one that begins late finds a backlog and makes it look fast, a hypervisor takes the cores away for
seconds. So it is repeated, over seconds, and the *median* of the last five stands, never the closest: a link that is
wrong is wrong five times, and luck does not come three times of five. Every measurement is kept, in the record too.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from testbed.measure.machine import MachineSample

NUM_STANDING: Final = 5
"""The median of so many stands for a quantity whose first measurement missed."""
NUM_CONCLUSIVE: Final = 10
"""So many misses in a row, and none that holds, are the link's."""
MAX_ATTEMPTS: Final = 30
DISTURBED_STEAL_SHARE: Final = 0.01
MAX_DISTURBED: Final = 40
"""While the hypervisor gives more than that share of the cores' time to others, a right link measures slow: a miss then
is neither counted nor in the median, so many times at most."""
FIRST_PAUSE_S: Final = 0.02
LAST_PAUSE_S: Final = 0.5
"""Between attempts, doubling: what disturbs a machine lasts longer than a measurement."""

Value = TypeVar("Value")


class Attempts(Generic[Value]):
    """The measurements of one quantity so far, and whether another is needed.

    `holds` says whether a measurement is what was requested, `key` orders them for the median. `max_attempts` of 1 is
    for what chance decides: nothing is repeated, and the one measurement stands.
    """

    def __init__(
        self, holds: Callable[[Value], bool], key: Callable[[Value], float], *, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        self._holds = holds
        self._key = key
        self._max_attempts: Final = max_attempts
        self._counted: list[Value] = []
        self._num_disturbed = 0
        self.measured: list[Value] = []
        """Every one, in order, those in a disturbance too."""

    def add(self, value: Value, *, steal_share: float = 0.0) -> None:
        """One more measurement, during which the hypervisor took this share of the cores' time."""
        self.measured.append(value)
        disturbed = steal_share > DISTURBED_STEAL_SHARE and not self._holds(value)
        if disturbed and self._num_disturbed < MAX_DISTURBED:
            self._num_disturbed += 1
        else:
            self._counted.append(value)

    @property
    def value(self) -> Value:
        """What stands for the quantity now. Raises IndexError before the first measurement."""
        if self._first_holds or self._max_attempts == 1 or not self._counted:
            return self.measured[0]
        last = sorted(self._counted[-NUM_STANDING:], key=self._key)
        return last[len(last) // 2]

    @property
    def settled(self) -> bool:
        """Whether another measurement would not change what is said of the quantity."""
        if not self.measured:
            return False
        if self._first_holds or self._max_attempts == 1 or len(self._counted) >= self._max_attempts:
            return True
        if len(self._counted) >= NUM_STANDING and self._holds(self.value):
            return True
        last = self._counted[-NUM_CONCLUSIVE:]
        return len(last) == NUM_CONCLUSIVE and not any(map(self._holds, last))

    @property
    def pause_s(self) -> float:
        """How long to wait before the next measurement."""
        return float(min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(16, max(0, len(self.measured) - 1))))

    @property
    def _first_holds(self) -> bool:
        return bool(self.measured) and self._holds(self.measured[0])


class StealMeter:
    """The share of the cores' time that the hypervisor gave to others since this was made."""

    def __init__(self) -> None:
        self._before = MachineSample.take()

    @property
    def share(self) -> float:
        """The share of the cores' time that was stolen since this was made, from 0 to 1."""
        return MachineSample.take().steal_share_since(self._before)
