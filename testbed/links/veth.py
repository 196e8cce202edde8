"""The command that makes a link on one machine. Pure."""

from typing import NamedTuple


class End(NamedTuple):
    """One end of a link that is to be made."""

    interface: str
    mac: str
    pid: int
    """A process in the node's namespace."""


def pair_command(first: End, second: End) -> str:
    """A line for `ip -batch`: a pair made directly between two namespaces, never seen in any other."""
    return (
        f"link add name {first.interface} address {first.mac} netns {first.pid} type veth "
        f"peer name {second.interface} address {second.mac} netns {second.pid}"
    )
