"""The configuration of a link, in each of its two directions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from testbed.errors import SpecError
from testbed.experiment.delay_backends.base import DELAY_BACKENDS
from transports.units import Fraction, Rate, Size, Time, format_size, parse_fraction, parse_size_bytes

MTU: Final = 1500
"""Unless the spec says otherwise."""
MAX_MTU: Final = 9000
"""Jumbo frames, as switches and network cards commonly carry them."""
SUPERFRAME_BYTES: Final = 65_536
"""What the kernel makes of several packets of a flow, at most, unless an interface is configured to less."""
MIN_GSO_BYTES: Final = 3000
"""Two packets; a super-frame of one is none."""


BackendName = str
"""The kind of a delay backend."""
Distribution = Literal["normal", "uniform"]
MIN_PACKETS: Final = 1000
"""So many packets every delay line can hold."""
LATE_S: Final = 20e-3
"""So long a busy machine may keep a delay line waiting: packets then are late, which is measured, not lost."""
MIN_RATE_BPS: Final = 1e6
"""Below, one super-frame takes half a second."""
MAX_RATE_BPS: Final = 800e9
"""The fastest Ethernet that is sold; no machine carries it but in slower time."""
UNSHAPED_BPS: Final = 1e12
"""What the shaper of a link without a rate is set to: nothing reaches it, and it counts every header all the same."""
MAX_QUEUE_BYTES: Final = 1_000_000_000


def beyond_shaping(rate_bps: float) -> bool:
    """Whether a rate is that of a link without one, in the whole or for a part of the time it is the mean of.

    The greatest that a link can have, divided by a dilation and multiplied again, or averaged, is not beyond.
    """
    return rate_bps > MAX_RATE_BPS * (1 + 1e-6)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Jitter(_Strict):
    """Every packet's own part of the delay, independent of the others': packets closer than it may change places."""

    deviation_s: Time = Field(0.0, alias="deviation", ge=0, le=1.0)
    """The standard deviation, whatever the distribution."""
    distribution: Distribution = "normal"
    """normal: cut off at no delay at all. uniform: up to the square root of 3 deviations more or less."""

    @property
    def greatest_s(self) -> float:
        """uniform: the bound. normal: four standard deviations, which one packet in 16,000 exceeds."""
        return (math.sqrt(3) if self.distribution == "uniform" else 4) * self.deviation_s


class GilbertElliott(_Strict):
    """Losses in bursts: a link that is good or bad, and changes from packet to packet with fixed probabilities.

    E. N. Gilbert, Capacity of a burst-noise channel, Bell System Technical Journal 39, 1960 (`loss_in_good` 0);
    E. O. Elliott, Estimates of error rates for codes on burst-noise channels, the same 42, 1963. Each packet is lost
    with the probability of the state it meets; then the state may change.
    """

    kind: Literal["gilbert_elliott"] = "gilbert_elliott"
    good_to_bad: Fraction = Field(gt=0, le=1)
    bad_to_good: Fraction = Field(gt=0, le=1)
    loss_in_bad: Fraction = Field(1.0, gt=0, le=1)
    loss_in_good: Fraction = Field(0.0, ge=0, lt=1)

    @property
    def bad_share(self) -> float:
        """Of the packets that meet the bad state: good_to_bad / (good_to_bad + bad_to_good)."""
        return self.good_to_bad / (self.good_to_bad + self.bad_to_good)

    @property
    def mean_loss(self) -> float:
        """bad_share x loss_in_bad + (1 - bad_share) x loss_in_good."""
        return self.bad_share * self.loss_in_bad + (1 - self.bad_share) * self.loss_in_good

    @property
    def mean_burst_packets(self) -> float:
        """Mean length of an unbroken run of losses: P(lost) / P(lost, and the next is not). Where everything is lost
        in the bad state and nothing in the good one that is 1 / bad_to_good."""
        bad, good = self.bad_share * self.loss_in_bad, (1 - self.bad_share) * self.loss_in_good
        kept_after_bad = (1 - self.bad_to_good) * (1 - self.loss_in_bad) + self.bad_to_good * (1 - self.loss_in_good)
        kept_after_good = (1 - self.good_to_bad) * (1 - self.loss_in_good) + self.good_to_bad * (1 - self.loss_in_bad)
        ends = bad * kept_after_bad + good * kept_after_good
        return self.mean_loss / ends if ends else float("inf")


@dataclass(frozen=True, slots=True)
class DelayProducts:
    """A queue in bandwidth-delay products of its link."""

    num_products: float

    def queue_bytes(self, rate_bps: float, round_trip_s: float) -> int:
        """num_products x rate x what both directions of this link delay together."""
        return round(self.num_products * rate_bps / 8 * round_trip_s)


def _parse_jitter(value: object) -> object:
    return value if isinstance(value, Mapping | Jitter) else {"deviation": value}


def _parse_loss(value: object) -> object:
    if isinstance(value, GilbertElliott):
        return value
    if isinstance(value, Mapping):
        return GilbertElliott.model_validate(value)
    loss = parse_fraction(value)
    if not 0 <= loss < 1:
        raise ValueError(f"{value!r} is no probability of loss; allowed: 0 to less than 1, or a `gilbert_elliott`")
    return loss


def _parse_queue(value: object) -> object:
    if isinstance(value, DelayProducts):
        return value
    if isinstance(value, str) and value.strip().lower().endswith("bdp"):
        try:
            num_products = float(value.strip()[:-3])
        except ValueError:
            num_products = 0.0
        if not 0 < num_products <= 1000:
            raise ValueError(f"{value!r} is no queue; write a size such as 150kB, or 0.1bdp to 1000bdp")
        return DelayProducts(num_products)
    return value if isinstance(value, int) and not isinstance(value, bool) and value else parse_size_bytes(value)


def _format_queue(queue: int | DelayProducts) -> str:
    return f"{queue.num_products:.17g}bdp" if isinstance(queue, DelayProducts) else format_size(queue)


def _without_defaults(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        field.pop("default", None)


class LinkSettings(_Strict):
    """What can be configured of a link, and changed while it carries traffic."""

    rate_bps: Rate = Field(100e6, alias="rate", ge=MIN_RATE_BPS, le=MAX_RATE_BPS)
    """Line rate, 1mbit to 800gbit."""
    delay_s: Time = Field(0.0, alias="delay", ge=0, le=1.0)
    """One-way propagation delay, 0 to 1 s."""
    jitter: Annotated[Jitter, BeforeValidator(_parse_jitter)] = Field(default_factory=Jitter)
    """The standard deviation, `1ms` (normal), or `{deviation: 1ms, distribution: uniform}`; at most the delay."""
    loss: Annotated[Fraction | GilbertElliott, BeforeValidator(_parse_loss)] = 0.0
    """Probability that a packet is lost; or losses in bursts, `{kind: gilbert_elliott, good_to_bad: 0.1%,
    bad_to_good: 25%}`."""
    duplicate: Fraction = Field(0.0, ge=0, lt=1)
    """Probability that a packet arrives twice."""
    reorder: Fraction = Field(0.0, ge=0, lt=1)
    """Probability that a packet is sent on at once, before those that wait for their delay (as netem has it)."""
    queue: Annotated[
        int | DelayProducts,
        BeforeValidator(_parse_queue),
        PlainSerializer(_format_queue),
        WithJsonSchema({"type": ["string", "integer"], "description": "bytes, or bandwidth-delay products"}),
    ] = 1_000_000
    """The queue before the link: `150kB`, or `2bdp`: so many times rate x the delays of both its directions, also after
    a change of these. At least 3 packets, or 100kB where packets are super-frames (`packet_mode`); bandwidth-delay
    products are raised to that."""
    ecn_bytes: Size | None = Field(None, alias="ecn", ge=1, le=MAX_QUEUE_BYTES)
    """Packets that find this much in the queue are marked instead of dropped later; less than the queue."""
    best_effort: bool = False
    """Take a delay below what the backend can honour, as exact as it comes; the record says so."""

    @field_validator("queue")
    @classmethod
    def _queue_in_range(cls, queue: int | DelayProducts) -> int | DelayProducts:
        if isinstance(queue, int) and not 1 <= queue <= MAX_QUEUE_BYTES:
            raise ValueError(f"a queue of {queue} bytes; allowed: 1B to {format_size(MAX_QUEUE_BYTES)}")
        return queue


class LinkOverride(LinkSettings):
    """Part of a link's settings: what it does not name stays as it is."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    @property
    def named(self) -> dict[str, Any]:
        """The settings that it names, by field."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}

    @model_serializer(mode="wrap")
    def _only_named(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        named = self.model_fields_set | {fields[name].alias for name in self.model_fields_set}
        return {key: value for key, value in serialize(self).items() if key in named}


AUTO: Final = "auto"


def _known_backend(backend: str) -> str:
    if backend != AUTO and backend not in DELAY_BACKENDS.kinds():
        raise ValueError(f"allowed: {', '.join([AUTO, *DELAY_BACKENDS.kinds()])}")
    return backend


class _BackendSchema:
    """The kinds are listed when a schema is requested: each backend's file imports this one."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": [AUTO, *DELAY_BACKENDS.kinds()]}


