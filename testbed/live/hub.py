"""Hands messages to every page that is open, each as fast as it takes them.

A page that does not keep up gets, in the place of what it missed, what there is now: nobody waits for it, and what is
kept for it is bounded. Used within one event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final

from testbed.live.messages import Message, encode
from testbed.live.state import State

MOST_PENDING: Final = 256
"""Messages kept for a page: some 20 s of a run."""
SILENCE_S: Final = 10.0
"""After so long without a message something is sent all the same, so that a connection that is dead is noticed."""


class Hub:
    """Who listens, and what there is to tell whoever comes late."""

    def __init__(self) -> None:
        self._state = State()
        self._pages: set[_Page] = set()
        self._closed = False

    @property
    def num_pages(self) -> int:
        """Open at this moment."""
        return len(self._pages)

    def publish(self, messages: Sequence[Message]) -> None:
        """Tell everybody."""
        encoded = []
        for message in messages:
            self._state.fold(message)
            encoded.append(encode(message))
        for page in self._pages:
            page.add(encoded)

    def restart(self, messages: Sequence[Message]) -> None:
        """Forget what there was: these messages stand for all."""
        self._state = State()
        for message in messages:
            self._state.fold(message)
        for page in self._pages:
            page.skip()

    def close(self) -> None:
        """Every page's stream ends when it has got what there is."""
        self._closed = True
        for page in self._pages:
            page.wake()

    async def stream(self) -> AsyncGenerator[str, None]:
        """Server-sent events (HTML standard, 9.2): `state` begins anew, `messages` go on; each a JSON list."""
        page = _Page()
        self._pages.add(page)
        try:
            yield "retry: 1000\n\n"
            while True:
                pending = page.take()
                if pending is None:
                    yield _event("state", [encode(message) for message in self._state.messages()])
                elif pending:
                    yield _event("messages", pending)
                elif self._closed:
                    return
                elif not await page.wait(SILENCE_S):
                    yield ": still here\n\n"
        finally:
            self._pages.discard(page)


class _Page:
    """What one page has not got yet."""

    def __init__(self) -> None:
        self._pending: list[str] | None = None
        """None: it needs the state."""
        self._woken = asyncio.Event()

    def add(self, encoded: Sequence[str]) -> None:
        if self._pending is not None:
            self._pending += encoded
            if len(self._pending) > MOST_PENDING:
                self._pending = None
        self._woken.set()

    def skip(self) -> None:
        self._pending = None
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    def take(self) -> list[str] | None:
        pending, self._pending = self._pending, []
        self._woken.clear()
        return pending

    async def wait(self, timeout_s: float) -> bool:
        """Whether something came."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), timeout_s)
        return self._woken.is_set()


def _event(name: str, encoded: Sequence[str]) -> str:
    return f"event: {name}\ndata: [{','.join(encoded)}]\n\n"
