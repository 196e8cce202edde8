"""The two ways to get a communicator: ours, a collective over a channel (`ring/tcp`), or a whole stack
(`gloo`)."""

from dataclasses import dataclass
from typing import Protocol

from transports.baselines.base import STACKS, CommunicatorLike, OnTrace
from transports.channels.base import CHANNELS, Channel, Group
from transports.collectives.base import COLLECTIVES, Collective
from transports.errors import OptionError


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
    """`ring/tcp` is collective/channel, `gloo` a whole stack. Raises OptionError naming what is allowed."""
    collective, slash, channel = text.partition("/")
    if slash:
        return Composed(COLLECTIVES.parse(collective), CHANNELS.parse(channel))
    if text in STACKS.kinds():
        return STACKS.parse(text)
    raise OptionError(
        f"{text!r} is not a stack; allowed: {', '.join(STACKS.kinds())}, or collective/channel with "
        f"collective one of {', '.join(COLLECTIVES.kinds())} and channel one of {', '.join(CHANNELS.kinds())}"
    )
