"""Whose CPU time it was: on tables calculated manually, and on this machine."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.hosts.cgroups import Controller
from testbed.measure import programs
from testbed.measure.machine import MachineSample
from testbed.measure.programs import (
    Process,
    ProcessorUse,
    descendants,
    others_between,
    parse_stat,
    ticks_between,
)

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def process(parent: int, own: int = 0, ended: int = 0, *, began: int = 0, name: str = "program") -> Process:
    return Process(name, parent, own_ticks=own, ended_ticks=ended, began_ticks=began)


def use(
    processes: dict[int, Process],
    *,
    ticks: int,
    programs: int = 0,
    sees_all: bool = True,
    yielding: frozenset[int] = frozenset(),
    all_cores: bool = True,
    steal: int = 0,
) -> ProcessorUse:
    """The run is process 100 and what it has started."""
    machine = MachineSample(
        at_s=0.0,
        ticks=ticks,
        program_ticks=programs,
        idle_ticks=0,
        steal_ticks=steal,
        softnet_drops=0,
        softnet_squeezes=0,
    )
    return ProcessorUse(
        machine=machine,
        processes=processes,
        own=descendants(processes, {100}),
        sees_all=sees_all,
        yielding=yielding,
        all_cores=all_cores,
    )


def test_a_program_may_be_called_anything() -> None:
    fields = " ".join(str(number) for number in range(5, 53))
    assert parse_stat(f"4711 (a) b (c) S 12 {fields}\n") == Process("a) b (c", 12, 14 + 15, 16 + 17, 22, 41)


def test_those_that_the_run_has_started_are_its_own_however_far_down() -> None:
    processes = {1: process(0), 50: process(1), 100: process(50), 101: process(100), 102: process(101), 60: process(1)}
    assert descendants(processes, {100}) == {100, 101, 102}
    assert descendants(processes, {102, 60, 7}) == {102, 60}


def test_others_are_named_by_what_they_used_and_the_run_is_not_among_them() -> None:
    before = {1: process(0), 100: process(1, 10), 200: process(1, 500, name="cc1plus"), 201: process(1, 7)}
    after = before | {
        100: process(1, 110),
        101: process(100, 300),  # it began meanwhile, and is the run's
        200: process(1, 530, name="cc1plus"),
        202: process(1, 12, name="ld"),
    }
    found = others_between(use(before, ticks=1000), use(after, ticks=1600))
    assert found is not None
    assert found.share == pytest.approx(42 / 600)
    assert found.most == ("cc1plus (process 200) 5 %", "ld (process 202) 2 %")
    assert found.text == "other programs took 7 % of the cores (cc1plus (process 200) 5 %, ld (process 202) 2 %)"
    assert others_between(use(before, ticks=1000), use(after, ticks=1000)) is None


def test_those_that_give_a_core_away_at_once_lengthen_nothing() -> None:
    before = {1: process(0), 100: process(1), 200: process(1), 201: process(1)}
    after = {1: process(0), 100: process(1, 10), 200: process(1, 500), 201: process(1, 50)}
    found = others_between(use(before, ticks=0), use(after, ticks=1000, yielding=frozenset({200})))
    assert found is not None
    assert found.share == pytest.approx(0.05)


def test_others_on_cores_that_the_run_has_not_count_no_more_than_what_was_used_of_its_own() -> None:
    before = {1: process(0), 100: process(1), 200: process(1)}
    after = {1: process(0), 100: process(1, 300), 200: process(1, 900)}
    found = others_between(use(before, ticks=0), use(after, ticks=1000, programs=700, all_cores=False))
    assert found is not None
    assert found.share == pytest.approx(0.4)
    nothing = others_between(use(before, ticks=0), use(after, ticks=1000, programs=200, all_cores=False))
    assert nothing is not None
    assert nothing.share == 0


def test_what_the_hypervisor_took_is_reported_beside_what_programs_did() -> None:
    before = {1: process(0), 100: process(1), 200: process(1)}
    after = {1: process(0), 100: process(1, 300), 200: process(1, 120)}
    found = others_between(use(before, ticks=0), use(after, ticks=1000, steal=300))
    assert found is not None
    assert (found.share, found.stolen_share) == (pytest.approx(0.12), pytest.approx(0.3))
    assert found.text.endswith(" and the hypervisor 30 %")
    assert found._replace(share=0.0).text == "the hypervisor took 30 % of the cores"


@pytest.mark.parametrize(
    ("group", "other", "sessions", "policy", "yields"),
    [
        ("", "", False, os.SCHED_IDLE, True),
        ("", "", True, os.SCHED_IDLE, False),
        ("run", "run", True, os.SCHED_IDLE, True),
        ("run", "other", False, os.SCHED_IDLE, False),
        ("run", "run", False, os.SCHED_BATCH, False),
        ("run", "idle", True, os.SCHED_OTHER, True),
        ("run", "other/idle", True, os.SCHED_OTHER, False),
    ],
)
def test_who_gives_a_core_away_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    other: str,
    sessions: bool,
    policy: int,
    yields: bool,
) -> None:
    """A session of its own, or another branch of control groups, weighs as much as the run's, however idle its
    processes are among themselves."""
    (tmp_path / other).mkdir(parents=True, exist_ok=True)
    if other.endswith("idle"):
        (tmp_path / other / "cpu.idle").write_text("1\n")
    controller = Controller(name="cpu", mount_point=tmp_path, version=1)
    monkeypatch.setattr(programs, "available_controllers", lambda: {"cpu": controller})
    monkeypatch.setattr(programs, "group_of", lambda _, pid: tmp_path / (group if pid == "self" else other))
    monkeypatch.setattr(programs, "groups_sessions", lambda: sessions)
    assert (200 in programs.yielding({200: process(1)._replace(policy=policy)})) == yields


def test_what_is_in_a_hosts_network_is_the_runs_whoever_started_it() -> None:
    """As Docker starts what runs in containers."""
    with subprocess.Popen(
        ["setsid", "--fork", "unshare", "--net", "sh", "-c", "echo $$; exec sleep 100"], stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        try:
            starter.wait()
            assert pid not in ProcessorUse.take([]).own
            assert pid in ProcessorUse.take([], hosts=[pid, os.getpid()]).own
            assert os.getppid() not in ProcessorUse.take([], hosts=[pid, os.getpid()]).own
        finally:
            os.kill(pid, signal.SIGKILL)


def test_idle_scheduling_is_read_of_real_processes() -> None:
    with subprocess.Popen(["chrt", "--idle", "0", "sleep", "100"]) as idle, subprocess.Popen(["sleep", "100"]) as other:
        try:
            while parse_stat(Path(f"/proc/{idle.pid}/stat").read_text()).name != "sleep":
                time.sleep(0.01)
            processes = ProcessorUse.take([]).processes
            assert processes[idle.pid].policy == os.SCHED_IDLE
            assert processes[other.pid].policy == os.SCHED_OTHER
        finally:
            idle.kill()
            other.kill()


def test_what_ended_meanwhile_is_its_parents_without_what_it_had_used_before() -> None:
    before = {1: process(0), 10: process(1, 5, 40), 11: process(10, 100, 20), 12: process(11, 30)}
    # 12 has ended with 35, 11 with 110 and with 12; 10 is charged with both.
    after = {1: process(0), 10: process(1, 6, 40 + 110 + 20 + 35)}
    assert ticks_between(before, after) == {1: 0, 10: 1 + 10 + 5}


def test_a_parent_that_does_not_wait_is_charged_with_nothing_and_nothing_is_taken_off_twice() -> None:
    before = {1: process(0), 10: process(1, 5), 11: process(10, 100)}
    after = {1: process(0), 10: process(1, 9)}
    assert ticks_between(before, after) == {1: 0, 10: 4}


def test_a_pid_that_is_somebody_elses_by_now_begins_anew() -> None:
    before = {1: process(0, 0, 50), 10: process(1, 1000, began=1)}
    after = {1: process(0, 0, 1053), 10: process(1, 7, began=2)}
    assert ticks_between(before, after) == {1: 3, 10: 7}


def test_in_a_container_what_cannot_be_seen_is_what_remains_of_the_cores() -> None:
    before, after = {100: process(1, 10)}, {100: process(1, 110)}
    hidden = use(before, ticks=0, programs=50, sees_all=False)
    later = use(after, ticks=1000, programs=450, sees_all=False)
    found = others_between(hidden, later)
    assert found is not None
    assert found == (pytest.approx((400 - 100) / 1000), (), 0.0)
    everything = others_between(replace(hidden, sees_all=True), replace(later, sees_all=True))
    assert everything is not None
    assert everything.share == 0.0


def test_on_this_machine_a_child_is_the_runs_own_and_a_child_of_somebody_else_is_not() -> None:
    """A shell in a session of its own stands for somebody else: it is found though what it had started has ended."""
    shell = subprocess.Popen(
        ["setsid", "sh", "-c", f'read line; "{sys.executable}" -c "{BURN}"; echo done; read line'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    with shell:
        before = ProcessorUse.take([])
        assert {os.getpid(), shell.pid} <= before.own
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == b"done\n"
        after = ProcessorUse.take([])
        shell.stdin.write(b"\n")
    used = ticks_between(before.processes, after.processes)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert used[shell.pid] >= 0.29 * ticks_per_s
    own = others_between(before, after)
    others = others_between(replace(before, own=frozenset()), replace(after, own=after.own - {shell.pid}))
    shell_alone = others_between(before, replace(after, own=frozenset(after.processes) - {shell.pid}))
    assert own is not None
    assert others is not None
    assert shell_alone is not None
    ticks = after.machine.ticks - before.machine.ticks
    assert others.share - own.share >= 0.25 * ticks_per_s / ticks
    # Where others let it wait long enough, it has used too little to be named.
    named = any(f"(process {shell.pid})" in name for name in shell_alone.most)
    assert named == (used[shell.pid] >= ticks / 100)
