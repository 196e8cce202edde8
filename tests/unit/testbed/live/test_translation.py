import copy
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.link import UNSHAPED_BPS
from testbed.live.messages import Change, Interference, Iteration, Links, Machine, Message, Phase, Shaping
from testbed.live.translation import Translator, opening, translator_of
from testbed.verdict.parts import per_iteration
from tests.live import batches, experiment, opened, planned
from tests.rows import iterations, one_is_slow
from tests.unit.testbed.conftest import Model, Scenario


def sample(at_s: float, class_bytes: int, *, rate_bps: float = 100e6, workers: int = 2) -> list[dict[str, Any]]:
    row = {"at_s": at_s, "class_bytes": class_bytes, "drops": int(at_s), "backlog_bytes": 10, "rate_bps": rate_bps}
    hops = [(f"w{rank}-s0", node) for rank in range(workers) for node in (f"w{rank}", "s0")]
    return [{**row, "link": link, "node": node} for link, node in hops]


def translated(model: Model, translator: Translator) -> list[Message]:
    return [message for _, table, rows in batches(model) for message in translator.rows(table, rows)]


def test_an_opening_has_the_plans_nodes_and_directions() -> None:
    found = opened(workers=3)
    assert [node.name for node in found.nodes] == ["w0", "w1", "w2", "s0"]
    assert {(each.link, each.sender, each.receiver) for each in found.directions} == {
        (f"w{rank}-s0", *pair) for rank in range(3) for pair in ((f"w{rank}", "s0"), ("s0", f"w{rank}"))
    }
    assert found.phases["measured"] == 30
    assert (found.name, found.dilation, found.num_workers) == ("quickstart", 1.0, 3)


@pytest.mark.parametrize("broken", [{}, {"nodes": ["w0"]}, {"nodes": [], "directions": [], "spec": {}}])
def test_a_plan_without_a_network_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="no network to draw"):
        opening(broken, None, run_id="a", setup="")


def test_utilization_is_of_the_configured_rate_since_the_message_before() -> None:
    translator = Translator(opened(workers=2))
    (first,) = translator.rows("links", sample(1.0, 0))
    assert isinstance(first, Links)
    assert first.used_permille == [None] * 4
    assert translator.rows("links", sample(1.04, 10**6)) == [], "too soon after the last"
    (second,) = translator.rows("links", sample(1.1, 625_000))
    assert isinstance(second, Links)
    assert second.used_permille == [500] * 4
    assert (second.rate_bps, second.waiting_bytes, second.dropped) == ([10**8] * 4, [10] * 4, [1] * 4)


def test_what_is_dilated_is_said_in_virtual_units() -> None:
    translator = Translator(opened(workers=2, dilation=10))
    translator.rows("links", sample(1.0, 0, rate_bps=1e9))
    (found,) = translator.rows("links", sample(2.0, 6_250_000, rate_bps=1e9))
    assert isinstance(found, Links)
    assert (found.at_s, found.used_permille, found.rate_bps) == (0.2, [500] * 4, [10**9] * 4)


def test_a_link_without_a_rate_has_no_utilization() -> None:
    translator = Translator(opened(workers=2))
    translator.rows("links", sample(1.0, 0, rate_bps=UNSHAPED_BPS))
    (found,) = translator.rows("links", sample(1.1, 5000, rate_bps=UNSHAPED_BPS))
    assert isinstance(found, Links)
    assert (found.used_permille, found.rate_bps) == ([None] * 4, [None] * 4)


@pytest.mark.parametrize("dilation", [1.0, 4.0])
def test_iterations_are_said_when_every_worker_is_through_and_their_parts_add_up(dilation: float) -> None:
    model = Model(Scenario(num_iterations=5, dilation=dilation))
    given = experiment(dilation=dilation)
    found = translated(model, translator_of(opened(dilation=dilation), given))
    iterations = [message for message in found if isinstance(message, Iteration)]
    phases = [message.name for message in found if isinstance(message, Phase)]
    assert phases == ["compute-alone", "compute-only", "warmup", "measured"]
    assert [each.number for each in iterations if each.phase == "measured"] == [1, 2, 3, 4, 5]
    for each in iterations:
        assert sum(each.parts_s.values()) == pytest.approx(each.time_s, rel=1e-6)
    measured = [each for each in iterations if each.phase == "measured"]
    assert 0.3 < measured[0].time_s < 0.8, "virtual"
    assert measured[0].parts_s["exposed_communication"] > 0.1
    assert any(each.parts_s["waiting"] > 0 for each in measured)


def test_workers_that_do_not_wait_for_each_other_wait_for_nobody() -> None:
    found = translated(Model(Scenario(num_iterations=5)), Translator(opened(), ends_together=False))
    assert all(each.parts_s["waiting"] == 0 for each in found if isinstance(each, Iteration))


