"""A real Prometheus beside a page: it answers, holds what was served, dies loudly and leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.experiment import validate
from testbed.hosts.clean import clean, leftovers
from testbed.machine.doctor import APT_PACKAGES, require
from testbed.measure.sampler import LinkSample
from testbed.metrics.comparison import compare
from testbed.metrics.exporter import Exporter
from testbed.metrics.server import PrometheusServer
from testbed.plan.plan import make_plan
from testbed.system.processes import ProcessIdentity
from testbed.system.run_state import RunState, new_run_id

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(120)]


def sample(class_bytes: int) -> LinkSample:
    return LinkSample(
        at_s=time.monotonic(),
        read_from_s=time.monotonic(),
        link="w0-s0",
        node="w0",
        port="w0-eth0",
        rate_bps=100e6,
        class_bytes=class_bytes,
        class_packets=class_bytes // 1514,
        drops=0,
        overlimits=0,
        backlog_bytes=0,
        interface_bytes=class_bytes,
    )


@pytest.fixture
def state(tmp_path: Path) -> Iterator[RunState]:
    made = RunState.create(new_run_id(), root=tmp_path / "runs")
    yield made
    made.remove()


@pytest.fixture
def exporter(state: RunState) -> Iterator[Exporter]:
    with closing(Exporter(0, run_id=state.run_id, information={"name": "x"})) as made:
        yield made


def start(state: RunState, exporter: Exporter, tmp_path: Path, *, port: int = 0) -> PrometheusServer:
    assert exporter.port is not None
    return PrometheusServer(
        state, record=tmp_path / "record", log_directory=tmp_path, target_port=exporter.port, port=port
    )


def test_it_holds_what_was_served_and_a_record_that_says_otherwise_is_reported(
    state: RunState, exporter: Exporter, tmp_path: Path
) -> None:
    epoch_s = time.monotonic()
    server = start(state, exporter, tmp_path)
    try:
        (owned,) = state.owned().processes
        status = Path(f"/proc/{owned.pid}/status").read_text()
        assert "CapEff:\t0000000000000002" in status, "nothing but CAP_DAC_OVERRIDE"
        samples = []
        for step in range(15):
            samples.append(sample(10_000 * step))
            exporter.update_links(samples[-1:])
            time.sleep(0.1)
        samples.append(sample(200_000))
        time.sleep(1.3)  # whoever stops the sampler here leaves an old page, which is no difference
        exporter.update_links(samples[-1:])
        frame = pl.DataFrame(
            {
                "at_s": [each.at_s - epoch_s for each in samples],
                **{
                    name: [getattr(each, name) for each in samples]
                    for name in ("link", "node", "class_bytes", "class_packets", "drops")
                },
            }
        )
        clock_offset_s = exporter.clock_offset_s
        seen = compare(server, frame, epoch_s=epoch_s, clock_offset_s=clock_offset_s)
        assert seen.differences == []
        assert seen.num_scrapes >= 1
        assert seen.num_series >= 8
        other = compare(
            server, frame.with_columns(pl.col("class_bytes") + 1), epoch_s=epoch_s, clock_offset_s=clock_offset_s
        )
        assert [line for line in other.differences if "testbed_link_transmit_bytes_total of w0 on w0-s0" in line]
    finally:
        server.stop()
    assert (tmp_path / "record" / "prometheus" / "data" / "wal").is_dir()
    assert not owned.identity.alive()


def watch(server: PrometheusServer) -> None:
    for _ in range(500):
        server.check()
        time.sleep(0.02)


def test_its_death_is_an_error_with_its_name_and_it_dies_with_the_run(
    state: RunState, exporter: Exporter, tmp_path: Path
) -> None:
    server = start(state, exporter, tmp_path)
    (owned,) = state.owned().processes
    assert owned.identity == ProcessIdentity.of(owned.pid)
    server.check()
    os.kill(owned.pid, signal.SIGKILL)
    with pytest.raises(RunFailedError, match="prometheus was killed by signal 9"):
        watch(server)
    with pytest.raises(RunFailedError, match="prometheus was killed by signal 9"):
        server.query("up")
    (reported,) = compare(server, pl.DataFrame(), epoch_s=time.monotonic(), clock_offset_s=0.0).differences
    assert "prometheus was killed by signal 9" in reported
    server.stop()


def test_a_port_that_is_taken_is_reported_whoever_answers_there(
    state: RunState, exporter: Exporter, tmp_path: Path
) -> None:
    with pytest.raises(
        MissingRequirementError, match=rf"metrics\.prometheus\.port: 127\.0\.0\.1:{exporter.port} is in use"
    ):
        start(state, exporter, tmp_path, port=exporter.port or 0)


def test_an_expression_that_is_none_is_refused_in_its_words(
    state: RunState, exporter: Exporter, tmp_path: Path
) -> None:
    server = start(state, exporter, tmp_path)
    try:
        with pytest.raises(RunFailedError, match="parse error"):
            server.query("rate(")
    finally:
        server.stop()


COORDINATOR = """
import sys, time
from pathlib import Path
from testbed.metrics.exporter import Exporter
from testbed.metrics.server import PrometheusServer
from testbed.system.run_state import RunState

folder = Path(sys.argv[1])
state = RunState.create(sys.argv[2], root=folder / "runs")
exporter = Exporter(0, run_id=state.run_id)
PrometheusServer(state, record=folder / "record", log_directory=folder, target_port=exporter.port)
sys.stdout.write("ready\\n")
sys.stdout.flush()
time.sleep(60)
"""


def test_it_ends_when_the_coordinator_is_killed_and_clean_knows_it(tmp_path: Path) -> None:
    run_id, root = new_run_id(), tmp_path / "runs"
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(tmp_path), run_id], stdout=subprocess.PIPE, text=True
    ) as coordinator:
        assert coordinator.stdout is not None
        assert coordinator.stdout.readline() == "ready\n"
        (owned,) = RunState.load(run_id, root=root).owned().processes
        assert owned.name == "prometheus"
        assert any("prometheus" in left.what for left in leftovers(run_id, root=root))
        coordinator.kill()
    deadline_s = time.monotonic() + 10
    while owned.identity.alive():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert clean(run_id, root=root).remaining == []
    assert leftovers(run_id, root=root) == []


def test_a_machine_without_it_is_given_the_fix_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in APT_PACKAGES:
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = make_plan(validate({"name": "x", "metrics": {"prometheus": True}}))
    with pytest.raises(
        MissingRequirementError, match=r"prometheus is missing: apt-get install .* prometheus; or run without"
    ):
        require(plan)
