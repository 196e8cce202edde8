import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from testbed.live.hub import MOST_PENDING, Hub
from testbed.live.messages import Phase
from tests.live import opened


def phases(count: int, *, start: int = 0) -> list[Phase]:
    return [Phase(at_s=float(number), name=f"phase {number}") for number in range(start, start + count)]


async def event(stream: AsyncGenerator[str, None]) -> tuple[str, list[dict[str, Any]]]:
    """The next one: what it is called, and its messages."""
    async with asyncio.timeout(5):
        name, data = (await anext(stream)).strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def begun(hub: Hub) -> AsyncGenerator[str, None]:
    stream = hub.stream()
    assert (await anext(stream)).startswith("retry:")
    return stream


def test_who_comes_late_gets_what_there_is_and_then_what_comes() -> None:
    async def scenario() -> None:
        hub = Hub()
        hub.publish([opened(workers=2), *phases(3)])
        stream = await begun(hub)
        name, messages = await event(stream)
        assert (name, [each["kind"] for each in messages]) == ("state", ["opening", "phase"])
        hub.publish(phases(2, start=7))
        name, messages = await event(stream)
        assert (name, [each["name"] for each in messages]) == ("messages", ["phase 7", "phase 8"])
        hub.close()
        assert [each async for each in stream] == []

    asyncio.run(scenario())


def test_who_does_not_keep_up_gets_the_state_and_nobody_else_notices() -> None:
    async def scenario() -> None:
        hub = Hub()
        hub.publish([opened(workers=2)])
        slow, quick = await begun(hub), await begun(hub)
        await event(slow)
        await event(quick)
        heard = []
        for number in range(MOST_PENDING + 10):
            hub.publish(phases(1, start=number))
            heard += (await event(quick))[1]
        assert [each["name"] for each in heard] == [each.name for each in phases(MOST_PENDING + 10)]
        name, messages = await event(slow)
        assert (name, [each["kind"] for each in messages]) == ("state", ["opening", "phase"])
        assert messages[-1]["name"] == f"phase {MOST_PENDING + 9}"

    asyncio.run(scenario())


def test_a_restart_replaces_what_there_was() -> None:
    async def scenario() -> None:
        hub = Hub()
        hub.publish([opened(workers=2), *phases(3)])
        stream = await begun(hub)
        await event(stream)
        hub.publish(phases(1, start=8))
        hub.restart([opened(workers=2)])
        assert [each["kind"] for each in (await event(stream))[1]] == ["opening"]

    asyncio.run(scenario())


def test_a_page_that_is_closed_is_forgotten() -> None:
    async def scenario() -> None:
        hub = Hub()
        stream = hub.stream()
        await anext(stream)
        assert hub.num_pages == 1
        await stream.aclose()
        assert hub.num_pages == 0

    asyncio.run(scenario())


def test_where_nothing_happens_something_is_sent_all_the_same(monkeypatch: Any) -> None:
    monkeypatch.setattr("testbed.live.hub.SILENCE_S", 0.01)

    async def scenario() -> None:
        stream = await begun(Hub())
        assert await event(stream) == ("state", [])
        assert (await anext(stream)).startswith(":")

    asyncio.run(scenario())
