"""Several TCP connections per pair of members: messages take them in turn.

Each connection has a window of its own, so that a long fat path fills sooner and a lost packet halves only one of them;
and ports of its own, so that switches may lead them over different ones of several equal paths. Both sides count the
messages of a pair and direction, and so agree on which connection the next one takes.
"""

from collections import defaultdict
from dataclasses import replace
from typing import ClassVar

from transports.channels._tcp_endpoint import TcpEndpoint
from transports.channels._tcp_mesh import Configure, Mesh, connect_mesh
from transports.channels.base import Group, Header, Token


class StreamsEndpoint(TcpEndpoint):
    """See :class:`transports.channels.base.Endpoint`. Its TCP connections are numbered peer + size x stream."""

    carries_schedules: ClassVar[bool] = False

    def __init__(self, group: Group, mesh: Mesh, num_streams: int) -> None:
        super().__init__(group, mesh)
        self._size = group.size
        self._num_streams = num_streams
        self._num_sent: defaultdict[int, int] = defaultdict(int)
        self._num_received: defaultdict[int, int] = defaultdict(int)

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        number = self._num_sent[peer]
        self._num_sent[peer] = number + 1
        return super().post_send(self._connection(peer, number), header, view)

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        number = self._num_received[peer]
        self._num_received[peer] = number + 1
        return super().post_receive(self._connection(peer, number), header, view)

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        return super().peek(self._connection(peer, self._num_received[peer]), deadline_s)

    def _connection(self, peer: int, number: int) -> int:
        return peer + self._size * (number % self._num_streams)


def connect_streams(group: Group, configure: Configure, num_streams: int) -> Mesh:
    """A mesh for each stream, as one: connections are numbered as :class:`StreamsEndpoint` does. Raises what
    `connect_mesh` raises."""
    whole = Mesh()
    try:
        for stream in range(num_streams):
            mesh = connect_mesh(replace(group, name=f"{group.name}/stream{stream}"), configure)
            whole.sockets |= {peer + group.size * stream: each for peer, each in mesh.sockets.items()}
            whole.num_strangers += mesh.num_strangers
    except BaseException:
        whole.close()
        raise
    return whole
