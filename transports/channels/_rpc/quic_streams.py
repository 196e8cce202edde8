"""QUIC connections between the members of a group, moved by one asyncio loop on a thread of its own.

Every member listens on its own address and calls all lower ranks. A message is a unidirectional stream: whole when its
stream has ended, and in order because streams are numbered. The first stream each way is a hello. What a member sends
is encrypted with a certificate that it made in memory for this group; the store that the members meet in hands on the
certificate, which is the only one its callers trust, and a word that they must say to be let in. Neither is ever in a
file of ours.

What arrives is acknowledged at once and waits here for its receive, so that a sender is not held back by a receiver
that is busy: QUIC's windows limit what is on the way, not what waits.
"""

import asyncio
import base64
import datetime as dt
import ipaddress
import json
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from transports.channels._rpc.grpc_streams import SILENT_TOKEN, Outgoing, Stream
from transports.channels._tcp.mesh import hello, rank_of
from transports.channels.base import Token
from transports.channels.framing import GOODBYE, HEADER_BYTES, Farewell, unpack
from transports.channels.ports import port_range, ports
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError, UnsupportedError
from transports.group import Group, published

if TYPE_CHECKING:
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import NetworkAddress
    from aioquic.quic.events import ConnectionTerminated, QuicEvent

MAX_DATAGRAM_BYTES: Final = 1500 - 20 - 8
IDLE_TIMEOUT_S: Final = 10.0
"""A peer that acknowledges nothing for so long is dead; QUIC has no reset that a kernel could send for it."""
_PING_S: Final = 2.0
_WINDOW_BYTES: Final = 16 << 20
_PROTOCOL: Final = "testbed"
_WORD_BYTES: Final = 16
_PIECE_BYTES: Final = 32 * 1024
"""Of a message are handed on at a time, or its rest: a datagram at a time would wake the waiting thread for each, which
with more workers than cores took as long as the datagram itself."""
_STREAM_STEP: Final = 4
"""Between the numbers of one side's unidirectional streams (RFC 9000, 2.1)."""


def require_aioquic() -> None:
    """Raises UnsupportedError where it is not installed."""
    try:
        import aioquic.asyncio  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("channel quic: aioquic is missing: pip install 'ina-testbed[quic]'") from error


