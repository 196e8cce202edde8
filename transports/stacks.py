"""The two ways to get a communicator: ours, a collective over a channel (`ring/tcp`), or a whole stack
(`gloo`)."""

from dataclasses import dataclass
from typing import Protocol

from pydantic import ValidationError

from transports.baselines.base import STACKS, CommunicatorLike, OnTrace
from transports.channels.base import CHANNELS, Channel, Group
from transports.collectives.base import COLLECTIVES, Collective
from transports.collectives.in_network import DATA_PLANES
from transports.errors import OptionError
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

    def open(self, group: Group, on_trace: OnTrace | None = None) -> CommunicatorLike:
        """Connect to every other member of the group."""
        from transports.communicator import Communicator

        return Communicator(self.collective, self.channel, group, on_trace)


def parse_stack(text: str) -> StackLike:
    """`ring/tcp` is collective/channel, `gloo` a whole stack; options stand behind a kind:
    `parameter_server:servers=2:pipelined=true/tcp`. `in_network/ebpf` is what adds in the switch, and the channel tcp.
    Raises OptionError naming what is allowed."""
    collective, slash, channel = text.partition("/")
    if collective.partition(":")[0] == "in_network" and channel in DATA_PLANES:
        collective, channel = f"{collective}:dataplane={channel}", "tcp"
    if slash:
        return Composed(_with_options(COLLECTIVES, collective), _with_options(CHANNELS, channel))
    if text in STACKS.kinds():
        return STACKS.parse(text)
    raise OptionError(
        f"{text!r} is not a stack; allowed: {', '.join(STACKS.kinds())}, or collective/channel with "
        f"collective one of {', '.join(COLLECTIVES.kinds())} and channel one of {', '.join(CHANNELS.kinds())}"
    )


def _with_options(axis: Registry[OptionsT], text: str) -> OptionsT:
    kind, *options = text.split(":")
    pairs = [option.partition("=") for option in options]
    if wrong := [option for option, (_, equals, value) in zip(options, pairs, strict=True) if not (equals and value)]:
        raise OptionError(f"{wrong[0]!r} in {text!r} is not option=value")
    try:
        return axis.parse({"kind": kind, **{name: value for name, _, value in pairs}})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise OptionError(f"{text!r}: {where}: {first['msg']}") from None
