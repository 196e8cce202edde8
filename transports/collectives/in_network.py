"""In-network aggregation: a switch on the way adds the workers' gradients, so that each worker's link carries each byte
once up and once down, whatever the number of workers (Sapio et al., "Scaling distributed machine learning with
in-network aggregation", NSDI 2021). The protocol is docs/protocol.md's.

The aggregating switch adds floats, as integers with block exponents (`switch_agg/quantize.py`). Everything else goes
around a ring, and so do the floats once the aggregator is lost.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from switch_agg.dataplanes.base import DataPlaneKind, data_plane, data_planes
from switch_agg.job import MAX_WORKERS, Job
from switch_agg.payload import PAYLOADS, PayloadName
from switch_agg.round_trip import MIN_TIMEOUT_S
from switch_agg.window import WindowPolicy
from switch_agg.wire import ETHERNET_IP_UDP_BYTES, HEADER, MAX_JOBS, SIZES
from transports.collectives.base import COLLECTIVES, AggregatorAssignment, Collective, Operation
from transports.collectives.ring import Ring
from transports.errors import OptionError
from transports.units import Size, Time

if TYPE_CHECKING:
    from transports.collectives._switch_reducer import SwitchReducer
    from transports.group import Group

SUMMED_BYTES: Final = (2, 4)
"""Of the element types that the aggregating switch adds: float16, bfloat16, float32."""
LOST_VARIABLE: Final = "TESTBED_AGGREGATION_LOST"
"""In the environment: a file to which a member that has lost its aggregator appends why, as one line."""


class Window(WindowPolicy):
    """As a spec says it: its time has a unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    target_s: Time = Field(1e-3, alias="target", gt=0)
    """Of `delay`: queueing delay to aim for."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        """By value: plain data that a spec comes back from names every option."""
        options = type(self).model_fields
        if self.kind == "fixed" and self.initial != options["initial"].default:
            raise ValueError("initial: `fixed` has always num_slots under way; say kind: aimd or delay, or num_slots")
        if self.kind != "delay" and self.target_s != options["target_s"].default:
            raise ValueError("target: only `delay` aims for one; say kind: delay")
        return self


def _parse_window(value: object) -> object:
    """`aimd` stands for `{kind: aimd}`."""
    return {"kind": value} if isinstance(value, str) else value


def _data_plane(kind: str) -> str:
    if kind not in data_planes():
        raise ValueError(f"allowed: {', '.join(data_planes())}")
    return kind


def _power_of_two(value: int) -> int:
    if value & value - 1:
        raise ValueError(f"{value} is no power of two")
    return value


class Tenant(BaseModel):
    """Another job at the same aggregator, with slots of its own: its workers reduce again and again."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    workers: tuple[str, ...] = Field(min_length=1, max_length=MAX_WORKERS)
    """Hosts that are there for background traffic: `x0`."""
    num_slots: Annotated[int, AfterValidator(_power_of_two)] = Field(128, ge=1, le=1 << 13)
    """Its quota of the switch's slots; no other job has any of them."""
    size_bytes: Size = Field(1 << 20, alias="size", ge=4, le=1 << 30)
    """Of each of its reductions."""


def following_s(num_chunks: int, *, num_slots: int, frame_s: float, round_trip_s: float) -> float:
    """How long after the first of so many chunks the last one is back. As many as there are slots follow each other at
    the link's rate, and each further one waits for the one that had its slot (Sapio et al., NSDI 2021, 3.4)."""
    num_waiting, num_left = divmod(max(0, num_chunks - 1), num_slots)
    return num_waiting * max(round_trip_s, num_slots * frame_s) + num_left * frame_s


