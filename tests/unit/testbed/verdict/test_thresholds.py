"""Every threshold has a case just within it and one just beyond it, and no other file of the room has one."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from testbed.measure.observations import Barrier
from testbed.measure.programs import Programs
from testbed.record.summary import BackgroundSummary, BacklogSummary
from testbed.verdict import thresholds
from testbed.verdict.facts import Facts, Quota
from testbed.verdict.link_bounds import impossible
from testbed.verdict.machine import busy_times
from testbed.verdict.summarize import measure, summarize
from tests.facts import LINK, PREDICTION, command_among_others, delay_line, facts, samples, waiting, with_link
from tests.rows import bucket, buckets, iteration, iterations, machine

ROOM = Path(thresholds.__file__).parent
NAMES = sorted(name for name in vars(thresholds) if name.isupper())


class Case(NamedTuple):
    """`make(False)` is within the threshold, `make(True)` beyond it; what is seen of them differs."""

    make: Callable[[bool], Facts]
    seen: tuple[object, object]
    see: Callable[[Facts], object] = lambda known: summarize(known).outcome


VALID_DEGRADED, VALID_INVALID = ("valid", "degraded"), ("valid", "invalid")
DEGRADED_INVALID = ("degraded", "invalid")


def almost_hidden(exposed_s: float) -> Facts:
    """Computing hides communication but for that, of 6.75 s, all of which was waiting for a core."""
    waited: dict[str, Any] = {"backward_compute_end_s": 16.0 - exposed_s, "communication_run_queue_delay_s": exposed_s}
    return facts(
        iterations=iterations(*(iteration(rank, 10.0, **waited) for rank in range(2))),
        buckets=buckets(*(bucket(rank, 11.0, 16.0) for rank in range(2))),
        prediction=replace(PREDICTION, schedule_bound_s=0.1, bound_s=0.1),
    )


def notes(known: Facts) -> int:
    summary = summarize(known)
    assert (summary.outcome, summary.reasons) == ("valid", [])
    return len(summary.notes)


def probed(short: float) -> Facts:
    reported: dict[str, Any] = {"num_probes": 400, "watched_s": 8.0, "due_bytes": 1e8, "held_share": 1.0, "chance": 0.0}
    return with_link(backlog=BacklogSummary(sent_bytes=round((1 - short) * 1e8), **reported))


def flow(**shares: float) -> Facts:
    reported: dict[str, Any] = {"from_": "w0", "to": "w1", "kind": "constant", "requested": "1mbit"}
    rates: dict[str, Any] = {"offered_bps": 1e6, "sent_bps": 1e6, "received_bps": 1e6}
    return facts(
        background=[BackgroundSummary(**reported, **rates, **{"late_share": 0.0, "blocked_share": 0.0, **shares})]
    )


def throttled(share: float) -> Facts:
    return facts(quotas=[Quota(name="w1", cpu_cores=None, throttled_share=share, throttled_s=1.0, waiting_share=None)])


def hidden(waited_s: float) -> Facts:
    """All communication but 0.2 s is hidden: 3.95 s an iteration."""
    moments: dict[str, Any] = {"backward_end_s": 13.2, "optimizer_end_s": 13.7, "end_s": 13.95}
    rows = [iteration(rank, 10.0, **moments, communication_run_queue_delay_s=waited_s) for rank in range(2)]
    times = buckets(bucket(0, 10.2, 13.6), bucket(1, 10.2, 13.6))
    link = replace(LINK, class_bytes_end=40_000_000, expected_bytes=40_000_000)
    soon = replace(PREDICTION, schedule_bound_s=2.5)
    return facts(iterations=iterations(*rows), buckets=times, links=[link], prediction=soon)


def without_communication(
    phase: str, *, num_alone: int = 4, waited_s: float = 0.0, cpu_s: float = 0.0, **took: float
) -> Facts:
    """Beside the measured iteration, computing took 3.25 s and the iteration 3.75 s; of `took`, other times."""
    rows: list[dict[str, object]] = []
    computing_s = took.get("computing_s", 3.25)
    for rank in range(2):
        for index in range(num_alone):
            begun_s = 10.0 + (1000.0 if phase == "compute_alone" else 0.0) + 50 * index
            ready_s = begun_s + computing_s - 0.25
            rows.append(
                iteration(rank, begun_s, phase, index, run_queue_delay_s=waited_s, cpu_s=cpu_s)
                | {"data_end_s": begun_s + 0.25, "forward_end_s": begun_s + 1.0}
                | {"backward_compute_end_s": ready_s, "backward_end_s": ready_s}
                | {"optimizer_end_s": ready_s + 0.5, "end_s": begun_s + took.get("iteration_s", 3.75)}
            )
    return facts(iterations=iterations(*_in_a_row(rows), iteration(0, 10.0), iteration(1, 10.25)))


def unaccounted(share: float) -> Facts:
    """So much of a job of one iteration, whose stages took 6.5 s, is in none of them."""
    before = {name: Barrier(1.0, 1.0) for name in ("started", "compute_only_done", "warmup")}
    barriers = before | {"measure": Barrier(1.0, 10.0), "done": Barrier(10.0 + 6.5 / (1 - share), 20.0)}
    return facts(launched_s=1.0, barriers=barriers)


def _in_a_row(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Each worker's iterations one after the other, without gaps."""
    moments = [name for name in rows[0] if name.endswith("_end_s") or name in ("start_s", "end_s")]
    shifted = []
    for rank in range(2):
        now_s: float | None = None
        for row in (row for row in rows if row["rank"] == rank):
            start_s = float(str(row["start_s"]))
            offset_s = 0.0 if now_s is None else now_s - start_s
            shifted.append({**row, **{name: float(str(row[name])) + offset_s for name in moments}})
            now_s = float(str(shifted[-1]["end_s"]))
    return shifted


