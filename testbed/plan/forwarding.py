"""From a network to ports and what each node is set up with, as the kind of switches has it. Pure."""

import importlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from testbed.experiment.switch_modes.base import SwitchMode
from testbed.experiment.topologies.base import Network
from testbed.plan.addressing import NodeAddresses, Port
from testbed.plan.paths import NextHops


class Forwarding(NamedTuple):
    """How packets get from node to node."""

    links: tuple[tuple[Port, Port], ...]
    """Both ends of each, in the order of the network's edges."""
    addresses: Mapping[str, NodeAddresses]
    """Of every node, by name."""


class Layout(Protocol):
    """What a switch mode names."""

    def __call__(
        self, network: Network, hops: NextHops
    ) -> tuple[tuple[tuple[Port, Port], ...], Mapping[str, NodeAddresses]]:
        """The parts of a :class:`Forwarding`, given the next hops towards every host. Raises SpecError for a network
        that cannot be had so."""


def forwarding(mode: SwitchMode, network: Network, hops: NextHops) -> Forwarding:
    """As the mode has it. Raises SpecError for a network that cannot be had so."""
    module, _, name = mode.layout.partition(":")
    layout: Layout = getattr(importlib.import_module(module), name)
    return Forwarding(*layout(network, hops))
