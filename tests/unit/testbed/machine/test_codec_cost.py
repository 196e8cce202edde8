"""What codecs take of this machine: measured once for a question, and what follows from it for `dilation: auto`.

A real measurement takes seconds, most of them torch's import. One is made for all tests of what follows from it; those
of when another is made count how often a program that answers at once has run."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import testbed.machine.codec_cost
from testbed.errors import MissingRequirementError
from testbed.experiment.experiment import validate
from testbed.machine.budget import keep
from testbed.machine.codec_cost import (
    BUSY_KEPT_S,
    BUSY_SHARE,
    CODEC_SHARE,
    KEPT_S,
    CodecLoad,
    codec_load,
    codec_times,
    contending_codec_times,
    others_share,
)
from testbed.machine.doctor import plan_in_theory
from testbed.measure.machine import MachineSample
from testbed.plan.plan import Plan, make_plan
from tests.facts import BUDGET

WORKLOAD = {"kind": "synthetic", "layers": ["400KB", "800KB"], "forward": "10ms", "backward": "20ms"}


ANSWERING = """
import json, pathlib, sys
question = json.load(sys.stdin)
with pathlib.Path({num_answers!r}).open("a") as file:
    print(json.dumps(question), file=file)
json.dump([[0.001, 0.002]] * len(question["buckets"]), sys.stdout)
"""
"""A program in place of the one that measures."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ina-testbed" / "codecs.json"