def other_load(share: float) -> Facts:
    """In the measured iterations, in which computing has no pace."""
    return replace(without_communication("compute_alone"), other_programs={"measured": Programs(share)})


def sent(factor: float) -> Facts:
    """A link of 100 Mbit/s that sent so many times its rate for a second, beside burst and packet."""
    at_once_bytes = LINK.burst_bytes + 1514
    reported = samples((11.0, 0), (12.0, int(factor * 12_500_000) + at_once_bytes), rate_bps=100e6)
    return facts(samples=reported)


def utilized(share: float) -> Facts:
    """Of a link's rate on average, in 7 s, while buckets were under way all the time."""
    link = replace(LINK, class_bytes_end=round(share * 7 * 12_500_000), expected_bytes=None)
    return facts(links=[link], buckets=buckets(bucket(0, 10.0, 17.0), bucket(1, 10.0, 17.0)))


def saturated(idle_share: float) -> Facts:
    rows = [
        {"at_s": at_s, "ticks": round(2000 * at_s), "idle_ticks": round(2000 * idle_share * at_s), "steal_ticks": 0}
        | {"softnet_drops": 0, "softnet_squeezes": 0}
        for at_s in (10.0, 16.0)
    ]
    return facts(machine=pl.DataFrame(rows, schema=machine().schema))


def command_busy(share: float) -> object:
    """A command's link that carried this share of its rate."""
    reported = samples((11.0, 0), (12.0, round(share * 12_500_000)), rate_bps=100e6)
    return len(busy_times(reported, (10.0, 20.0))[0])


def efficiency(value: float) -> Facts:
    known = without_communication("compute_only", num_alone=1, iteration_s=6.75 * value)
    return replace(known, machine=machine().clear())


def paced(*late: float) -> Facts:
    """Iterations in which the latest gradient came so much of the pace late."""
    rows = [
        iteration(rank, 10.0 + 0.25 * rank + 6.75 * index, index=index, pace_s=3.0, overrun_s=3.0 * share)
        for index, share in enumerate(late)
        for rank in range(2)
    ]
    return facts(iterations=iterations(*rows))


def saturated_share(known: Facts) -> float | None:
    found = measure(known).machine
    return None if found is None else found.saturated_share


