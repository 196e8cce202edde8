"""How much a sender has under way: window policies, pure.

`fixed` is SwitchML's; `aimd` halves on a mark or a loss and grows by one a round trip (RFC 5681's congestion
avoidance, with ECN as in RFC 3168; ATP does it with the aggregator's marks); `delay` keeps the queueing delay near a
target (after Swift, Kumar et al., SIGCOMM 2020: additive increase below it, multiplicative decrease in proportion to
the excess, at most once a round trip).
"""

from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class Window(Protocol):
    """A window, in chunks or packets."""

    @property
    def size(self) -> int:
        """How many may be under way now; at least 1."""

    def on_result(self, round_trip_s: float | None, *, marked: bool, now_s: float) -> None:
        """One came back; the round trip is None where a retransmission makes it ambiguous (Karn)."""

    def on_loss(self, now_s: float) -> None:
        """One is taken for lost."""


class FixedWindow:
    """Always the same."""

    def __init__(self, size: int) -> None:
        self.size = size

    def on_result(self, round_trip_s: float | None, *, marked: bool, now_s: float) -> None:
        """Nothing changes."""

    def on_loss(self, now_s: float) -> None:
        """Nothing changes."""


class _Adaptive:
    """What the adaptive policies share: slow start to the first sign of congestion, one decrease a round trip."""

    def __init__(self, initial: float, maximum: int) -> None:
        self._window = min(initial, maximum)
        self._maximum = maximum
        self._slow_start = True
        self._round_trip_s = 0.0
        self._decreased_s = -1.0

    @property
    def size(self) -> int:
        return max(1, int(self._window))

    def _increase(self, amount: float) -> None:
        self._window = min(self._maximum, self._window + (1.0 if self._slow_start else amount / self._window))

    def _decrease(self, factor: float, now_s: float) -> None:
        self._slow_start = False
        if now_s - self._decreased_s >= self._round_trip_s:
            self._window = max(1.0, self._window * factor)
            self._decreased_s = now_s


class AimdWindow(_Adaptive):
    """Additive increase, multiplicative decrease, on marks and losses."""

    def __init__(self, initial: float, maximum: int, *, decrease: float = 0.5) -> None:
        super().__init__(initial, maximum)
        self._factor = decrease

    def on_result(self, round_trip_s: float | None, *, marked: bool, now_s: float) -> None:
        """Grow by one a round trip, or halve on a mark."""
        if round_trip_s is not None:
            self._round_trip_s = round_trip_s
        if marked:
            self._decrease(self._factor, now_s)
        else:
            self._increase(1.0)

    def on_loss(self, now_s: float) -> None:
        """Halve."""
        self._decrease(self._factor, now_s)


class DelayWindow(_Adaptive):
    """Keeps the round trip near the lowest one seen plus a target."""

    def __init__(self, initial: float, maximum: int, *, target_s: float = 1e-3, strength: float = 0.8) -> None:
        super().__init__(initial, maximum)
        self._target_s = target_s
        self._strength = strength
        self._base_s: float | None = None

    def on_result(self, round_trip_s: float | None, *, marked: bool, now_s: float) -> None:  # noqa: ARG002 - delay decides
        """Grow below the target, shrink in proportion to the excess above it."""
        if round_trip_s is None:
            return
        self._round_trip_s = round_trip_s
        self._base_s = round_trip_s if self._base_s is None else min(self._base_s, round_trip_s)
        limit_s = self._base_s + self._target_s
        if round_trip_s <= limit_s:
            self._increase(1.0)
        else:
            self._decrease(max(0.5, 1 - self._strength * (round_trip_s - limit_s) / round_trip_s), now_s)

    def on_loss(self, now_s: float) -> None:
        """Halve."""
        self._decrease(0.5, now_s)


class WindowPolicy(BaseModel):
    """A policy as a spec names it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fixed", "aimd", "delay"] = "fixed"
    initial: int = Field(16, ge=1)
    """Of the adaptive ones; `fixed` has always the maximum."""
    target_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """Of `delay`: queueing delay to aim for."""

    def window(self, maximum: int) -> Window:
        """A window that never exceeds the maximum."""
        if self.kind == "fixed":
            return FixedWindow(maximum)
        if self.kind == "aimd":
            return AimdWindow(self.initial, maximum)
        return DelayWindow(self.initial, maximum, target_s=self.target_s)