class LinkSpec(LinkSettings):
    """One class of link, per direction."""

    backend: Annotated[BackendName, AfterValidator(_known_backend), _BackendSchema()] = "auto"
    """What makes delay, jitter and loss: `auto` takes the first that can do what is requested and works here."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for reason in self.contradictions().values():
            raise ValueError(reason)
        return self

    def contradictions(self) -> dict[str, str]:
        """What cannot be true at once, by the key of the spec that says too much; empty when all can."""
        found = {}
        if self.jitter.deviation_s > self.delay_s:
            found["jitter"] = "jitter may not exceed delay: a packet cannot arrive before it was sent"
        elif self.jitter.distribution == "uniform" and self.jitter.greatest_s > self.delay_s:
            found["jitter"] = "uniform jitter reaches 1.73 deviations, and may not exceed delay"
        if self.reorder > 0 and self.delay_s == 0:
            found["reorder"] = "reorder needs a delay: a packet overtakes only packets that wait"
        if self.ecn_bytes is not None and isinstance(self.queue, int) and self.ecn_bytes >= self.queue:
            found["ecn"] = f"ecn must be less than the queue of {format_size(self.queue)}, which drops once it is full"
        return found

    def overridden(self, override: LinkOverride) -> "LinkSpec":
        """These settings with those that the override names; what comes out may contradict itself."""
        return self.model_copy(update=override.named)

    def with_queue(self, queue_bytes: int) -> "LinkSpec":
        """The same link with its queue in bytes."""
        return self.model_copy(update={"queue": queue_bytes})

    @property
    def unshaped(self) -> bool:
        """Whether the link is as fast as the machine."""
        return self.rate_bps == UNSHAPED_BPS

    @property
    def jitter_s(self) -> float:
        """The jitter's deviation."""
        return self.jitter.deviation_s

    @property
    def mean_loss(self) -> float:
        """The share of packets lost in the long run."""
        return self.loss.mean_loss if isinstance(self.loss, GilbertElliott) else self.loss

    @property
    def queue_bytes(self) -> int:
        """Of a link whose queue is in bytes, as every planned direction's is."""
        assert isinstance(self.queue, int), "bandwidth-delay products become bytes when the link is planned"
        return self.queue

    @property
    def draws(self) -> bool:
        """Whether chance decides anything of a packet."""
        return self.has_gaps or self.duplicate > 0

    @property
    def has_gaps(self) -> bool:
        """Whether packets arrive out of order or not at all, so that a receiver holds back what came behind a gap."""
        return self.jitter_s > 0 or self.mean_loss > 0 or self.reorder > 0

    @property
    def needs_delay_stage(self) -> bool:
        """Whether anything but rate and queue is requested."""
        return self.delay_s > 0 or self.draws

    def max_packets_in_flight(self, mtu: int) -> int:
        """What a delay line must hold to never drop, in full-sized packets: twice the bandwidth-delay product, and what
        comes while the program that lets packets go waits for a core."""
        held_s = 2 * (self.delay_s + self.jitter.greatest_s) + LATE_S
        return max(MIN_PACKETS, int(self.rate_bps / 8 * held_s / mtu))


def parse_override(settings: Mapping[str, object]) -> LinkOverride:
    """Part of a link's settings from plain data, as a spec writes it. Raises SpecError naming what is wrong."""
    try:
        return LinkOverride.model_validate(dict(settings))
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise SpecError("\n".join(reasons).replace("Value error, ", "")) from None


def parse_link(text: str) -> dict[str, str]:
    """`RATE[,DELAY[,LOSS]]` as the `link` section of a spec. Raises SpecError."""
    parts = [part.strip() for part in text.split(",")]
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise SpecError(f"--link {text}: write RATE[,DELAY[,LOSS]], such as 1gbit,50us")
    return dict(zip(("rate", "delay", "loss"), parts, strict=False))