CASES: dict[str, Case] = {
    "BYTES_TOLERANCE": Case(lambda beyond: with_link(bytes=60_620_000 if beyond else 60_600_000), VALID_INVALID),
    "BYTES_FLOOR": Case(lambda beyond: with_link(bytes=20_001 if beyond else 20_000, expected_bytes=0), VALID_INVALID),
    "RATE_TOLERANCE": Case(lambda beyond: with_link(measured_rate_bps=101.1e6 if beyond else 100.9e6), VALID_INVALID),
    "RUN_QUEUE_MATERIAL": Case(lambda beyond: almost_hidden(0.36 if beyond else 0.32), DEGRADED_INVALID),
    "RUN_QUEUE_DEGRADED": Case(lambda beyond: waiting(0.051 if beyond else 0.049), VALID_DEGRADED),
    "RUN_QUEUE_INVALID": Case(lambda beyond: waiting(0.201 if beyond else 0.199), DEGRADED_INVALID),
    "RUN_QUEUE_FLOOR": Case(lambda beyond: hidden(0.0396 if beyond else 0.0394), VALID_DEGRADED),
    "STEAL_DEGRADED": Case(lambda beyond: facts(steal_share=0.021 if beyond else 0.02), VALID_DEGRADED),
    "STEAL_INVALID": Case(lambda beyond: facts(steal_share=0.101 if beyond else 0.1), DEGRADED_INVALID),
    "THROTTLED_DEGRADED": Case(lambda beyond: throttled(0.021 if beyond else 0.02), VALID_DEGRADED),
    "THROTTLED_INVALID": Case(lambda beyond: throttled(0.101 if beyond else 0.1), DEGRADED_INVALID),
    "BACKGROUND_LATE_DEGRADED": Case(lambda beyond: flow(late_share=0.011 if beyond else 0.01), VALID_DEGRADED),
    "BACKGROUND_BLOCKED_NOTED": Case(lambda beyond: flow(blocked_share=0.011 if beyond else 0.01), (0, 1), notes),
    "BACKLOG_SHORT_DEGRADED": Case(lambda beyond: probed(0.021 if beyond else 0.019), VALID_DEGRADED),
    "BACKLOG_SHORT_INVALID": Case(lambda beyond: probed(0.101 if beyond else 0.099), DEGRADED_INVALID),
    "RETRANSMITTED_DEGRADED": Case(
        lambda beyond: with_link(retransmitted_bytes=60_011 if beyond else 60_010), VALID_DEGRADED
    ),
    "RETRANSMITTED_EARLY_DEGRADED": Case(
        lambda beyond: with_link(retransmitted_bytes=300_051 if beyond else 300_050, burst_bytes=0), VALID_DEGRADED
    ),
    "LATENESS_SHARE_DEGRADED": Case(
        lambda beyond: with_link(delay_s=0.01, delay_line=delay_line(late_p99_s=1.01e-3 if beyond else 1e-3)),
        VALID_DEGRADED,
    ),
    "LATENESS_FLOOR_S": Case(
        lambda beyond: with_link(delay_s=1e-4, delay_line=delay_line(late_p99_s=301e-6 if beyond else 300e-6)),
        VALID_DEGRADED,
    ),
    "LATEST_DEGRADED_S": Case(
        lambda beyond: with_link(delay_s=1e-3, delay_line=delay_line(late_max_s=0.0201 if beyond else 0.02)),
        VALID_DEGRADED,
    ),
    "CHANGES_LATE_NOTED_S": Case(lambda beyond: facts(changes_late_s=0.021 if beyond else 0.02), (0, 1), notes),
    "CHANGES_LATE_FLOOR_S": Case(lambda beyond: facts(changes_late_s=0.101 if beyond else 0.1), VALID_DEGRADED),
    "CHANGES_LATE_DEGRADED": Case(
        lambda beyond: replace(
            command_among_others(0.0, 100.0), command_end_s=110.0, changes_late_s=1.01 if beyond else 0.99
        ),
        VALID_DEGRADED,
    ),
    "OTHER_LOAD_DEGRADED": Case(lambda beyond: other_load(0.105 if beyond else 0.095), VALID_DEGRADED),
    "OTHER_LOAD_INVALID": Case(lambda beyond: other_load(0.255 if beyond else 0.245), DEGRADED_INVALID),
    "OTHER_LOAD_MIN_S": Case(lambda beyond: command_among_others(0.5, 1.01 if beyond else 0.99), VALID_DEGRADED),
    "ALONE_WAIT_DEGRADED": Case(
        lambda beyond: without_communication("compute_alone", waited_s=3.75 * (0.051 if beyond else 0.049)),
        VALID_DEGRADED,
    ),
    "OVERRUN_TOLERANCE": Case(lambda beyond: paced(0.021 if beyond else 0.019), VALID_DEGRADED),
    "OVERRUN_DEGRADED": Case(lambda beyond: paced(0.05, 0.05 if beyond else 0.0, *[0.0] * 8), VALID_DEGRADED),
    "OVERRUN_MEAN_DEGRADED": Case(lambda beyond: paced(0.51 if beyond else 0.49, *[0.0] * 9), VALID_DEGRADED),
    "OVERRUN_INVALID": Case(lambda beyond: paced(0.101 if beyond else 0.099), DEGRADED_INVALID),
    "SENT_TOLERANCE": Case(lambda beyond: sent(1.011 if beyond else 1.009), VALID_INVALID),
    "UTILIZATION_LIMIT": Case(lambda beyond: utilized(1.011 if beyond else 1.009), VALID_INVALID),
    "BOUND_TOLERANCE": Case(
        lambda beyond: facts(prediction=replace(PREDICTION, schedule_bound_s=6.0 / (0.989 if beyond else 0.991))),
        (0, 1),
        lambda known: len(impossible(measure(known), at_once_s=0.0)),
    ),
    "EFFICIENCY_LIMIT": Case(lambda beyond: efficiency(1.051 if beyond else 1.049), VALID_INVALID),
    "CONTENTION_TOLERANCE": Case(
        lambda beyond: without_communication("compute_alone", computing_s=3.25 / (1.051 if beyond else 1.049)),
        (True, False),
        lambda known: measure(known).scaling_factor is not None,
    ),
    "ALONE_ITERATIONS": Case(
        lambda beyond: without_communication("compute_alone", num_alone=3 if beyond else 4),
        (True, False),
        lambda known: measure(known).scaling_factor is not None,
    ),
    "BUSY_SHARE": Case(
        lambda beyond: facts(samples=samples((11.0, 0), (12.0, round((0.011 if beyond else 0.009) * 12_500_000)))),
        (0, 1),
        lambda known: command_busy(8 * float(known.samples["class_bytes"].to_numpy().max()) / 100e6),
    ),
    "STAGES_TOLERANCE": Case(
        lambda beyond: unaccounted(0.0295 if not beyond else 0.0305),
        (0, 1),
        notes,
    ),
    "SATURATED_IDLE_SHARE": Case(
        lambda beyond: saturated(0.051 if not beyond else 0.049),
        (0.0, 1.0),
        saturated_share,
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_threshold_has_a_case_on_both_sides(name: str) -> None:
    case = CASES[name]
    assert (case.see(case.make(False)), case.see(case.make(True))) == case.seen


@pytest.mark.parametrize("name", NAMES)
def test_each_case_rests_on_its_threshold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With that one alone set out of reach, what is seen beyond it changes."""
    case = CASES[name]
    before = case.see(case.make(True))
    for module in ("judge", "link_bounds", "machine", "pace", "scaling", "utilization", "waiting"):
        file = f"testbed.verdict.{module}.{name}"
        monkeypatch.setattr(file, 0.0 if name.startswith(("SATURATED", "ALONE_ITERATIONS")) else 1e12, raising=False)
    assert case.see(case.make(True)) != before


def test_no_threshold_hides_in_another_file() -> None:
    assert sorted(CASES) == NAMES
    hidden_ones = []
    for path in sorted(ROOM.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and path.name != "thresholds.py":
                constant = node.value.value if isinstance(node.value, ast.Constant) else None
                if isinstance(constant, float):
                    hidden_ones.append(f"{path.name}: {node.target.id}")
    # How changes are reported together; what `validate-dilation` compares, which judges no run.
    assert hidden_ones == ["changes.py: _TOGETHER_S", "dilation.py: TOLERANCE"]


@pytest.mark.parametrize(("share", "said"), [(0.0049, False), (0.0051, True)])
def test_in_slower_time_probes_are_sent_earlier(share: float, said: bool) -> None:
    known = with_link(retransmitted_bytes=round(share * 60_010_000))

    def says_so(known: Facts) -> bool:
        return any("bytes were sent again" in reason for reason in summarize(known).reasons)

    assert says_so(known)
    assert says_so(replace(known, dilation=40.0)) == said
