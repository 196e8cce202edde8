"""What a page gets to know of a run as it goes on, or as its record is replayed: one format for both. Pure.

A message is a JSON object with its `kind`. Times and rates are virtual (docs/dilation.md); times count from the run's
epoch, the zero of its record's tables. What is a list "by direction" has the order of `Opening.directions`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from testbed.record.summary import Outcome

SCHEMA_VERSION: Final = 2


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the emulated network, and where it is drawn."""

    name: str
    role: str
    """As testbed.experiment.topologies.base.Node has it."""
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Direction:
    """One direction of a link."""

    link: str
    sender: str
    receiver: str
    bend: float = 0.0
    """How far its link swerves to the left of the straight line from `sender` to `receiver`, in the drawing's units."""
    down: bool = False
    """Now; a run begins with all links up."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A run begins: everything before it is over."""

    kind: Literal["opening"] = "opening"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    name: str
    setup: str
    """What is run, in a line."""
    point: str = ""
    """Of a sweep: which of its runs, and its settings."""
    num_workers: int
    dilation: float
    width: float
    """Of the drawing, as `height` in the units of nodes' places."""
    height: float
    nodes: list[Node]
    directions: list[Direction]
    phases: dict[str, int] = field(default_factory=dict)
    """Iterations in each phase, where they are known beforehand."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the run begins."""

    kind: Literal["phase"] = "phase"
    at_s: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Links:
    """Every direction at one moment; each list is by direction."""

    kind: Literal["links"] = "links"
    at_s: float
    rate_bps: list[int | None]
    """Configured; None: as fast as the machine."""
    used_permille: list[int | None]
    """Of its rate, since the message before; None: not known yet, or there is no rate."""
    waiting_bytes: list[int]
    """In its queue."""
    dropped: list[int]
    """Packets that found its queue full, since the link was made."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Every worker is through an iteration."""

    kind: Literal["iteration"] = "iteration"
    at_s: float
    phase: str
    number: int
    """Of the phase, from 1."""
    time_s: float
    """From the end of the one before to its own, the first of a phase from its start; mean over workers."""
    parts_s: dict[str, float]
    """What of it went where, mean over workers, by the names of testbed.metrics.families.ITERATION_PART_NAMES."""
    loss: float | None
    """Mean over workers; None where it is not finite."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting of one direction has become another."""

    kind: Literal["change"] = "change"
    at_s: float
    link: str
    sender: str
    receiver: str
    setting: str
    """As in the spec, or `carrier`."""
    before: str
    after: str
    source: str
    """schedule, trace or manual; of a trace's steps some are left out."""


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How links have sent while packets waited in their queues, since the run began."""

    kind: Literal["shaping"] = "shaping"
    at_s: float
    sent_share: float
    """Of rate x time, all directions together."""
    num_probes: int
    against: list[str]
    """What the verdict would hold against the run if nothing else came."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the machine's cores did."""

    kind: Literal["machine"] = "machine"
    at_s: float
    idle_share: float
    """Since the message before."""
    against: list[str]
    """As in Shaping."""


@dataclass(frozen=True, kw_only=True)
class Interference:
    """What others have done to the run's processes so far."""

    kind: Literal["interference"] = "interference"
    at_s: float
    against: list[str]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The run is over and judged."""

    kind: Literal["ending"] = "ending"
    outcome: Outcome
    meaning: str
    """Of the outcome, in a sentence."""
    headline: str | None
    """The answer to the experiment's question, where there is one."""
    reasons: list[str]
    notes: list[str]
    """What a reader should know that calls no number in question."""
    iteration_time_s: float | None
    """Mean of the measured ones."""
    record: str


@dataclass(frozen=True, kw_only=True)
class Past:
    """A run of the same sweep that is over."""

    kind: Literal["past"] = "past"
    point: str
    outcome: Outcome
    iteration_time_s: float | None


@dataclass(frozen=True, kw_only=True)
class Playback:
    """Where the replay of a record is, and how fast it goes."""

    kind: Literal["playback"] = "playback"
    at_s: float
    begin_s: float
    end_s: float
    speed: float
    """Wall seconds of the run for each second."""
    paused: bool


@dataclass(frozen=True, kw_only=True)
class Over:
    """Nothing comes any more."""

    kind: Literal["over"] = "over"
    num_dropped: int
    """Messages that the page did not get because it was not fast enough."""


Message = (
    Opening | Phase | Links | Iteration | Change | Shaping | Machine | Interference | Ending | Past | Playback | Over
)
_PARSER: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


def encode(message: Message) -> str:
    """One JSON object, in one line."""
    return json.dumps(message, default=_fields, separators=(",", ":"), allow_nan=False)


def _fields(message: object) -> Mapping[str, object]:
    return vars(message)


def decode(text: str | bytes) -> Message:
    """The inverse of :func:`encode`. Raises ValueError for what is no message of this version."""
    try:
        return _PARSER.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"no message of this version: {error.errors()[0]['msg']}") from None
