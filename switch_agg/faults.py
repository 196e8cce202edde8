"""Faults that are requested: datagrams lost, doubled, held back and corrupted, by probability and by list. Pure.

The same seed meets the same fate at the same datagram: each direction of each worker draws from a sequence of its own,
one xorshift64* number a datagram, which a data plane in C or eBPF can draw as well.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Probability = Annotated[float, Field(ge=0, le=1)]
Direction = Literal["up", "down"]
"""From a worker to the aggregator, and back."""
_MASK: Final = 0xFFFFFFFFFFFFFFFF


class FaultRates(BaseModel):
    """Shares of one direction's datagrams; at most one fault meets a datagram."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: Probability = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    """Held back until the next datagram of the direction has passed."""
    corrupt: Probability = 0.0
    """One bit of the payload turned over."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if (total := self.loss + self.duplicate + self.reorder + self.corrupt) > 1:
            raise ValueError(
                f"loss, duplicate, reorder and corrupt are shares of the same datagrams, and add up to {total:g}"
            )
        return self


class ListedFault(BaseModel):
    """One datagram's fault, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    direction: Direction
    worker: int = Field(ge=0)
    chunk: int = Field(ge=0)
    occurrence: int = Field(1, ge=1)
    """The how-manieth datagram of that chunk this is."""
    fault: Literal["loss", "duplicate", "reorder", "corrupt"] = "loss"


class Faults(BaseModel):
    """Everything that is to go wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(1, ge=0)
    up: FaultRates = FaultRates()
    down: FaultRates = FaultRates()
    listed: tuple[ListedFault, ...] = ()


class Fate(NamedTuple):
    """What happens to one datagram."""

    copies: int = 1
    """0: lost."""
    held: bool = False
    corrupt_bit: int | None = None
    """Which bit of the payload is turned over, modulo its length."""


class FaultInjector:
    """Decides each datagram's fate, in the order in which they pass."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._states: dict[tuple[Direction, int], int] = {}
        self._listed = {(f.direction, f.worker, f.chunk, f.occurrence): f.fault for f in faults.listed}
        self._listed_chunks = {key[:3] for key in self._listed}
        self._seen: dict[tuple[Direction, int, int], int] = {}

    def fate(self, direction: Direction, worker: int, chunk: int) -> Fate:
        """Of the next datagram of that worker in that direction."""
        drawn = self._draw(direction, worker)
        key = (direction, worker, chunk)
        if key in self._listed_chunks:
            occurrence = self._seen[key] = self._seen.get(key, 0) + 1
            fault = self._listed.get((*key, occurrence))
            if fault is not None:
                return _fate(fault, drawn)
        rates = self._faults.up if direction == "up" else self._faults.down
        share = (drawn >> 11) / float(1 << 53)
        for name, rate in _in_order(rates):
            if share < rate:
                return _fate(name, drawn)
            share -= rate
        return Fate()

    def _draw(self, direction: Direction, worker: int) -> int:
        state = self._states.get((direction, worker)) or first_state(self._faults.seed, direction, worker)
        number, self._states[direction, worker] = xorshift64star(state)
        return number


def first_state(seed: int, direction: Direction, worker: int) -> int:
    """Where a direction's sequence begins; never 0, where xorshift would stay. (splitmix64)"""
    z = (seed * 0x9E3779B97F4A7C15 + 2 * worker + (direction == "down") + 1) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return (z ^ (z >> 31)) or 1


def xorshift64star(state: int) -> tuple[int, int]:
    """The number and the next state (Vigna, An experimental exploration of Marsaglia's xorshift generators, 2016)."""
    state ^= state >> 12
    state = (state ^ state << 25) & _MASK
    state ^= state >> 27
    return state * 0x2545F4914F6CDD1D & _MASK, state


def corrupt(data: bytes, bit: int) -> bytes:
    """The datagram with one bit turned over."""
    bit %= 8 * len(data)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _in_order(rates: FaultRates) -> Sequence[tuple[str, float]]:
    return (
        ("loss", rates.loss),
        ("duplicate", rates.duplicate),
        ("reorder", rates.reorder),
        ("corrupt", rates.corrupt),
    )


def _fate(fault: str, drawn: int) -> Fate:
    if fault == "loss":
        return Fate(copies=0)
    if fault == "duplicate":
        return Fate(copies=2)
    if fault == "reorder":
        return Fate(held=True)
    return Fate(corrupt_bit=drawn & 0xFFFF)
