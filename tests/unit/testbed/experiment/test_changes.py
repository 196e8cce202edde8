from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.changes import LinkChange, timeline
from testbed.experiment.experiment import Experiment, load, validate
from testbed.plan.plan import make_plan
from testbed.plan.requested_links import requested_over_time


def experiment(*changes: object, **keys: object) -> Experiment:
    return validate({"name": "t", "workers": 2, "changes": list(changes), **keys})


def of(*changes: object) -> list[LinkChange]:
    return list(islice(timeline(experiment(*changes).changes), 100))


def test_a_change_keeps_what_it_does_not_name() -> None:
    plan = make_plan(experiment({"at": "10s", "link": "w1-s0", "rate": "50mbit"}, link={"queue": "200kB"}))
    (first, second) = requested_over_time(list(plan.requested.values()), plan.experiment.changes, packet_bytes=65536)[
        4:
    ]
    assert {first.hop, second.hop} == {("w1", "s0"), ("s0", "w1")}
    assert (first.spec.rate_bps, first.spec.queue_bytes) == (50e6, 200_000)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_changes_come_in_the_order_of_their_times_whatever_the_order_of_the_file(times: list[int]) -> None:
    changes = [{"at": f"{at}ms", "link": "w0-s0", "rate": f"{2 + number}mbit"} for number, at in enumerate(times)]
    found = of(*changes)
    assert [change.at_s for change in found] == sorted(at / 1000 for at in times)
    # Those of one moment keep the order of the file.
    assert found == sorted(found, key=lambda change: (change.at_s, int(change.key.partition(".")[2])))


def test_down_and_up_and_settings_are_distinguished() -> None:
    down, up, both = of(
        {"at": "1s", "link": "w0-s0", "down": True},
        {"at": "2s", "link": "w0-s0", "up": True},
        {"at": "3s", "link": "w0->s0", "up": True, "rate": "2mbit"},
    )
    assert [down.down, up.down, both.down] == [True, False, False]
    assert down.settings.named == {}
    assert both.settings.named == {"rate_bps": 2e6}


def test_a_link_that_will_have_delay_has_a_delay_line_from_the_start() -> None:
    plan = make_plan(experiment({"at": "5s", "link": "w1->s0", "delay": "5ms"}), works=lambda name: name == "nfqueue")
    staged = {direction.name: direction.delay_stage for direction in plan.directions}
    assert plan.delay_backend == "nfqueue"
    assert staged["w1 -> s0"] is not None
    assert staged["s0 -> w1"] is None
    assert {direction.delay_s for direction in plan.directions} == {0.0}


