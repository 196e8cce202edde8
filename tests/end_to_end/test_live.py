"""`testbed run --live` and `sweep --live`, for real: what a page hears is what the record says, and nothing is left."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testbed.hosts.clean import leftovers
from testbed.live.messages import Change, Ending, Iteration, Links, Machine, Message, Opening, Over, Shaping, decode
from testbed.live.replay import timeline_of
from testbed.record.reader import load

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(180)]
SPEC = """
name: watched
workers: 2
link: {rate: 100mbit}
workload: {kind: training, batch_size: 8, compute_only: 2, warmup: 2, iterations: 4}
changes: [{at: 300ms, link: w1-s0, rate: 80mbit}]
metrics: {port: null}
"""


class Watched:
    """A command with a page, and somebody who hears all of it."""

    def __init__(self, command: str, folder: Path, *options: str) -> None:
        spec = folder / "watched.yaml"
        spec.write_text(SPEC)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "testbed",
                command,
                str(spec),
                "--output",
                str(folder),
                "--live",
                "--json",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"live page: (http://127\.0\.0\.1:\d+/\S+/)", line)
        assert found, line
        self.url = found[1]
        self.heard: list[Message] = []
        self.states = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for message in events(self.url):
            self.heard.append(message)

    def end(self) -> tuple[int, dict[str, Any]]:
        output, _ = self.process.communicate(timeout=120)
        self.reader.join(20)
        assert not self.reader.is_alive()
        return self.process.returncode, json.loads(output) if output else {}


def events(url: str) -> Iterator[Message]:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        connection.request("GET", f"{parts.path}events")
        answer = connection.getresponse()
        assert answer.status == 200
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield from (decode(json.dumps(each)) for each in json.loads(line.removeprefix(b"data: ")))


def of(messages: list[Message], kind: type[Message]) -> list[Message]:
    return [message for message in messages if isinstance(message, kind)]


def test_a_page_hears_what_the_record_replays_and_the_verdict(tmp_path: Path) -> None:
    watched = Watched("run", tmp_path)
    status, summary = watched.end()
    assert status in {0, 4}
    (opening,) = of(watched.heard, Opening)
    assert isinstance(opening, Opening)
    assert opening.run_id == summary["run_id"]
    said = timeline_of(load(Path(summary["record"])))
    assert said.opening == opening
    for kind in (Links, Iteration, Change, Machine, Shaping):
        heard, recorded = of(watched.heard, kind), of(list(said.messages), kind)
        # Who comes while links are measured already, late on a busy machine, begins with the last that was said.
        assert heard == recorded[len(recorded) - len(heard) :], kind
        assert heard or not recorded, kind
    assert of(watched.heard, Ending) == [said.messages[-1]]
    assert watched.heard[-1] == Over(num_dropped=0)
    assert leftovers(summary["run_id"]) == []
    with pytest.raises(ConnectionRefusedError):
        next(events(watched.url))


def test_a_run_that_is_interrupted_says_so_on_its_page(tmp_path: Path) -> None:
    watched = Watched("run", tmp_path, "--set", "workload.iterations=500")
    while not of(watched.heard, Iteration):
        assert watched.process.poll() is None
        watched.reader.join(0.05)
    watched.process.send_signal(signal.SIGINT)
    status, _ = watched.end()
    assert status == 130
    (ending,) = of(watched.heard, Ending)
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.reasons) == ("failed", ["interrupted by SIGINT"])
    assert isinstance(watched.heard[-1], Over)


def test_a_page_that_is_killed_costs_the_run_nothing_but_a_line(tmp_path: Path) -> None:
    # Enough iterations that the first one is heard of before the last, by however much the page is behind.
    watched = Watched("run", tmp_path, "--set", "workload.iterations=12")
    while not of(watched.heard, Iteration):
        assert watched.process.poll() is None
        watched.reader.join(0.05)
    lists = Path(f"/proc/{watched.process.pid}/task").glob("*/children")
    pages = [
        int(pid)
        for each in lists
        for pid in each.read_text().split()
        if b"testbed.live.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(pages) == 1
    subprocess.run(["kill", "-KILL", str(pages[0])], check=True)
    output, errors = watched.process.communicate(timeout=120)
    assert watched.process.returncode in {0, 4}
    assert json.loads(output)["iteration_time_s"] is not None
    assert errors.count("the live page has ended") == 1


def test_a_sweep_has_one_page_for_all_its_runs(tmp_path: Path) -> None:
    watched = Watched("sweep", tmp_path, "--set", "sweep.link.rate=[100mbit, 200mbit]")
    status, _ = watched.end()
    assert status in {0, 4}
    points = {"link.rate=100mbit", "link.rate=200mbit"}
    assert {each.point for each in of(watched.heard, Opening) if isinstance(each, Opening)} == points
    assert len(of(watched.heard, Opening)) == len(of(watched.heard, Ending))
    assert isinstance(watched.heard[-1], Over)
