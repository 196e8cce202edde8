"""The rendezvous of TCP groups: one connection between every two members, so that each sees every other's end.

A member listens on its own address, publishes where in the store, connects to all lower ranks and accepts all higher
ones. Each side of a new connection says who it is; whoever does not belong to the group is counted and closed.

Both ports of a connection follow from the group's name and the two ranks, so that a run that is repeated takes the same
of several equal paths, which switches choose by a hash of addresses and ports. A port that is taken (another program,
an earlier run's connections linger) is passed over for the next one drawn, in the end for the kernel's choice: the
group is then connected all the same, and only its paths may differ.
"""

import errno
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from transports.channels.base import Header
from transports.channels.framing import HEADER_BYTES, HELLO, group_id, pack, unpack
from transports.channels.ports import port_range, ports
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.group import Group, published

Configure = Callable[[socket.socket], None]


@dataclass(kw_only=True, slots=True)
class Mesh:
    """The connections of one member."""

    sockets: dict[int, socket.socket] = field(default_factory=dict)
    """By peer. Blocking, with whatever options `configure` set."""
    num_unknown_connections: int = 0
    """Connections that were closed because whoever made them does not belong to the group."""

    def close(self) -> None:
        """Close all connections."""
        for connection in self.sockets.values():
            connection.close()


def connect_mesh(group: Group, configure: Configure, *, protocol: int = socket.IPPROTO_TCP) -> Mesh:
    """Connect to every other member; `configure` sets the options of each socket before it connects or listens.
    `protocol` is TCP's or that of a kernel's relative of it.

    Raises PeerTimeoutError naming a member that did not appear within the group's timeout, PeerLostError when one
    appeared and went away again.
    """
    deadline_s = time.monotonic() + group.timeout_s
    mesh = Mesh()
    with _listen(group, configure, protocol) as listener:
        address, port = listener.getsockname()[:2]
        group.store.set(f"{group.name}/{group.rank}", f"{address}:{port}")
        try:
            called = {}
            for peer in range(group.rank):
                mesh.sockets[peer], called[peer] = _call(group, peer, configure, protocol, deadline_s)
            for peer, listening in called.items():
                _greet(group, peer, listening, mesh.sockets[peer], deadline_s)
            _accept_higher(group, listener, mesh, deadline_s)
            for peer in range(group.rank):
                _check_answer(group, peer, mesh.sockets[peer], deadline_s)
        except BaseException:
            mesh.close()
            raise
    return mesh


def hello(group: Group) -> bytes:
    """What each side of a connection says first."""
    return pack(Header(group_id(group.name), 0, HELLO, 0, group.size, group.rank))


def rank_of(said: bytes, group: Group) -> int | None:
    """The rank that says hello, or None for an unknown connection."""
    if len(said) != HEADER_BYTES:
        return None
    try:
        header = unpack(said)
    except FrameMismatchError:
        return None
    ours = header.operation == HELLO and header.group == group_id(group.name) and header.count == group.size
    return header.phase if ours else None


def _bind(bound: socket.socket, group: Group, peer: int | None) -> None:
    """To the group's own address and the first of the ports that is free. Raises OSError."""
    address = socket.getaddrinfo(group.address, 0, family=bound.family, type=socket.SOCK_STREAM)[0][4]
    for port in ports(group.name, group.rank, peer, port_range()):
        try:
            bound.bind((address[0], port, *address[2:]))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == 0:
                raise
        else:
            return


