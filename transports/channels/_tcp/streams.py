"""Several TCP connections per pair of members: messages take them in turn.

Each connection has a window of its own, so that a long fat path fills sooner and a lost packet halves only one of them;
and ports of its own, so that switches may lead them over different ones of several equal paths. Both sides count the
messages of a pair and direction, and so agree on which connection the next one takes.
"""

from dataclasses import replace
from typing import NamedTuple

from transports.channels._tcp.endpoint import Peer, TcpEndpoint
from transports.channels._tcp.mesh import Configure, Mesh, connect_mesh
from transports.channels._tcp.program import LaneName, TcpProgram
from transports.channels.base import Header, Token
from transports.group import Group


class _Turns(NamedTuple):
    """Messages so far, by peer."""

    sequence: int
    """Of the last schedule that is counted."""
    num_sent: dict[int, int]
    num_received: dict[int, int]


class StreamsEndpoint(TcpEndpoint):
    """See :class:`transports.channels.base.Endpoint`. Its TCP connections are numbered peer + size x stream."""

    def __init__(self, group: Group, mesh: Mesh, num_streams: int, *, zero_copy_bytes: int = 0) -> None:
        super().__init__(group, mesh, zero_copy_bytes=zero_copy_bytes, num_streams=num_streams)
        self._size = group.size
        self._num_streams = num_streams
        self._turns = _Turns(0, dict.fromkeys(range(group.size), 0), dict.fromkeys(range(group.size), 0))

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        number = self._turns.num_sent[peer]
        self._turns.num_sent[peer] = number + 1
        return super().post_send(self._number(peer, number), header, view)

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        number = self._turns.num_received[peer]
        self._turns.num_received[peer] = number + 1
        return super().post_receive(self._number(peer, number), header, view)

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        return super().peek(self._number(peer, self._turns.num_received[peer]), deadline_s)

    def _number(self, peer: int, number: int) -> int:
        return peer + self._size * (number % self._num_streams)

    def _carrier(self, lane: LaneName) -> Peer:
        counts = self._turns.num_sent if lane.sends else self._turns.num_received
        return self._peers[self._number(lane.peer, counts[lane.peer] + lane.stream)]

    def _assign(self, program: TcpProgram) -> None:
        program.place([self._carrier(lane).native for lane in program.lanes])

    def _count(self, program: TcpProgram) -> None:
        if self._turns.sequence == self._sequence:
            return
        counted = _Turns(self._sequence, dict(self._turns.num_sent), dict(self._turns.num_received))
        for lane, state in zip(program.lanes, program.states, strict=True):
            (counted.num_sent if lane.sends else counted.num_received)[lane.peer] += state.num_steps
        self._turns = counted


def connect_streams(group: Group, configure: Configure, num_streams: int) -> Mesh:
    """A mesh for each stream, as one: connections are numbered as :class:`StreamsEndpoint` does. Raises what
    `connect_mesh` raises."""
    if num_streams == 1:
        return connect_mesh(group, configure)
    whole = Mesh()
    try:
        for stream in range(num_streams):
            mesh = connect_mesh(replace(group, name=f"{group.name}/stream{stream}"), configure)
            whole.sockets |= {peer + group.size * stream: each for peer, each in mesh.sockets.items()}
            whole.num_unknown_connections += mesh.num_unknown_connections
    except BaseException:
        whole.close()
        raise
    return whole
