"""The two kinds of communicator: ours, a collective over a channel (`ring/tcp`), perhaps with compression
(`ring/tcp/fp16`), or a baseline library (`gloo`)."""

from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from switch_agg.dataplanes.base import data_planes
from transports.baselines.base import STACKS, CommunicatorLike, OnTrace
from transports.channels.base import CHANNELS, Channel
from transports.collectives.base import COLLECTIVES, Collective
from transports.compression.base import COMPRESSORS, Compressor
from transports.errors import OptionError
from transports.group import Group
from transports.registry import OptionsT, Registry


class StackLike(Protocol):
    """Whatever opens a communicator."""

    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Connect to every other member of the group."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A collective over a channel."""

    collective: Collective
    channel: Channel
    compression: Compressor = field(default_factory=lambda: COMPRESSORS.parse("none"))
    """Of all_reduces."""

    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Connect to every other member of the group."""
        from transports.execution.communicator import Communicator

        return Communicator(self.collective, self.channel, group, on_trace, self.compression)


def parse_stack(text: str) -> StackLike:
    """`ring/tcp` is collective/channel, `ring/tcp/fp16` with compression, `gloo` a baseline; options stand behind
    a kind: `parameter_server:servers=2:pipelined=true/tcp`, `openmpi:algorithm=ring`. `in_network/ebpf` is what adds in
    the switch, and the channel tcp. Raises OptionError naming what is allowed."""
    collective, slash, below = text.partition("/")
    if slash:
        channel, _, compression = below.partition("/")
        if collective.partition(":")[0] == "in_network" and channel in data_planes():
            collective, channel = f"{collective}:dataplane={channel}", "tcp"
        compressor = _with_options(COMPRESSORS, compression or "none")
        if compressor.settled_after:
            always = COMPRESSORS.parse(compressor.kind).settled_after
            raise OptionError(
                f"{text!r}: {compressor.kind} begins after {compressor.settled_after} iterations of training, and what "
                f"is timed by itself has none; {'time a training, by `testbed run`' if always else 'leave start out'}"
            )
        return Composed(_with_options(COLLECTIVES, collective), _with_options(CHANNELS, channel), compressor)
    if text.partition(":")[0] in STACKS.kinds():
        return _with_options(STACKS, text)
    raise OptionError(
        f"{text!r} is not a stack; allowed: {', '.join(STACKS.kinds())}, or collective/channel or "
        f"collective/channel/compression with collective one of {', '.join(COLLECTIVES.kinds())}, channel one of "
        f"{', '.join(CHANNELS.kinds())} and compression one of {', '.join(COMPRESSORS.kinds())}"
    )


def _with_options(axis: Registry[OptionsT], text: str) -> OptionsT:
    kind, *options = text.split(":")
    pairs = [option.partition("=") for option in options]
    if wrong := [option for option, (_, equals, value) in zip(options, pairs, strict=True) if not (equals and value)]:
        raise OptionError(f"{wrong[0]!r} in {text!r} is not option=value")
    try:
        return axis.parse({"kind": kind, **{name: _number_or_text(value) for name, _, value in pairs}})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] != "extra_forbidden":
            raise OptionError(f"{text!r}: {where}: {first['msg']}") from None
        names = [field.alias or name for name, field in axis[kind].model_fields.items()]
        raise OptionError(f"{text!r}: {kind} has no option {where}; allowed: {', '.join(names) or 'none'}") from None


def _number_or_text(value: str) -> int | str:
    """Whole numbers as numbers: an option that allows only some of them does not take their text."""
    return int(value) if value.isdecimal() else value