class QuicStreams:
    """One member's connections to all others. Implements transports.channels._rpc.endpoint.Streams."""

    def __init__(self, group: Group, congestion: str) -> None:
        """Connect to every other member.

        Raises UnsupportedError where aioquic is not installed, PeerTimeoutError naming a member that did not appear
        within the group's timeout, PeerLostError for one that appeared and went away again.
        """
        require_aioquic()
        self._group = group
        self._congestion = congestion
        self._word = secrets.token_bytes(_WORD_BYTES)
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.streams: dict[int, Stream] = {}
        self.sent: list[Token] = []
        self._connections: dict[int, QuicConnectionProtocol] = {}
        self._transports: list[asyncio.BaseTransport] = []
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"QUIC of {group.name}", daemon=True)
        self._thread.start()
        try:
            self._connect(time.monotonic() + group.timeout_s)
        except BaseException:
            self.close(None, 0.0)
            raise

    def post(self, peer: int, outgoing: Outgoing) -> None:
        """See :class:`Streams`."""
        with self.lock:
            self.streams[peer].outgoing.append(outgoing)
        with suppress(RuntimeError):  # the loop has ended: whoever waits hears of it
            self._loop.call_soon_threadsafe(self._pump, peer)

    def take(self, stream: Stream) -> bytes:
        """See :class:`Streams`."""
        stream.moved_s = time.monotonic()
        return stream.arrived.popleft()

    def let_go(self) -> None:
        """See :class:`Streams`."""
        with self.lock:
            for stream in self.streams.values():
                stream.outgoing = deque(message for message in stream.outgoing if message.token == SILENT_TOKEN)

    def close(self, farewell: Farewell | None, grace_s: float) -> None:
        """See :class:`Streams`. Callable once, from any thread."""
        deadline_s = time.monotonic() + grace_s
        with self.lock:
            self._closing = True
            if farewell is not None:
                goodbye = farewell.pack(self._group.name)
                for peer, stream in self.streams.items():
                    stream.outgoing.append(Outgoing(token=SILENT_TOKEN, packed=goodbye, view=memoryview(b"")))
                    self._loop.call_soon_threadsafe(self._pump, peer)
                while not all(stream.ended is not None for stream in self.streams.values()):
                    if not self.changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                        break
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _connect(self, deadline_s: float) -> None:
        group = self._group
        server, certificate = self._server_configuration()
        port = self._on_loop(self._listen(server)).result()
        published_here = {
            "port": port,
            "address": group.address,
            "certificate": certificate.decode("ascii"),
            "word": base64.b64encode(self._word).decode("ascii"),
        }
        group.store.set(f"{group.name}/{group.rank}/quic", json.dumps(published_here))
        for peer in range(group.rank):
            announced = published(group, f"{group.name}/{peer}/quic", peer, "its address in the store", deadline_s)
            self._on_loop(self._call(peer, json.loads(announced))).result()
        with self.lock:
            while missing := set(range(group.size)) - {group.rank} - self.streams.keys():
                if not self.changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    raise PeerTimeoutError(min(missing), group.timeout_s, "its QUIC connection")
                for stream in self.streams.values():
                    if stream.rank < group.rank and stream.ended is not None and not stream.arrived:
                        raise PeerLostError(stream.rank, stream.ended)
        self._loop.call_soon_threadsafe(self._ping)

    def _on_loop(self, coroutine: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # On the loop's thread.

    async def _listen(self, configuration: "QuicConfiguration") -> int:
        from aioquic.asyncio.server import QuicServer

        def served() -> QuicServer:
            return QuicServer(configuration=configuration, create_protocol=_connection_class(self, None))

        for port in ports(f"{self._group.name}/quic", self._group.rank, None, port_range()):
            with suppress(OSError):
                transport, _ = await self._loop.create_datagram_endpoint(served, local_addr=(self._group.address, port))
                self._transports.append(transport)
                return int(transport.get_extra_info("sockname")[1])
        raise TransportError(f"rank {self._group.rank} cannot listen on {self._group.address}")

    async def _call(self, peer: int, announced: dict[str, Any]) -> None:
        from aioquic.quic.connection import QuicConnection

        configuration = self._configuration(is_client=True)
        configuration.server_name = announced["address"]
        configuration.load_verify_locations(cadata=announced["certificate"].encode("ascii"))

        def dialling() -> "QuicConnectionProtocol":
            return _connection_class(self, peer)(QuicConnection(configuration=configuration))

        transport, connection = await self._loop.create_datagram_endpoint(dialling, local_addr=(self._group.address, 0))
        self._transports.append(transport)
        connection.connect((announced["address"], announced["port"]))
        # It goes out when the handshake is over.
        self._send(connection, base64.b64decode(announced["word"]) + hello(self._group))

    def admitted(self, connection: "QuicConnectionProtocol", said: bytes, called: int | None) -> int | None:
        """The rank at the other end, judged by the first message from there; None for an unknown connection."""
        word, rest = (self._word, said[_WORD_BYTES:]) if called is None else (b"", said)
        rank = rank_of(rest, self._group)
        with self.lock:
            welcome = rank == called if called is not None else rank is not None and rank > self._group.rank
            welcome = welcome and (called is not None or secrets.compare_digest(said[:_WORD_BYTES], word))
            if rank is None or not welcome or rank in self.streams or self._closing:
                return None
        if called is None:
            self._send(connection, hello(self._group))
        with self.lock:
            self._connections[rank] = connection
            self.streams[rank] = Stream(
                rank=rank,
                cancel=lambda: None,
                fed=threading.Condition(self.lock),
                taken=threading.Condition(self.lock),
                moved_s=time.monotonic(),
            )
            self.changed.notify_all()
        return rank

    def arrived(self, rank: int, data: bytes, *, whole: bool) -> None:
        """A piece of a message, the first with its header; a goodbye is answered by ending the connection."""
        with self.lock:
            self.streams[rank].arrived.append(data)
            self.changed.notify_all()
        if whole and len(data) == HEADER_BYTES:
            with suppress(FrameMismatchError):
                if unpack(data).operation == GOODBYE:
                    self._connections[rank].close()
                    self.ended(rank)  # aioquic says so later: see Connection.datagram_received

    def ended(self, rank: int, phrase: str = "") -> None:
        """No more will come from there; `phrase` is QUIC's reason. Idempotent."""
        reason = f"its QUIC connection ended{f': {phrase}' if phrase else ''}"
        with self.lock:
            stream = self.streams.get(rank)
            if stream is None:  # it was called and never answered
                stream = self.streams[rank] = Stream(
                    rank=rank,
                    cancel=lambda: None,
                    fed=threading.Condition(self.lock),
                    taken=threading.Condition(self.lock),
                )
            stream.ended = stream.ended or reason
            self.changed.notify_all()

    def _pump(self, peer: int) -> None:
        """Hand what waits for a peer to QUIC."""
        stream = self.streams[peer]
        while (message := self._copied(stream)) is not None:
            token, data = message
            self._send(self._connections[peer], data)
            with self.lock:
                if token != SILENT_TOKEN:
                    stream.num_sent_bytes += len(data)
                    self.sent.append(token)
                stream.moved_s = time.monotonic()
                self.changed.notify_all()

    def _copied(self, stream: Stream) -> tuple[Token, bytes] | None:
        """The next message that waits, which has left its view with that; None where there is none."""
        with self.lock:  # under which views are let go of
            if stream.ended is not None or not stream.outgoing:
                return None
            message = stream.outgoing.popleft()
            return message.token, b"".join((message.packed, message.view))

    def _send(self, connection: "QuicConnectionProtocol", data: bytes) -> None:
        quic = connection._quic  # noqa: SLF001 - the adapter's own streams would be of text-like readers and writers
        quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), data, end_stream=True)
        connection.transmit()

    def _ping(self) -> None:
        """An idle connection must not look like a dead one."""
        with self.lock:
            alive = [self._connections[peer] for peer, stream in self.streams.items() if stream.ended is None]
            if self._closing or not alive:
                return
        for connection in alive:
            connection._quic.send_ping(0)  # noqa: SLF001 - ping() would wait for the answer
            connection.transmit()
        self._loop.call_later(_PING_S, self._ping)

    async def _shut_down(self) -> None:
        for connection in self._connections.values():
            connection.close()
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    def _configuration(self, *, is_client: bool) -> "QuicConfiguration":
        from aioquic.quic.configuration import QuicConfiguration

        return QuicConfiguration(
            is_client=is_client,
            alpn_protocols=[_PROTOCOL],
            congestion_control_algorithm=self._congestion,
            idle_timeout=IDLE_TIMEOUT_S,
            max_data=_WINDOW_BYTES,
            max_stream_data=_WINDOW_BYTES,
            max_datagram_size=MAX_DATAGRAM_BYTES,
        )

    def _server_configuration(self) -> "tuple[QuicConfiguration, bytes]":
        """With a certificate for this member's address, made here, and the same as its callers get it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"rank {self._group.rank}")])
        day, now = dt.timedelta(days=1), dt.datetime.now(dt.UTC)
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(self._group.address))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + 30 * day)
            .add_extension(alternative, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        configuration = self._configuration(is_client=False)
        configuration.certificate, configuration.private_key = certificate, key
        return configuration, certificate.public_bytes(Encoding.PEM)


def _connection_class(streams: QuicStreams, called: int | None) -> "type[QuicConnectionProtocol]":
    """A connection of theirs, whose class is known only where aioquic is there. `called` is the rank that it was made
    to reach; None: somebody called us."""
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic.connection import QuicConnectionState
    from aioquic.quic.events import ConnectionTerminated, StreamDataReceived

    class Connection(QuicConnectionProtocol):
        rank: int | None = None
        """Of the peer, once it has said hello."""
        following: int | None = None
        """The number of the stream whose data is due."""
        waiting: dict[int, tuple[bytearray, bool]]
        """What has come of streams: that of the stream that is due since the last piece handed on, of later ones all;
        and whether it was the end."""
        begun: bool = False
        """The header of the stream that is due has been handed on."""

        def datagram_received(self, data: bytes | str, addr: "NetworkAddress") -> None:
            super().datagram_received(data, addr)
            # aioquic says so three probe timeouts later (RFC 9000, 10.2.2), which after a pause may be half a minute.
            if self._quic._state is QuicConnectionState.DRAINING and self._quic._close_event is not None:  # noqa: SLF001
                self._terminated(self._quic._close_event)  # noqa: SLF001

        def quic_event_received(self, event: "QuicEvent") -> None:
            if isinstance(event, StreamDataReceived):
                self._received(event.stream_id, event.data, over=event.end_stream)
            elif isinstance(event, ConnectionTerminated):
                self._terminated(event)

        def _terminated(self, event: "ConnectionTerminated") -> None:
            """One side has closed it, or it has timed out. Idempotent."""
            rank = self.rank if self.rank is not None else called
            if rank is not None:
                streams.ended(rank, event.reason_phrase)

        def _received(self, number: int, data: bytes, *, over: bool) -> None:
            if self.following is None:
                self.following, self.waiting = number % _STREAM_STEP, {}
            held, ended = self.waiting.get(number, (bytearray(), False))
            held += data
            self.waiting[number] = held, ended or over
            while (found := self.waiting.get(self.following)) is not None and self._hand_on(*found):
                del self.waiting[self.following]
                self.following += _STREAM_STEP
                self.begun = False

        def _hand_on(self, held: bytearray, ended: bool) -> bool:
            """What has come of the stream that is due; returns whether that was all of it."""
            if self.rank is None:
                if ended and (rank := streams.admitted(self, bytes(held), called)) is not None:
                    self.rank = rank
                elif ended:
                    self.close(reason_phrase="unknown connection")
                return ended
            if held and (ended or len(held) >= _PIECE_BYTES):
                piece = bytes(held)
                held.clear()
                whole = ended and not self.begun
                self.begun = True
                streams.arrived(self.rank, piece, whole=whole)
            return ended

    return Connection