@COLLECTIVES.register
class InNetwork(Ring):
    """Sums of floats are a switch's; the rest is a ring."""

    dataplane: Annotated[
        str, AfterValidator(_data_plane), WithJsonSchema({"enum": data_planes(), "type": "string"})
    ] = "ebpf"
    """What adds: a program in the switch's kernel, or a process beside the switch, readable and slower."""
    num_elements: int = 256
    """Of a chunk, which is one packet: words of 32 bits; from 512 on it needs jumbo frames."""
    payload: PayloadName = "int32"
    """What is in each: one 32-bit integer, as precise as float32; two of 16 bits (`fp16`); four of 8 (`int8`). The
    switch adds all in 32 bits."""
    num_slots: int = Field(128, ge=1, le=1 << 14)
    """Chunks that may be under way at once, a power of two: rate x round trip / frame fill a link."""
    window: Annotated[Window, BeforeValidator(_parse_window)] = Field(default_factory=lambda: Window.model_validate({}))
    """How many of them a worker has under way: `fixed` (all), `aimd`, `delay`."""
    min_timeout_s: Time = Field(MIN_TIMEOUT_S, alias="min_timeout", gt=0, le=1)
    """A worker repeats a chunk after the round trip and four times its variation, but not sooner than this."""
    partial_after_s: Time | None = Field(None, alias="partial_after", gt=0, le=100)
    """Give out what there is of a chunk's sum so long after its first contribution, scaled up by the number of
    contributions that are missing; null: wait for the slowest."""
    tenants: tuple[Tenant, ...] = Field((), max_length=MAX_JOBS - 1)
    """Other jobs that share the switch."""
    at: str | None = None
    """The aggregating switch: its name; `spine`: the nearest without workers; `leaf`: every one that has workers adds
    theirs, and one of them the sums; `tree`: every one that has workers adds theirs, and those above, up to a root
    without workers, the sums; null: the one nearest to all workers."""
    aggregator: str | None = None
    """The address of one that is there already; null: a run makes its own."""
    aggregator_index: int | None = Field(None, ge=0, lt=MAX_WORKERS)
    """The member's number there, where that is not its rank: in a tree every aggregator counts those below it."""

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.num_elements not in SIZES.values():
            raise ValueError(f"num_elements: a chunk has {', '.join(map(str, SIZES.values()))} elements")
        if self.num_slots & self.num_slots - 1:
            raise ValueError(f"num_slots: {self.num_slots} is no power of two")
        return self

    def job(self, workers: tuple[str, ...], *, parent: str | None = None, parent_index: int = 0) -> Job:
        """What both ends agree on. A member knows the addresses of all, by rank; an aggregator knows those directly
        below it, and in a tree the address of the one above and its own number there."""
        return Job(
            workers=workers,
            num_elements=self.num_elements,
            payload=self.payload,
            num_slots=self.num_slots,
            parent=parent,
            parent_index=parent_index,
            straggler_timeout_s=self.partial_after_s,
        )

    def adds(self, operation: Operation, element_bytes: int) -> bool:
        """Whether the switch does such an exchange of floats."""
        return operation == "all_reduce" and element_bytes in SUMMED_BYTES

    @property
    def frame_bytes(self) -> int:
        """Of one chunk on the wire, Ethernet header included."""
        return ETHERNET_IP_UDP_BYTES + HEADER.size + 4 * self.num_elements

    @property
    def num_values(self) -> int:
        """Floats in a chunk."""
        return self.num_elements * PAYLOADS[self.payload].lanes

    @property
    def unit_roundoff(self) -> float:
        """Half a unit of the wire's integers, over the largest magnitude that a chunk may grow to before it is done
        again with another exponent."""
        form = PAYLOADS[self.payload]
        return float(2.0 ** (form.headroom - form.bits))

    def num_chunks(self, num_elements: int) -> int:
        """Of that many floats; the last chunk is as long as the others."""
        return -(-num_elements // self.num_values)

    def wire_bytes(self, num_elements: int) -> int:
        """What one worker sends, and gets, for that many floats when no chunk is lost or done again."""
        return self.num_chunks(num_elements) * self.frame_bytes

    def payload_bytes(self, num_elements: int) -> int:
        """Of :meth:`wire_bytes` what is not headers: the chunks' words, whatever the floats' own type."""
        return self.num_chunks(num_elements) * 4 * self.num_elements

    def time_s(self, num_elements: int, *, rate_bps: float, alpha_s: float) -> float:
        """Of one all-reduce on links of that rate, when an empty packet takes `alpha_s` to the aggregator and the same
        back."""
        frame_s = self.frame_bytes * 8 / rate_bps
        round_trip_s = 2 * (alpha_s + frame_s)
        return round_trip_s + following_s(
            self.num_chunks(num_elements), num_slots=self.num_slots, frame_s=frame_s, round_trip_s=round_trip_s
        )

    @property
    def identity(self) -> str:
        """Of the aggregator that it needs: what a spec says of it."""
        return self.model_copy(update={"aggregator": None, "aggregator_index": None}).model_dump_json(by_alias=True)

    @property
    def plane(self) -> type[DataPlaneKind]:
        """What adds."""
        return data_plane(self.dataplane)

    @property
    def aggregation(self) -> "InNetwork | None":
        """See :class:`Collective`."""
        return self

    def link_bytes(self, operation: Operation, num_elements: int, element_bytes: int) -> int | None:
        """See :class:`Collective`."""
        return self.wire_bytes(num_elements) if self.adds(operation, element_bytes) else None

    def exchange_s(
        self, operation: Operation, num_elements: int, element_bytes: int, *, rate_bps: float, alpha_s: float
    ) -> float | None:
        """See :class:`Collective`."""
        if not self.adds(operation, element_bytes):
            return None
        return self.time_s(num_elements, rate_bps=rate_bps, alpha_s=alpha_s)

    @property
    def sum_roundoff(self) -> float | None:
        """See :class:`Collective`."""
        return None if self.payload == "int32" else self.unit_roundoff

    def with_assignment(self, assignments: Mapping[str, AggregatorAssignment]) -> Self:
        """The same, with the aggregator that the member of its `identity` uses and the number that it has there."""
        if self.identity not in assignments:
            return self
        address, index = assignments[self.identity]
        return self.model_copy(update={"aggregator": address, "aggregator_index": index, "tenants": ()})

    def of_further_group(self) -> Collective:
        """A ring: the aggregator's job is the first group's."""
        return Ring.model_validate({}).model_copy(update={"segment_bytes": self.segment_bytes})

    def reducer(self, group: "Group") -> "SwitchReducer | None":
        """Raises TransportError when the aggregator does not answer."""
        from transports.collectives._switch_reducer import SwitchReducer

        if self.tenants:
            raise OptionError("in_network: tenants are `testbed run`'s to make; leave them out anywhere else")
        return SwitchReducer(self, group) if group.size > 1 else None