def _listen(group: Group, configure: Configure, protocol: int) -> socket.socket:
    family, kind, _, _, _ = socket.getaddrinfo(group.address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        configure(listener)
        _bind(listener, group, None)
        listener.listen(max(group.size, 16))
    except OSError as error:
        listener.close()
        raise TransportError(f"rank {group.rank} cannot listen on {group.address}: {error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def _call(group: Group, peer: int, configure: Configure, protocol: int, deadline_s: float) -> tuple[socket.socket, str]:
    """Begin to connect to the address where the peer listens: handshakes with all peers together take one round trip,
    not one each."""
    listening = published(group, f"{group.name}/{peer}", peer, "its address in the store", deadline_s)
    host, _, port = listening.rpartition(":")
    family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind, protocol)
    try:
        configure(connection)
        _bind(connection, group, peer)
        connection.setblocking(False)
        with suppress(BlockingIOError):  # EINPROGRESS
            connection.connect(address)
    except OSError as error:
        connection.close()
        raise PeerLostError(peer, f"{listening}: {error.strerror}") from error
    except BaseException:
        connection.close()
        raise
    return connection, listening


def _greet(group: Group, peer: int, listening: str, connection: socket.socket, deadline_s: float) -> None:
    """Say hello as soon as the connection is made."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_WRITE)
        if not selector.select(max(deadline_s - time.monotonic(), 0.001)):
            raise PeerTimeoutError(peer, group.timeout_s, f"a connection to {listening}")
    try:
        connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
        connection.sendall(hello(group))  # a connection that could not be made says so here
    except OSError as error:
        raise PeerLostError(peer, f"{listening}: {error.strerror}") from error


def _check_answer(group: Group, peer: int, connection: socket.socket, deadline_s: float) -> None:
    """The lower rank says hello too: who listens at a published address may have changed."""
    answer = b""
    try:
        while len(answer) < HEADER_BYTES:
            connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            data = connection.recv(HEADER_BYTES - len(answer))
            if not data:
                raise PeerLostError(peer, "it closed the connection during the rendezvous")
            answer += data
    except TimeoutError as error:
        raise PeerTimeoutError(peer, group.timeout_s, "its answer in the rendezvous") from error
    except OSError as error:
        raise PeerLostError(peer, f"during the rendezvous: {error.strerror}") from error
    if rank_of(answer, group) != peer:
        raise PeerLostError(peer, "somebody else listens at its address")
    connection.settimeout(None)


def _accept_higher(group: Group, listener: socket.socket, mesh: Mesh, deadline_s: float) -> None:
    """Accept until every higher rank is there. A connection that says nothing holds nobody up."""
    listener.setblocking(False)
    unknown: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while len(mesh.sockets) < group.size - 1:
                ready = selector.select(max(deadline_s - time.monotonic(), 0.0))
                if not ready and time.monotonic() >= deadline_s:
                    missing = min(set(range(group.rank + 1, group.size)) - mesh.sockets.keys())
                    raise PeerTimeoutError(missing, group.timeout_s, "its connection")
                arrived = [key.fileobj for key, _ in ready if isinstance(key.fileobj, socket.socket)]
                if listener in arrived:
                    arrived.remove(listener)
                    with suppress(OSError):  # it may have gone away again
                        connection, _ = listener.accept()
                        connection.setblocking(False)
                        unknown[connection] = b""
                        selector.register(connection, selectors.EVENT_READ)
                for connection in arrived:
                    complete = _hear(connection, unknown)
                    if complete is not None:
                        selector.unregister(connection)
                        del unknown[connection]
                        _admit(group, mesh, connection, complete)
        finally:
            mesh.num_unknown_connections += len(unknown)
            for connection in unknown:
                connection.close()


def _hear(connection: socket.socket, unknown: dict[socket.socket, bytes]) -> bytes | None:
    """What a new connection has said once it has said HEADER_BYTES or left; None while there is more to come."""
    try:
        data = connection.recv(HEADER_BYTES - len(unknown[connection]))
    except BlockingIOError:
        return None
    except OSError:
        data = b""
    unknown[connection] += data
    return unknown[connection] if not data or len(unknown[connection]) == HEADER_BYTES else None


def _admit(group: Group, mesh: Mesh, connection: socket.socket, said: bytes) -> None:
    """Answer a member that is still missing; close anybody else."""
    rank = rank_of(said, group)
    if rank is None or not group.rank < rank < group.size or rank in mesh.sockets:
        mesh.num_unknown_connections += 1
        connection.close()
        return
    mesh.sockets[rank] = connection
    with suppress(OSError):  # if it is gone already, the first operation says so
        connection.sendall(hello(group))
