import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import MissingRequirementError
from testbed.live.feed import MOST_WAITING, Feed, live_page
from testbed.live.messages import Change, Ending, Links, Message, Opening, Over, Past, decode
from tests.live import batches, experiment, planned
from tests.unit.testbed.conftest import Model, Scenario, make_record

GIVEN = experiment()
PLAN = planned(GIVEN)


class Listener:
    """The other end of a feed."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.feed = Feed(ours, on_lost=self.lost.append)
        self.theirs.settimeout(5)

    def hear(self, count: int) -> list[Message]:
        return [decode(self.theirs.recv(1 << 20)) for _ in range(count)]

    def everything(self) -> list[Message]:
        """To its end."""
        found = []
        while packet := self.theirs.recv(1 << 20):
            found.append(decode(packet))
        return found

    def begin(self) -> None:
        self.feed.begin(PLAN, GIVEN, run_id="a", setup="star", epoch_s=0.0)


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.feed.close()
    made.theirs.close()


def samples(number: int) -> list[dict[str, Any]]:
    row = {"at_s": number / 10, "class_bytes": 1000 * number, "drops": 0, "backlog_bytes": 0, "rate_bps": 1e8}
    hops = [(each["link"], each["sender"]["node"]) for each in PLAN["directions"]]
    return [{**row, "link": link, "node": node} for link, node in hops]


def change(number: int) -> dict[str, Any]:
    return {
        "at_s": float(number), "link": "w0-s0", "node": "w0", "to": "s0", "setting": "rate", "before": "1",
        "after": str(number), "source": "manual",
    }  # fmt: skip


def test_rows_become_messages_and_before_the_beginning_nothing(listener: Listener) -> None:
    listener.feed.rows("links", samples(1))
    listener.feed.phase("deploy")
    listener.begin()
    listener.feed.rows("links", samples(2))
    assert [each.kind for each in listener.hear(2)] == ["opening", "links"]


def test_a_page_that_does_not_read_costs_nothing_and_what_matters_arrives(listener: Listener) -> None:
    listener.begin()
    slowest_s = 0.0
    for number in range(5000):
        begun_s = time.thread_time()
        listener.feed.rows("links", samples(number))
        if number % 500 == 0:
            listener.feed.rows("changes", [change(number)])
        slowest_s = max(slowest_s, time.thread_time() - begun_s)
    assert listener.feed.num_dropped > 1000
    assert slowest_s < 0.1, "it does not wait"
    said = []

    def read() -> None:
        said.extend(listener.everything())

    reader = threading.Thread(target=read)
    reader.start()
    listener.feed.close()
    reader.join(10)
    assert [each.after for each in said if isinstance(each, Change)] == [str(number) for number in range(0, 5000, 500)]
    assert isinstance(said[0], Opening)
    assert said[-1] == Over(num_dropped=listener.feed.num_dropped)
    assert len([each for each in said if isinstance(each, Links)]) == 5000 - listener.feed.num_dropped
    assert listener.lost == []


def test_what_is_kept_is_bounded(listener: Listener) -> None:
    listener.begin()
    for number in range(20_000):
        listener.feed.rows("changes", [change(number)])
    assert len(listener.feed._waiting) == MOST_WAITING
    assert listener.feed.num_dropped > 0


def test_a_page_that_has_died_is_mentioned_once(listener: Listener, tmp_path: Path) -> None:
    listener.begin()
    listener.theirs.close()
    for number in range(5):
        listener.feed.rows("links", samples(number))
        listener.feed.phase(f"phase {number}")
    listener.feed.end(make_record(tmp_path, Scenario(num_iterations=3)).summary)
    (problem,) = listener.lost
    assert problem in {"Broken pipe", "Connection reset by peer"}


def test_a_page_that_is_behind_and_dies_while_the_feed_is_closed_is_mentioned(listener: Listener) -> None:
    listener.begin()
    while not listener.feed._waiting:
        listener.feed.rows("changes", [change(len(listener.lost))])
    closing_feed = threading.Thread(target=listener.feed.close)
    closing_feed.start()
    time.sleep(0.1)  # it waits for the page; were it not yet, the page has died before, which is mentioned as well
    listener.theirs.close()
    closing_feed.join(10)
    (problem,) = listener.lost
    assert problem in {"Broken pipe", "Connection reset by peer"}


def test_what_is_wrong_with_the_page_is_not_the_runs_trouble(listener: Listener) -> None:
    listener.begin()
    listener.feed.rows("links", [{"at_s": 1.0}])
    listener.feed.rows("links", samples(1))
    assert listener.lost == ["KeyError: 'link'"]
    assert [each.kind for each in listener.hear(1)] == ["opening"]


def test_of_a_sweep_each_run_begins_with_its_point(listener: Listener, tmp_path: Path) -> None:
    summary = make_record(tmp_path, Scenario(num_iterations=3)).summary
    listener.feed.point = "link.rate=1gbit"
    listener.begin()
    listener.feed.end(summary)
    opening, ending, past = listener.hear(3)
    assert isinstance(opening, Opening)
    assert opening.point == "link.rate=1gbit"
    assert isinstance(ending, Ending)
    assert isinstance(past, Past)
    assert (past.point, past.outcome) == ("link.rate=1gbit", summary.outcome)


def until(done: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def stream(url: str) -> Iterator[list[dict[str, Any]]]:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)) as connection:
        connection.request("GET", f"{parts.path}events")
        answer = connection.getresponse()
        assert answer.status == 200
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def children() -> set[int]:
    """Of this process, whichever thread has started them."""
    lists = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for each in lists for pid in each.read_text().split()}


def page_process(before: set[int]) -> int:
    (found,) = children() - before
    return found


def test_a_page_has_a_process_that_stands_back_and_ends_with_the_feed() -> None:
    said: list[str] = []
    before = children()
    with live_page(address="127.0.0.1", port=0, say=said.append) as feed:
        pid = page_process(before)
        url = said[0].removeprefix("live page: ")
        feed.begin(PLAN, GIVEN, run_id="a", setup="star", epoch_s=0.0)
        heard = stream(url)
        assert [each["kind"] for each in next(heard)] == ["opening"]
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert url.rsplit("/", 2)[1] not in Path(f"/proc/{pid}/cmdline").read_text(), "the token is in no list"
        for _, table, rows in batches(Model(Scenario(num_iterations=2))):
            feed.rows(table, rows)
        kinds = {each["kind"] for messages in [next(heard)] for each in messages}
        assert kinds <= {"links", "iteration", "phase", "machine", "change", "shaping"}
    rest = [each["kind"] for messages in heard for each in messages]
    assert rest[-1] == "over"
    assert not Path(f"/proc/{pid}").exists()
    assert said == [f"live page: {url}"]


def test_a_page_that_is_killed_is_said_once_and_nothing_else_happens() -> None:
    said: list[str] = []
    before = children()
    with live_page(address="127.0.0.1", port=0, say=said.append) as feed:
        feed.begin(PLAN, GIVEN, run_id="a", setup="star", epoch_s=0.0)
        os.kill(page_process(before), signal.SIGKILL)

        def lost() -> bool:
            feed.rows("links", samples(int(10 * time.monotonic())))
            return len(said) == 2

        until(lost)
        feed.phase("measured")
    assert said[1].startswith("the live page has ended")
    assert "the run goes on" in said[1]
    assert len(said) == 2


def test_a_port_that_is_taken_is_said_before_anything_is_made() -> None:
    before = children()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(MissingRequirementError, match=f"--live-port: 127.0.0.1:{port} cannot be had"),
            live_page(address="127.0.0.1", port=port, say=print),
        ):
            pass
    assert children() == before
