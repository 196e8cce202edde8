"""The page's server, as an ASGI application: who may ask, and what for.

Nobody is answered who does not know the token in the URL, nor under a name that is not this machine's: a page of
somebody else's, whose name resolves to this machine (DNS rebinding), learns nothing. The page itself asks nobody else.
"""

import hmac
import ipaddress
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from testbed.live.hub import Hub

MOST_BODY_BYTES: Final = 1000
_NAMES: Final = frozenset({"localhost"})
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_ASSETS: Final = {
    "": ("text/html", ("testbed.live", "assets/page.html")),
    "page.js": ("text/javascript", ("testbed.live", "assets/page.js")),
    "page.css": ("text/css", ("testbed.live", "assets/page.css")),
    "report.css": ("text/css", ("testbed.report", "templates/_style.css")),
}
"""By the rest of the path: media type, package and file."""


class Control(BaseModel):
    """What a page asks of a replay; what it leaves out stays as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paused: bool | None = None
    speed: Annotated[float, Field(ge=0.05, le=1000)] | None = None
    at_s: Annotated[float, Field(allow_inf_nan=False)] | None = None


def application(
    hub: Hub, *, token: str, names: frozenset[str] = _NAMES, control: Callable[[Control], None] | None = None
) -> Starlette:
    """`names`: of this machine, beside its addresses. `control` is called with what pages ask of a replay; None: there
    is nothing to ask."""

    async def asset(request: Request) -> Response:
        media_type, (package, name) = _ASSETS[request.url.path.rpartition("/")[2]]
        return Response(files(package).joinpath(name).read_bytes(), media_type=media_type)

    async def events(_: Request) -> Response:
        return StreamingResponse(hub.stream(), media_type="text/event-stream")

    async def playback(request: Request) -> Response:
        assert control is not None
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BODY_BYTES:
                return PlainTextResponse("too long\n", status_code=413)
        try:
            control(Control.model_validate(json.loads(body)))
        except (ValueError, ValidationError) as error:
            return PlainTextResponse(f"{error}\n", status_code=422)
        return Response(status_code=204)

    routes = [Route(f"/{{token}}/{name}", asset) for name in _ASSETS]
    routes.append(Route("/{token}/events", events))
    if control is not None:
        routes.append(Route("/{token}/playback", playback, methods=["POST"]))
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, names=names)])


class Guard:
    """Lets nobody in who does not know the token, or asks for another machine; ASGI middleware."""

    def __init__(self, app: ASGIApp, *, token: str, names: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not is_here(hosts[0].decode("latin-1"), self._names):
            rejection = PlainTextResponse("this machine is not called so\n", status_code=421)
        elif not hmac.compare_digest("".join(scope["path"].split("/")[1:2]).encode(), self._token):
            rejection = PlainTextResponse("there is nothing here; the address has a token in it\n", status_code=404)
        else:
            await self._app(scope, receive, _with_headers(send))
            return
        await rejection(scope, receive, _with_headers(send))


def is_here(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header (RFC 9110, 7.2) names this machine: by an address, which nobody else can make resolve to
    something, or by one of these names."""
    if host.startswith("["):
        name, closed, port = host[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            return False
    else:
        name = host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().removesuffix(".") in names
    return True


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given: list[Any] = list(message.get("headers", []))
            message = {
                **message,
                "headers": [*given, *((key.encode(), value.encode()) for key, value in _HEADERS.items())],
            }
        await send(message)

    return sending