@pytest.fixture(scope="module")
def measured_before(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache with a real measurement of what `planned()` is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("measured")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        times = codec_times(planned())
        assert len(times) == 2
        assert all(each.encode_s > 0 and each.decode_s > 0 for each in times)
        return (folder / "ina-testbed" / "codecs.json").read_text()


@pytest.fixture
def measured(cache: Path, measured_before: str) -> None:
    """What `planned()` is has been measured."""
    cache.parent.mkdir()
    cache.write_text(measured_before)


@pytest.fixture
def num_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a measurement was made, by a program that answers at once."""
    file = tmp_path / "num_answers"
    file.touch()
    (tmp_path / "answering.py").write_text(ANSWERING.format(num_answers=str(file)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(testbed.machine.codec_cost, "_MODULE", "answering")
    return lambda: len(file.read_text().splitlines())


def planned(**keys: Any) -> Plan:
    spec = {"name": "t", "workers": 4, "workload": WORKLOAD, "fusion": "layers", "compression": "top_k", **keys}
    return make_plan(validate(spec))


def test_a_codec_is_measured_once_for_a_question(cache: Path, num_answers: Callable[[], int]) -> None:
    plan = planned()
    times = codec_times(plan)
    assert len(times) == len(plan.buckets) == 2
    written = cache.read_text()
    assert codec_times(plan) == times
    assert cache.read_text() == written
    assert num_answers() == 1
    for other in (planned(workers=3), planned(compression="signsgd"), planned(fusion={"bytes": "10MB"})):
        assert len(codec_times(other)) == len(other.buckets)
    kept = json.loads(cache.read_text())["codecs"]
    assert len(kept) == num_answers() == 4
    assert codec_times(plan) == times, "what was measured before is kept beside"
    # Links and time have nothing to do with it.
    assert codec_times(planned(link={"rate": "10gbit"}, dilation=4)) == times
    assert num_answers() == 4


@pytest.mark.parametrize("spoilt", ["{", "{}", '{"machine": "another", "codecs": {}}', "[1]"])
def test_what_is_not_whole_or_of_another_machine_is_measured_again(
    cache: Path, num_answers: Callable[[], int], spoilt: str
) -> None:
    codec_times(planned())
    cache.write_text(spoilt)
    codec_times(planned())
    assert num_answers() == 2
    assert len(json.loads(cache.read_text())["codecs"]) == 1


@pytest.mark.parametrize(
    ("age_s", "busy_share", "again"),
    [
        (60.0, 0.0, False),
        (KEPT_S - 60, BUSY_SHARE, False),
        (KEPT_S + 60, 0.0, True),
        (60.0, 0.5, False),
        (BUSY_KEPT_S + 60, BUSY_SHARE + 0.01, True),
        (-3600.0, 0.0, True),
    ],
)
def test_what_was_measured_long_ago_or_beside_others_is_measured_again(
    cache: Path, num_answers: Callable[[], int], age_s: float, busy_share: float, again: bool
) -> None:
    codec_times(planned())
    kept = json.loads(cache.read_text())
    (each,) = kept["codecs"].values()
    assert time.time() - 600 < each["measured_at_s"] <= time.time()
    assert 0 <= each["busy_share"] <= 1
    each.update(measured_at_s=time.time() - age_s, busy_share=busy_share, times=[[99.0, 1.0], [99.0, 1.0]])
    cache.write_text(json.dumps(kept))
    said: list[str] = []
    load = codec_load(planned(), num_cores=2, say=said.append)
    assert load is not None
    assert (load.cpu_s == 200.0) != again
    assert [text.startswith("measuring what top_k") for text in said] == [True] * again
    assert num_answers() == 1 + again
    if not again:
        assert load.busy_share == busy_share


@pytest.mark.usefixtures("measured")
def test_what_is_not_to_be_measured_is_what_it_was_however_long_ago(cache: Path) -> None:
    kept = json.loads(cache.read_text())
    for each in kept["codecs"].values():
        each.update(measured_at_s=0.0, times=[[99.0, 1.0], [99.0, 1.0]])
    cache.write_text(json.dumps(kept))
    found = contending_codec_times(planned(), num_cores=4, measures=False)
    assert found is not None
    assert found[0] == (99.0, 1.0)


def test_others_are_busy_with_what_is_neither_idle_nor_ones_own() -> None:
    rest = {"program_ticks": 0, "steal_ticks": 0, "softnet_drops": 0, "softnet_squeezes": 0}
    before = MachineSample(at_s=0.0, ticks=1000, idle_ticks=100, **rest)
    after = MachineSample(at_s=1.0, ticks=1200, idle_ticks=180, **rest)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert others_share(before, after, own_s=0.0) == pytest.approx(0.6)
    assert others_share(before, after, own_s=80 / ticks_per_s) == pytest.approx(0.2)
    assert others_share(before, after, own_s=200 / ticks_per_s) == 0.0


def test_a_measurement_that_takes_too_long_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "pid"
    (tmp_path / "endless.py").write_text(
        "import pathlib, subprocess\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        f"pathlib.Path({str(said)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(testbed.machine.codec_cost, "_MODULE", "endless")
    monkeypatch.setattr(testbed.machine.codec_cost, "_TIMEOUT_S", 0.5)
    communicate = subprocess.Popen.communicate

    def communicate_later(self: "subprocess.Popen[str]", *arguments: Any, **options: Any) -> Any:
        """Its time begins when there is a process to leave behind: how long Python takes to start is the machine's."""
        deadline_s = time.monotonic() + 60
        while "endless" in self.args and not (said.exists() and said.stat().st_size):
            assert time.monotonic() < deadline_s, "it does not start"
            time.sleep(0.01)
        return communicate(self, *arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate_later)
    with pytest.raises(MissingRequirementError, match=r"took longer than 0\.5 s"):
        codec_times(planned())
    state = Path(f"/proc/{said.read_text()}/stat")
    deadline_s = time.monotonic() + 20
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline_s, "it goes on"
        time.sleep(0.01)


def test_other_code_is_another_machine(
    cache: Path, num_answers: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec_times(planned())
    before = json.loads(cache.read_text())["machine"]
    monkeypatch.setattr(testbed.machine.codec_cost, "_version", lambda package: f"{package} 99")
    assert contending_codec_times(planned(), measures=False) is None
    codec_times(planned())
    assert num_answers() == 2
    assert json.loads(cache.read_text())["machine"] != before


@pytest.mark.usefixtures("num_answers")
def test_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    cache.parent.write_text("a file where a folder is wanted")
    with pytest.raises(MissingRequirementError, match=r"cannot write .*codecs\.json.*XDG_CACHE_HOME"):
        codec_times(planned())


def test_nothing_is_measured_that_nobody_needs(cache: Path) -> None:
    assert codec_load(planned(compression="none"), num_cores=2) is None
    assert codec_load(planned(), num_cores=4) is None, "each worker has a core"
    assert contending_codec_times(planned(compression="none")) is None
    assert contending_codec_times(planned(), measures=False) is None
    plan_in_theory(planned().experiment)  # dilation: 1
    assert not cache.exists()


@pytest.mark.usefixtures("measured")
def test_codecs_that_share_cores_take_turns_and_slower_time_makes_them_quick() -> None:
    alone = codec_times(planned())
    shared = contending_codec_times(planned(), num_cores=2)
    enough = contending_codec_times(planned(), num_cores=8)
    dilated = contending_codec_times(planned(dilation=10), num_cores=2)
    assert shared is not None
    assert dilated is not None
    assert enough == alone
    assert shared[0].encode_s == pytest.approx(2 * alone[0].encode_s)
    assert dilated[1].decode_s == pytest.approx(shared[1].decode_s / 10)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("keys", "num_cores", "times_as_long"),
    [
        ({"dilation": 4, "host_cost": "real"}, 2, 1.0),
        ({"dilation": 4, "host_cost": "real"}, 1, 1.0),
        ({"dilation": 4, "host_cost": "real", "hosts": {"w1": {"cpu": 0.5}}}, 2, 2.0),
        ({"dilation": 4, "host_cost": "real", "hosts": {"w*": {"cpu": 8}}}, 32, 0.25),
        ({"dilation": 4}, 2, 0.5),
        ({"hosts": {"w1": {"cpu": 0.25}}}, 2, 4.0),
        ({"hosts": {"w1": {"cpu": 0.8}}}, 2, 2.0),
    ],
)
def test_a_codec_of_a_worker_with_a_quota_lasts_as_long_as_that_makes_it(
    keys: dict[str, Any], num_cores: int, times_as_long: float
) -> None:
    """Of four workers, in virtual time: of half a core in slower time k times less, by a quota that is k times smaller;
    more than one core makes one thread no quicker."""
    alone = codec_times(planned())
    found = contending_codec_times(planned(**keys), num_cores=num_cores)
    assert found == tuple(pytest.approx([times_as_long * each_s for each_s in each]) for each in alone)


@pytest.mark.usefixtures("measured")
def test_the_load_is_of_all_workers_and_the_least_iteration() -> None:
    load = codec_load(planned(link={"rate": "10gbit"}), num_cores=2)
    assert load is not None
    assert load.cpu_s == pytest.approx(sum(map(sum, codec_times(planned()))))
    assert load.least_s == pytest.approx(0.03), "computing"
    slow = codec_load(planned(link={"rate": "1mbit"}), num_cores=2)
    assert slow is not None
    assert slow.least_s > 0.03, "what links need"


@pytest.mark.parametrize(
    ("cpu_ms", "dilation"),
    [(0.0, 1), (5.2, 1), (5.3, 2), (10.4, 2), (15.8, 4), (27.1, 6), (150.0, 29)],
)
def test_time_runs_slower_until_codecs_take_their_share(cpu_ms: float, dilation: int) -> None:
    """Four workers on two cores, 300 ms: 5.25 ms of each worker's codec are 3.5 % of both cores."""
    load = CodecLoad(cpu_s=1e-3 * cpu_ms, num_workers=4, num_cores=2, least_s=0.3)
    assert load.least_dilation == dilation
    assert load.share / dilation <= CODEC_SHARE
    assert str(load) == f"codecs of 4 workers take {100 * load.share:.0f} % of 2 cores"
    beside = replace(load, busy_share=0.4)
    assert str(beside) == f"{load} (measured while other programs took 40 %: too much, maybe)"


def test_auto_is_larger_with_a_codec_than_without() -> None:
    """A real measurement: two workers or more on each core, whose codecs look through 2 MB in every 10 ms."""
    keep(BUDGET)
    cores = len(os.sched_getaffinity(0))
    spec = {
        "name": "t",
        "workers": max(4, 2 * cores),
        "link": {"rate": "100mbit"},
        "workload": {"kind": "synthetic", "layers": ["2MB"], "forward": "5ms", "backward": "5ms"},
        "dilation": "auto",
    }
    plain = plan_in_theory(validate(spec))
    compressed = plan_in_theory(validate({**spec, "compression": {"kind": "top_k", "ratio": 0.001}}))
    assert compressed.clock.dilation > plain.clock.dilation
    assert f"codecs of {spec['workers']} workers take" in (compressed.dilation_text or "")
    assert "of them" in (compressed.dilation_text or "")
    assert "codecs" not in (plain.dilation_text or "")