def test_a_trace_is_pinned_by_its_contents(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    trace.write_text("".join(f"{ms}\n" for ms in range(1, 1001)))
    made = experiment({"link": "w0-s0", "trace": str(trace)})
    again = validate(made.dump())
    assert again == made
    trace.write_text("".join(f"{ms}\n{ms}\n" for ms in range(1, 1001)))
    with pytest.raises(SpecError, match=r"changes\.0: .*has changed since this spec was written"):
        validate(made.dump())


def test_mahimahi_repeats_and_csv_holds_its_last_value(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("".join(f"{ms}\n" for ms in [*range(1, 101), *range(102, 201, 2)]))
    (tmp_path / "c").write_text("time_s,rate\n0,10mbit\n1,20mbit\n")
    repeated = of({"link": "w0-s0", "trace": str(tmp_path / "m")})
    assert len(repeated) == 100
    assert [change.at_s for change in repeated[:4]] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    held = of({"link": "w0-s0", "trace": str(tmp_path / "c")})
    assert [change.settings.named["rate_bps"] for change in held] == [10e6, 20e6]
    assert {change.source for change in held} == {"trace"}


def test_a_trace_below_the_slowest_link_is_refused_or_held_at_its_floor(tmp_path: Path) -> None:
    (tmp_path / "slow").write_text("100\n1000\n")
    with pytest.raises(SpecError, match=r"changes\.0: .*below 1mbit.*floor"):
        experiment({"link": "w0-s0", "trace": str(tmp_path / "slow")})
    (change,) = of({"link": "w0-s0", "trace": str(tmp_path / "slow"), "floor": "2mbit"})
    assert change.settings.named == {"rate_bps": 2e6}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": "1s", "link": "w0-s0"}, r"changes\.0: changes nothing"),
        ({"at": "1s", "link": "w0-s0", "down": True, "up": True}, r"changes\.0: a link cannot go down and up"),
        ({"link": "w0-s0", "rate": "1mbit"}, r"changes\.0\.at: required"),
        ({"at": "1s", "link": "w0-s0", "rate": "1bit"}, r"changes\.0\.rate"),
        ({"at": "1s", "link": "w0-s0", "rat": "1mbit"}, r"changes\.0\.rat: unknown key; allowed: .*rate"),
        ({"link": "w0-s0", "trace": "/nonesuch"}, r"changes\.0: cannot read the trace /nonesuch"),
        ({"link": "w0-s0", "trace": "/dev/null"}, r"changes\.0: /dev/null: is empty"),
        ({"link": "w0-s0", "trace": "/dev/null", "fiel": "rate"}, r"changes\.0\.fiel: unknown key; allowed: .*field"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(change: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        experiment(change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": "1s", "link": "w7-s0", "rate": "2mbit"}, r"changes\.0: 'w7-s0' names no link; there are w0-s0, w1-s0"),
        ({"at": "1s", "link": "w0-s0", "jitter": "1ms"}, r"changes\.0\.jitter: .*jitter may not exceed delay"),
        ({"at": "1s", "link": "w0-s0", "queue": "20kB"}, r"changes\.0\.queue: .*allowed: 100kB"),
        ({"at": "1s", "link": "w0-s0", "delay": "5us"}, r"changes\.0\.delay: nfqueue honours"),
    ],
)
def test_what_a_link_cannot_become_is_refused_when_it_is_planned(change: object, words: str) -> None:
    made = experiment(change, link={"backend": "nfqueue"})
    with pytest.raises(SpecError, match=words):
        make_plan(made)


def test_a_spec_with_changes_is_read_from_a_file_and_written_back(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: t\nworkers: 2\nchanges:\n"
        "  - {at: 10s, link: w1-s0, rate: 50mbit}\n  - {at: 1s, link: w1-s0, down: true}\n"
    )
    made = load(path)
    path.write_text(made.to_yaml())
    assert load(path) == made
    assert made.changes[0].model_dump(mode="json", by_alias=True) == {"at": "10s", "link": "w1-s0", "rate": "50mbit"}


def test_a_change_may_be_given_as_an_object() -> None:
    (change,) = experiment({"at": "1s", "link": "w0-s0", "rate": "2mbit"}).changes
    assert Experiment.model_validate({"name": "t", "changes": (change,)}).changes == (change,)


def test_the_example_can_be_planned() -> None:
    plan = make_plan(load(Path(__file__).parents[4] / "experiments" / "changing_links.yaml"))
    assert [change.at_s for change in timeline(plan.experiment.changes)] == [5, 12, 12.5, 18]


def states(*changes: object) -> set[tuple[float, float]]:
    """Rate and delay, of the direction w1 -> s0."""
    plan = make_plan(experiment(*changes, link={"rate": "100mbit"}))
    found = requested_over_time(list(plan.requested.values()), plan.experiment.changes, packet_bytes=1500)
    return {(each.spec.rate_bps, each.spec.delay_s) for each in found if each.hop == ("w1", "s0")}


def test_a_value_that_comes_again_meets_what_has_changed_meanwhile(tmp_path: Path) -> None:
    assert states(
        {"at": "1s", "link": "w1-s0", "rate": "50mbit"},
        {"at": "2s", "link": "w1-s0", "rate": "20mbit", "delay": "5ms"},
        {"at": "3s", "link": "w1-s0", "rate": "50mbit"},
    ) == {(100e6, 0), (50e6, 0), (20e6, 0.005), (50e6, 0.005)}
    trace = tmp_path / "rates.csv"
    trace.write_text("0,50mbit\n1,20mbit\n2,50mbit\n3,20mbit\n")
    traced = {"link": "w1-s0", "trace": str(trace)}
    later = {"at": "2.5s", "link": "w1-s0", "delay": "5ms"}
    once = {(100e6, 0), (50e6, 0), (20e6, 0), (50e6, 0.005), (20e6, 0.005)}
    assert states({**traced, "repeat": False}, later) == once
    late = {"at": "10s", "link": "w1-s0", "delay": "5ms"}
    assert states({**traced, "repeat": False}, late) == once - {(50e6, 0.005)}
    assert states({**traced, "repeat": True}, late) == once, "it comes round again"
