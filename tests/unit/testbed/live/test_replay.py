"""A record that is replayed says what the run said."""

import asyncio
import time
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import testbed.live.replay
from testbed.errors import SpecError
from testbed.live.application import Control
from testbed.live.hub import Hub
from testbed.live.messages import Ending, Iteration, Links, Message, Playback
from testbed.live.replay import Player, timeline_of
from testbed.live.translation import translator_of
from testbed.record.reader import load
from tests.live import batches, experiment, opened, recorded, without
from tests.unit.testbed.conftest import Model, Scenario

SCENARIO = Scenario(num_iterations=8)
RECORDS = Path(__file__).parents[3] / "records"


def by_kind(messages: Sequence[Message]) -> dict[str, list[Message]]:
    ordered = sorted(messages, key=lambda message: message.kind)
    return {kind: list(each) for kind, each in groupby(ordered, key=lambda message: message.kind)}


@pytest.mark.parametrize("dilation", [1.0, 4.0])
def test_a_replay_says_what_the_run_said(tmp_path: Path, dilation: float) -> None:
    scenario = Scenario(num_iterations=8, dilation=dilation)
    said = timeline_of(recorded(tmp_path, scenario))
    made = translator_of(opened(dilation=dilation), experiment(dilation=dilation))
    live = [message for _, table, rows in batches(Model(scenario)) for message in made.rows(table, rows)]
    assert said.opening.directions == opened(dilation=dilation).directions
    assert isinstance(said.messages[-1], Ending)
    found, expected = by_kind(said.messages[:-1]), by_kind(live)
    assert set(expected) == {"links", "iteration", "phase", "machine", "change", "shaping"}
    assert found == expected
    assert list(said.at_s) == sorted(said.at_s)


def test_of_a_long_record_some_samples_are_shown_that_tell_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(tmp_path, SCENARIO)
    everything = timeline_of(record)
    monkeypatch.setattr(testbed.live.replay, "MOST_SAMPLES", 20)
    said = timeline_of(record)
    num_samples = record.links.height // len(said.opening.directions)
    assert said.stride == -(-num_samples // 20)
    links = [each for each in said.messages if isinstance(each, Links)]
    assert len(links) <= 20

    def carried(messages: Sequence[Message]) -> float:
        """Permille times seconds of the first direction."""
        some = [each for each in messages if isinstance(each, Links)]
        return sum((b.used_permille[0] or 0) * (b.at_s - a.at_s) for a, b in pairwise(some))

    until = links[-1].at_s
    before = [each for each in everything.messages if not isinstance(each, Links) or each.at_s <= until]
    assert carried(links) == pytest.approx(carried(before), rel=0.01)


def test_a_record_of_another_version_is_shown_without_what_its_spec_says(tmp_path: Path) -> None:
    record = recorded(tmp_path, SCENARIO)
    said = timeline_of(without(record, spec_yaml="name: a\nno_such_key: 1\n"))
    assert said.opening.phases == {}
    assert [each.number for each in said.messages if isinstance(each, Iteration)]


def test_what_cannot_be_shown_is_an_error_that_says_why(tmp_path: Path) -> None:
    record = recorded(tmp_path, SCENARIO)
    with pytest.raises(SpecError, match=r"plan\.json has no network"):
        timeline_of(without(record, plan={}))
    others = record.links.with_columns(link=pl.lit("w9-s9"))
    with pytest.raises(SpecError, match=r"which plan\.json does not know"):
        timeline_of(without(record, links=others))
    tables = ("links", "iterations", "changes", "machine", "backlog")
    summary = record.summary.model_copy(update={"reasons": ["no deployment"]})
    with pytest.raises(SpecError, match="before anything was measured: no deployment"):
        timeline_of(without(record, summary=summary, **{name: getattr(record, name).clear() for name in tables}))


@pytest.mark.parametrize("version", sorted(path.name for path in RECORDS.iterdir()))
def test_records_of_every_version_can_be_replayed(version: str) -> None:
    said = timeline_of(load(RECORDS / version))
    kinds = {message.kind for message in said.messages}
    assert {"links", "iteration", "phase", "machine", "ending"} <= kinds
    assert [each.number for each in said.messages if isinstance(each, Iteration) and each.phase == "measured"]


class Heard(Hub):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[Message] = []
        self.restarts: list[list[Message]] = []

    def publish(self, messages: Sequence[Message]) -> None:
        self.published += messages

    def restart(self, messages: Sequence[Message]) -> None:
        self.restarts.append(list(messages))

    async def until(self, done: Any) -> None:
        async with asyncio.timeout(10):
            while not done(self):
                await asyncio.sleep(0.005)

    @property
    def playback(self) -> Playback | None:
        return next((each for each in reversed(self.published) if isinstance(each, Playback)), None)


async def played(hub: Heard, player: Player, *steps: Any) -> None:
    """Each step asks something of the player or waits for something."""
    task = asyncio.ensure_future(player.play())
    try:
        for step in steps:
            if isinstance(step, Control):
                player.control(step)
            else:
                await hub.until(step)
    finally:
        task.cancel()


def test_it_is_played_to_its_end_and_stays_there(tmp_path: Path) -> None:
    said, hub = timeline_of(recorded(tmp_path, SCENARIO)), Heard()
    begun_s = time.monotonic()
    asyncio.run(played(hub, Player(said, hub, speed=40), lambda hub: hub.playback is not None and hub.playback.paused))
    assert time.monotonic() - begun_s >= (said.end_s - said.begin_s) / 40
    kinds = by_kind([*hub.restarts[0][1:], *hub.published])
    assert kinds["iteration"] == by_kind(said.messages)["iteration"]
    assert kinds["ending"] == [said.messages[-1]]
    assert len(kinds["links"]) < len(by_kind(said.messages)["links"]), "of several in a tick the last"
    assert hub.playback == Playback(at_s=said.end_s, begin_s=said.begin_s, end_s=said.end_s, speed=40, paused=True)


def test_it_can_be_stopped_moved_and_sped_up(tmp_path: Path) -> None:
    said, hub = timeline_of(recorded(tmp_path, SCENARIO)), Heard()
    middle_s = (said.begin_s + said.end_s) / 2

    def at_rest(hub: Heard) -> bool:
        return hub.playback is not None and hub.playback.speed == 9

    asyncio.run(
        played(
            hub,
            Player(said, hub, paused=True),
            Control(at_s=middle_s, speed=9),
            at_rest,
            Control(paused=False),
            lambda hub: any(isinstance(each, Links) for each in hub.published),
        )
    )
    start, moved = hub.restarts
    assert [each.kind for each in start if isinstance(each, Links)] == ["links"]
    times = [each.at_s for each in moved if isinstance(each, Links)]
    assert 0 <= middle_s - times[-1] <= 0.11
    later = [each.at_s for each in hub.published if isinstance(each, Links)]
    assert later[0] > times[-1]


def test_at_its_end_it_begins_again_when_it_is_to_go_on(tmp_path: Path) -> None:
    said, hub = timeline_of(recorded(tmp_path, SCENARIO)), Heard()
    asyncio.run(
        played(
            hub,
            Player(said, hub, paused=True),
            Control(at_s=1e9),
            lambda hub: len(hub.restarts) == 2,
            Control(paused=False),
            lambda hub: len(hub.restarts) == 3,
        )
    )
    _, end, again = hub.restarts
    assert isinstance(end[-2], Ending)
    assert not [each for each in again if isinstance(each, Ending)]
