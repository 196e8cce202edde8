"""The application behind the server that serves it, on loopback."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import uvicorn

from testbed.live.application import MOST_BODY_BYTES, Control, application, is_here
from testbed.live.hub import Hub
from testbed.live.messages import Links
from tests.live import opened

TOKEN = "a-token_of-22-letters."


class Served:
    """A hub, and a server in a thread of its own."""

    def __init__(self, *, controlled: bool = True) -> None:
        self.requests: list[Control] = []
        self.hub = Hub()
        self._control: Callable[[Control], None] | None = self.requests.append if controlled else None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        app = application(self.hub, token=TOKEN, control=self._control)
        configuration = uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(configuration)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._server.serve(sockets=[self._listening]))

    def within(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def close(self) -> None:
        self.within(self.hub.close)
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def ask(
        self, path: str, *, method: str = "GET", host: str = "127.0.0.1", body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("host", host)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return (
                answer.status,
                headers,
                b"" if headers.get("content-type", "").startswith("text/event") else answer.read(),
            )

    @contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, list[dict[str, Any]]]]]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", f"/{TOKEN}/events")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"

            def read() -> Iterator[tuple[str, list[dict[str, Any]]]]:
                name = ""
                while line := answer.readline().decode():
                    if line.startswith("event: "):
                        name = line.removeprefix("event: ").strip()
                    elif line.startswith("data: "):
                        yield name, json.loads(line.removeprefix("data: "))

            yield read()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def links(number: int, *, count: int = 4) -> Links:
    return Links(
        at_s=float(number), rate_bps=[1] * count, used_permille=[0] * count, waiting_bytes=[0] * count,
        dropped=[number] * count,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", "page.js", "page.css", "report.css"])
def test_the_page_is_served_and_loads_nothing_from_elsewhere(served: Served, name: str) -> None:
    status, headers, body = served.ask(f"/{TOKEN}/{name}")
    assert status == 200
    assert body
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/wrong/",
        "/wrong/events",
        f"/{TOKEN[:-1]}/",
        f"/{TOKEN}x/",
        "/favicon.ico",
        "//",
        "/%00/",
    ],
)
def test_who_does_not_know_the_token_gets_nothing(served: Served, path: str) -> None:
    status, headers, body = served.ask(path)
    assert status == 404
    assert TOKEN.encode() not in body
    assert "set-cookie" not in headers


@pytest.mark.parametrize("path", [f"/{TOKEN}/other", f"/{TOKEN}/../{TOKEN}/assets", f"/{TOKEN}/assets/page.js"])
def test_nothing_else_is_served(served: Served, path: str) -> None:
    assert served.ask(path)[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "localhost.evil"]
)
@pytest.mark.parametrize("path", [f"/{TOKEN}/", f"/{TOKEN}/events"])
def test_another_name_is_refused_even_with_the_token(served: Served, host: str, path: str) -> None:
    assert served.ask(path, host=host)[0] == 421


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True), ("LOCALHOST:8080", True), ("localhost.", True), ("127.0.0.1:1", True), ("[::1]:9", True),
        ("192.0.2.7", True), ("machine", True), ("other", False), ("[::1]x", False), ("127.1.evil", False), ("", False),
    ],
)  # fmt: skip
def test_addresses_and_own_names_are_here(host: str, here: bool) -> None:
    assert is_here(host, frozenset({"localhost", "machine"})) is here


def test_a_page_hears_what_there_is_and_what_comes(served: Served) -> None:
    served.within(served.hub.publish, [opened(workers=2), links(1)])
    with served.events() as events:
        name, messages = next(events)
        assert (name, [each["kind"] for each in messages]) == ("state", ["opening", "links"])
        served.within(served.hub.publish, [links(2)])
        assert next(events) == ("messages", [json.loads(json.dumps(vars(links(2))))])


def test_pages_that_do_not_read_hold_nobody_up(served: Served) -> None:
    """More than the sockets of those that do not read can hold."""
    served.within(served.hub.publish, [opened(workers=2)])
    with served.events() as quick:
        next(quick)
        lazy = []
        for _ in range(3):
            connection = socket.create_connection(("127.0.0.1", served.port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(f"GET /{TOKEN}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            lazy.append(connection)
        deadline_s = time.monotonic() + 10
        while served.hub.num_pages < 4:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        heard = 0
        for number in range(1, 401):
            served.within(served.hub.publish, [links(number, count=2000)])  # some 20 kB
            while heard < number:
                heard += sum(each["kind"] == "links" for each in next(quick)[1])
        assert heard == 400
        for connection in lazy:
            connection.close()


def test_a_replay_takes_requests_of_its_page(served: Served) -> None:
    path = f"/{TOKEN}/playback"
    assert served.ask(path, method="POST", body=b'{"paused": true, "speed": 4}')[0] == 204
    assert served.requests == [Control(paused=True, speed=4)]
    for body in (b"{", b'{"speed": 0}', b'{"speed": 1e9}', b'{"at_s": NaN}', b'{"colour": 1}', b"[]"):
        assert served.ask(path, method="POST", body=body)[0] == 422, body
    assert served.ask(path, method="POST", body=b" " * (MOST_BODY_BYTES + 1))[0] == 413
    assert served.ask(path)[0] == 405
    assert served.ask("/wrong/playback", method="POST", body=b"{}")[0] == 404
    assert len(served.requests) == 1


def test_of_a_run_that_goes_on_nothing_can_be_requested() -> None:
    with closing(Served(controlled=False)) as served:
        assert served.ask(f"/{TOKEN}/playback", method="POST", body=b"{}")[0] == 404
