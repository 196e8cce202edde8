"""Dilation: a fast network on a slow machine. Time runs k times slower than on the wall, and no answer changes. Pure.

A spec, its plan, its verdict and its reports are in *virtual* time: what would pass on the hardware that the spec
describes. What the kernel and programs are given, and what they are measured to do, is in *real* time, the machine's. A
link of 100 Gbit/s with 5 us of delay is run at k = 50 as one of 2 Gbit/s with 250 us: rates are divided by k, durations
multiplied, bytes and packets stay as they are, and so do products of a rate and a time. A :class:`Clock` turns one into
the other, at the edges only (docs/dilation.md says which these are).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from testbed.experiment.link import UNSHAPED_BPS

MAX_DILATION: Final = 600.0
"""TCP repeats after 200 ms at the soonest, which are dilated too, and after 120 s at the latest, a constant of the
kernel's (TCP_RTO_MIN, TCP_RTO_MAX in include/net/tcp.h): beyond 600 the one would reach the other."""
TCP_RTO_MIN_S: Final = 0.2
"""The kernel's own (TCP_RTO_MIN): in virtual time it must stay what it is."""
SCALE_INVARIANT: Final = frozenset({"reno", "dctcp", "highspeed", "scalable", "bic"})
"""Congestion controls that go by acknowledgements, losses and marks, which come in round trips: they do the same in
slower time. Others look at a clock: the window of cubic grows with the third power of seconds since the last loss (RFC
9438, section 4.2) and its slow start ends by delays in milliseconds; bbr measures over 10 s and 200 ms."""

HostCost = Literal["faster", "real"]
"""Whether hosts of a spec are k times as fast as this machine, whose times are real, or as fast in virtual time."""
Quantity = Literal["time", "rate"]
Tree = TypeVar("Tree")

_SUFFIXES: Final[Mapping[str, Quantity]] = {
    **dict.fromkeys(("_s", "_ms", "_us", "_ns", "_s_per_byte"), "time"),
    "_bps": "rate",
}


def quantity_of(name: str) -> Quantity | None:
    """What a field of that name holds: units come last in names (`delay_s`, `jitter_ns`, `rate_bps`)."""
    return next((quantity for suffix, quantity in _SUFFIXES.items() if name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True)
class Clock:
    """Virtual into real and back."""

    dilation: float = 1.0
    """k: real seconds for each virtual one; 1: they are the same."""

    def real_s(self, virtual_s: float) -> float:
        """A duration: how long it takes on the wall."""
        return virtual_s * self.dilation

    def virtual_s(self, real_s: float) -> float:
        """A duration that was measured."""
        return real_s / self.dilation

    def real_bps(self, virtual_bps: float) -> float:
        """A rate as the kernel is given it; UNSHAPED_BPS, which nothing reaches, stays as it is."""
        return virtual_bps if virtual_bps == UNSHAPED_BPS else virtual_bps / self.dilation

    def virtual_bps(self, real_bps: float) -> float:
        """A rate that was measured, or read back."""
        return real_bps if real_bps == UNSHAPED_BPS else real_bps * self.dilation

    def of_hosts(self, host_cost: HostCost) -> "Clock":
        """That of the CPU time that hosts spend: with `real` a second of it is one of the spec's hosts, too, which have
        so many times fewer of them, by a quota."""
        return REAL_TIME if host_cost == "real" else self

    def real(self, planned: Tree) -> Tree:
        """Every duration and rate in it, by the units in the names of fields; the rest as it is.

        Goes into dataclasses, pydantic models, sequences and mappings, of numbers, too, where the field that holds them
        has a unit (`attempts_bps`); models are not validated again, since limits are of what a spec says.
        """
        return _scaled(planned, {"time": self.real_s, "rate": self.real_bps})

    def virtual(self, measured: Tree) -> Tree:
        """The inverse."""
        return _scaled(measured, {"time": self.virtual_s, "rate": self.virtual_bps})


REAL_TIME: Final = Clock()
"""Of what is not dilated."""


def _scaled(tree: Tree, scales: Mapping[Quantity, Any]) -> Tree:
    value: Any = tree
    if isinstance(value, BaseModel):
        scaled = {name: _field(name, getattr(value, name), scales) for name in type(value).model_fields}
        # Only what has changed: which fields somebody has set is kept beside them, and means something.
        return cast("Tree", value.model_copy(update={k: v for k, v in scaled.items() if v != getattr(value, k)}))
    if is_dataclass(value) and not isinstance(value, type):
        changed = {each.name: _field(each.name, getattr(value, each.name), scales) for each in fields(value)}
        return cast("Tree", replace(value, **changed))
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return cast("Tree", tuple(_scaled(item, scales) for item in value))
    if isinstance(value, list):
        return cast("Tree", [_scaled(item, scales) for item in value])
    if isinstance(value, dict):
        return cast("Tree", {key: _scaled(item, scales) for key, item in value.items()})
    return tree


def _field(name: str, value: Any, scales: Mapping[Quantity, Any]) -> Any:
    """A field's name says what its numbers are, also where it holds several; whatever has names of its own goes by
    these."""
    quantity = quantity_of(name)
    if quantity is None:
        return _scaled(value, scales)
    if isinstance(value, int | float):
        return scales[quantity](value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_field(name, each, scales) for each in value)
    if isinstance(value, list):
        return [_field(name, each, scales) for each in value]
    if isinstance(value, dict):
        return {key: _field(name, each, scales) for key, each in value.items()}
    return _scaled(value, scales)


def _parse_dilation(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MAX_DILATION:
        return int(value) if value == int(value) else value  # 1 and 1.0 are one question, with one hash
    raise ValueError(
        f"{value!r} is no dilation; allowed: 1 (none), a factor up to {MAX_DILATION:g} by which time is stretched, or "
        "auto"
    )


Dilation = Annotated[
    int | float | Literal["auto"],
    BeforeValidator(_parse_dilation),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 1, "maximum": MAX_DILATION}]}),
]
