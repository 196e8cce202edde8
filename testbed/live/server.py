"""Serves a page until nothing more comes: of a run, in a process of its own that hears of the run through a socket
(:func:`main`), or of a record (:func:`serve_replay`).

The process of a run takes no time that anybody else wants: SCHED_IDLE (sched(7)), in a session whose autogroup has the
least weight.
"""

import asyncio
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict

from testbed.errors import MissingRequirementError, SpecError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from testbed.live.hub import Hub
    from testbed.live.replay import Timeline

LOOPBACK: Final = "127.0.0.1"
MOST_PACKET_BYTES: Final = 1 << 20
_LINGER_S: Final = 2.0
"""So long pages have to take what there was to say at the end."""
_POLL_S: Final = 0.02
_MOST_CONNECTIONS: Final = 100
_TOKEN_BYTES: Final = 16


class Place(BaseModel):
    """Where a page is served, and to whom; the first packet that the process of a run gets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    port: int
    token: str

    @property
    def url(self) -> str:
        """What a browser is given."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/{self.token}/"

    @property
    def names(self) -> frozenset[str]:
        """What this machine may be called by who asks: where others reach it, its own name, too."""
        beyond = not ipaddress.ip_address(self.address).is_loopback
        return frozenset({"localhost", *((socket.gethostname().lower(), socket.getfqdn().lower()) if beyond else ())})


def require_framework() -> None:
    """Raise MissingRequirementError where what serves pages is not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise MissingRequirementError(f"the live page needs {' and '.join(missing)}: pip install 'ina-testbed[live]'")


def listen(address: str, port: int, *, option: str) -> tuple[socket.socket, Place]:
    """A socket that listens, and the page's place with a token of its own; port 0 takes any free one. `option` is the
    prefix by which errors name the options. Raises SpecError and MissingRequirementError."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        raise SpecError(
            f"{option}address: {address!r} is no address; write one of this machine's: {LOOPBACK}"
        ) from None
    try:
        listening = socket.create_server((address, port), family=family)
    except OSError as error:
        raise MissingRequirementError(
            f"{option}port: {address}:{port} cannot be had ({error.strerror or error}); choose another, or leave it "
            "out for any free one"
        ) from error
    return listening, Place(address=address, port=listening.getsockname()[1], token=secrets.token_urlsafe(_TOKEN_BYTES))


async def _serve(app: "ASGIApp", hub: "Hub", listening: socket.socket, source: Coroutine[Any, Any, None]) -> None:
    """Until the source ends, or a signal comes; pages get what there is."""
    import uvicorn

    class Server(uvicorn.Server):
        """Ends its streams when it is to end: they have no end of their own."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            hub.close()

    configuration = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses have the token in them
        server_header=False,
        lifespan="off",
        ws="none",
        http="h11",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = Server(configuration)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    telling = asyncio.ensure_future(source)
    await asyncio.wait({serving, telling}, return_when=asyncio.FIRST_COMPLETED)
    if telling.done():
        hub.close()
        deadline_s = asyncio.get_running_loop().time() + _LINGER_S
        while hub.num_pages and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_POLL_S)
    telling.cancel()
    server.should_exit = True
    await serving
    with suppress(asyncio.CancelledError):
        await telling


def serve_replay(timeline: "Timeline", listening: socket.socket, place: Place, *, speed: float, paused: bool) -> None:
    """Serve it until a signal comes."""
    from testbed.live.application import application
    from testbed.live.hub import Hub
    from testbed.live.replay import Player

    async def serve() -> None:
        hub = Hub()
        player = Player(timeline, hub, speed=speed, paused=paused)
        app = application(hub, token=place.token, names=place.names, control=player.control)
        await _serve(app, hub, listening, player.play())

    asyncio.run(serve())


def main(listening_descriptor: str, feed_descriptor: str) -> None:
    """The process of a run's page: serve what comes through the feed until that is closed."""
    _stand_back()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from testbed.live.application import application
    from testbed.live.hub import Hub
    from testbed.live.messages import Over, decode

    listening = socket.socket(fileno=int(listening_descriptor))
    feed = socket.socket(fileno=int(feed_descriptor))
    place = Place.model_validate_json(feed.recv(MOST_PACKET_BYTES))

    async def serve() -> None:
        hub = Hub()
        await _serve(application(hub, token=place.token, names=place.names), hub, listening, relay(hub))

    async def relay(hub: Hub) -> None:
        feed.setblocking(False)
        loop, over = asyncio.get_running_loop(), False
        with suppress(ConnectionError):
            while packet := await loop.sock_recv(feed, MOST_PACKET_BYTES):
                message = decode(packet)
                over = isinstance(message, Over)
                hub.publish([message])
        if not over:
            hub.publish([Over(num_dropped=0)])

    asyncio.run(serve())


def _stand_back() -> None:
    """Take what nobody else wants."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # a kernel without autogroups weighs processes one by one
        Path("/proc/self/autogroup").write_text("19")


if __name__ == "__main__":
    main(*sys.argv[1:])
