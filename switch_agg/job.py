"""What both ends of a job agree on before its first datagram."""

from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from switch_agg.payload import PAYLOADS, Payload, PayloadName
from switch_agg.wire import MAX_JOBS, MAX_SLOTS, SIZES, Kind

MAX_WORKERS: Final = 32
"""A slot's contributors are bits of one word, here as in p4app-switchML."""


class Job(BaseModel):
    """One job at one aggregator. The slots of jobs that share an aggregator do not overlap."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(0, ge=0, lt=MAX_JOBS)
    workers: tuple[str, ...] = Field(min_length=1, max_length=MAX_WORKERS)
    """Their hosts, by index: datagrams from elsewhere are not the job's."""
    num_elements: int = 256
    """Of a chunk: words of 32 bits."""
    payload: PayloadName = "int32"
    """What is in them: an integer of 32 bits, two of 16 or four of 8."""
    first_slot: int = Field(0, ge=0, lt=MAX_SLOTS)
    num_slots: int = Field(128, ge=1, le=MAX_SLOTS)
    """The pool, a power of two, so that chunk numbers may wrap. It bounds what is under way: rate x round trip / frame
    are needed to fill a link."""
    parent: str | None = None
    """Host of the aggregator above, in a tree; None: this one is the root."""
    parent_port: int = 0xBEE0
    parent_index: int = Field(0, ge=0, lt=MAX_WORKERS)
    """This aggregator's own index among those of `parent`'s job."""
    straggler_timeout_s: float | None = Field(None, gt=0, le=100)
    """Give out a partial sum so long after the first contribution; None: wait for everybody."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_elements not in SIZES.values():
            raise ValueError(f"num_elements: a chunk has {', '.join(map(str, SIZES.values()))} elements")
        if self.num_slots & self.num_slots - 1:
            raise ValueError("num_slots: a pool has a power of two of slots")
        if self.first_slot + self.num_slots > MAX_SLOTS:
            raise ValueError(f"first_slot + num_slots: an aggregator has {MAX_SLOTS} slots")
        if len(set(self.workers)) != len(self.workers):
            raise ValueError("workers: each has a host of its own")
        if self.parent is not None and self.straggler_timeout_s is not None:
            raise ValueError("straggler_timeout_s: in a tree nobody knows how many workers a partial sum stands for")
        if self.parent is not None and self.payload != "int32":
            raise ValueError(f"payload: a tree would round sums of {self.payload} at each level; int32 has exact ones")
        return self

    @property
    def num_workers(self) -> int:
        """How many contribute to each chunk."""
        return len(self.workers)

    @property
    def form(self) -> Payload:
        """What the chunk's elements are."""
        return PAYLOADS[self.payload]

    @property
    def kind(self) -> Kind:
        """Of the datagrams that carry contributions and sums."""
        return self.form.kind

    def carries(self, kind: Kind) -> bool:
        """Whether a datagram of that kind has the job's elements."""
        return self.form.carries(kind)

    @property
    def num_values(self) -> int:
        """Floats in a chunk."""
        return self.num_elements * self.form.lanes

    @property
    def everybody(self) -> int:
        """The bitmap with every worker's bit."""
        return (1 << self.num_workers) - 1

    def place(self, chunk: int) -> tuple[int, int]:
        """The slot and version of a chunk: pools are gone through in order, versions alternate."""
        return self.first_slot + chunk % self.num_slots, chunk // self.num_slots & 1