def test_times_of_iterations_add_up_to_those_of_the_record_with_what_lies_between_them() -> None:
    rows = one_is_slow()
    translator = Translator(opened(workers=2))
    found = [each for row in rows for each in translator.rows("iterations", [row]) if isinstance(each, Iteration)]
    recorded = per_iteration(iterations(*rows), num_workers=2, dilation=1.0).sum()
    assert sum(each.time_s for each in found) == pytest.approx(recorded["time_s"][0])
    assert sum(each.parts_s["waiting"] for each in found) == pytest.approx(recorded["waiting_s"][0])
    assert sum(each.parts_s["other"] for each in found) == pytest.approx(recorded["other_s"][0])


def test_a_loss_that_is_not_finite_is_none() -> None:
    model = Model(Scenario(num_workers=2, num_iterations=1))
    rows = copy.deepcopy(model.iterations)
    rows[-1]["loss"] = float("nan")
    translator = Translator(opened(workers=2))
    found = [each for row in rows for each in translator.rows("iterations", [row])]
    assert [each.loss for each in found if isinstance(each, Iteration)][-1] is None


def test_of_a_traces_steps_one_a_second_is_said_and_of_others_all() -> None:
    row = {"link": "w0-s0", "node": "w0", "to": "s0", "setting": "rate", "before": "1", "after": "2"}
    translator = Translator(opened(workers=2))
    steps = [{**row, "at_s": number / 100, "source": "trace"} for number in range(250)]
    assert len([each for step in steps for each in translator.rows("changes", [step])]) == 3
    manual = translator.rows("changes", [{**row, "at_s": 3.0, "source": "manual"}] * 5)
    assert [type(each) for each in manual] == [Change] * 5


def probe(at_s: float, share: float, *, node: str = "w0") -> dict[str, Any]:
    row = {"at_s": at_s, "link": "w0-s0", "node": node, "due_bytes": 1e6, "sent_bytes": int(share * 1e6)}
    return {**row, "elapsed_s": 0.01, "backlog_bytes": 9}


@pytest.mark.parametrize(
    ("share", "granule", "named"),
    [(0.97, 100, True), (0.985, 100, False), (1.02, 100, True), (0.97, 70_000, False)],
)
def test_a_link_that_does_not_send_at_its_rate_counts_against_the_run(share: float, granule: int, named: bool) -> None:
    translator = Translator(opened(workers=2), granule_bytes=granule)
    found = [each for number in range(10) for each in translator.rows("backlog", [probe(number, share)])]
    last = found[-1]
    assert isinstance(last, Shaping)
    assert (last.sent_share, last.num_probes) == (pytest.approx(share), 10)
    text = f"w0 → s0 has sent {100 * share:.1f} % of rate x time while packets waited"
    assert last.against == ([text] if named else [])


def cores(at_s: float, *, idle: int, steal: int = 0, drops: int = 0) -> dict[str, Any]:
    return {"at_s": at_s, "ticks": int(200 * at_s), "idle_ticks": idle, "steal_ticks": steal, "softnet_drops": drops}


def test_cores_are_said_twice_a_second_and_what_a_hypervisor_took_since_the_beginning() -> None:
    translator = Translator(opened(workers=2))
    rows = [cores(tick / 10, idle=5 * tick, steal=tick) for tick in range(21)]
    found = [each for row in rows for each in translator.rows("machine", [row])]
    assert [each.at_s for each in found if isinstance(each, Machine)] == [0.5, 1.0, 1.5, 2.0]
    last = found[-1]
    assert isinstance(last, Machine)
    assert last.idle_share == pytest.approx(0.25)
    assert last.against == ["the hypervisor took 5.0 % of the CPU time"]
    (dropped,) = translator.rows("machine", [cores(3.0, idle=150, steal=20, drops=4)])
    assert isinstance(dropped, Machine)
    assert dropped.against == [
        "the hypervisor took 3.3 % of the CPU time",
        "the kernel's input queue was full and dropped 4 packets",
    ]


def test_phases_and_interference_are_said_once() -> None:
    translator = Translator(opened(workers=2, dilation=2))
    assert translator.phase("deploy", 3.0) == [Phase(at_s=1.5, name="deploy")]
    assert translator.phase("deploy", 4.0) == []
    assert translator.interference([], 1.0) == []
    assert translator.interference(["w1 was stopped"] * 2, 2.0) == [Interference(at_s=1.0, against=["w1 was stopped"])]
    assert translator.interference(["w1 was stopped"] * 2, 3.0) == []


def test_a_table_that_no_page_shows_tells_nothing() -> None:
    assert Translator(opened()).rows("buckets", [{"rank": 0}]) == []
    assert planned(experiment())["directions"]
