from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.traces import OPPORTUNITY_BITS, Trace, parse_trace


def text_of(moments_ms: list[int]) -> str:
    return "".join(f"{moment}\n" for moment in moments_ms)


def test_a_mahimahi_trace_of_one_packet_each_millisecond_is_12_mbit() -> None:
    trace = parse_trace(text_of(list(range(1, 1001))), field="rate")
    assert trace.period_s == 1.0
    assert len(trace.steps) == 10
    assert all(value == pytest.approx(12e6) for _, value in trace.steps)


def test_several_lines_with_one_millisecond_are_several_packets() -> None:
    trace = parse_trace(text_of([50, 50, 50, 50, 100]), field="rate")
    assert trace.steps == ((0.0, pytest.approx(5 * 12_000 / 0.1)),)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300), st.sampled_from([0.02, 0.1, 0.5, 1.0]))
def test_averaging_keeps_every_opportunity_and_covers_the_whole_period(moments: list[int], window_s: float) -> None:
    moments_ms = sorted([*moments, 5001])
    trace = parse_trace(text_of(moments_ms), field="rate", window_s=window_s)
    starts = [at_s for at_s, _ in trace.steps]
    ends = [*starts[1:], trace.period_s]
    bits = sum(value * (end - start) for (start, value), end in zip(trace.steps, ends, strict=True))
    assert bits == pytest.approx(len(moments_ms) * OPPORTUNITY_BITS)
    assert starts[0] == 0
    assert all(end - start >= 0.49 * window_s for start, end in zip(starts, ends, strict=True))


@given(st.lists(st.tuples(st.floats(0.001, 100), st.floats(1e6, 1e11)), min_size=1, max_size=50))
def test_csv_steps_come_back_as_written(rows: list[tuple[float, float]]) -> None:
    at_s, steps = 0.0, []
    for gap_s, value in rows:
        at_s += gap_s
        steps.append((at_s, value))
    text = "time_s,rate_bps\n" + "".join(f"{at!r},{value!r}\n" for at, value in steps)
    assert list(parse_trace(text, field="rate").steps) == steps


def test_csv_takes_units_comments_and_no_header() -> None:
    text = "# from a drive\n0, 50mbit\n\n500ms, 2.5gbit\n"
    assert parse_trace(text, field="rate").steps == ((0.0, 50e6), (0.5, 2.5e9))
    assert parse_trace("time,delay\n0,5ms\n1,10ms\n", field="delay").steps == ((0.0, 0.005), (1.0, 0.01))
    assert parse_trace("time_s,loss\n0,1%\n1,0.02\n", field="loss").steps == ((0.0, 0.01), (1.0, 0.02))


@given(st.lists(st.floats(1e6, 1e9), min_size=1, max_size=20), st.integers(1, 60))
def test_a_repeating_trace_goes_on_in_order(values: list[float], num_steps: int) -> None:
    trace = Trace(
        format="csv",
        field="rate",
        steps=tuple((float(i), v) for i, v in enumerate(values)),
        period_s=float(len(values)),
    )
    replayed = list(islice(trace.replay(repeat=True), num_steps))
    times = [at_s for at_s, _ in replayed]
    assert times == sorted(times)
    assert all(first != second for (_, first), (_, second) in pairwise(replayed))
    assert all(value == values[int(at_s) % len(values)] for at_s, value in replayed)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "rate", "is empty"),
        ("# nothing\n", "rate", "is empty"),
        ("0\n0\n", "rate", "ends at 0 ms"),
        ("1\n3\n2\n", "rate", "line 3: 2 ms comes after 3 ms"),
        ("1\nx\n", "rate", "line 2: 'x' is no integer"),
        ("1\n2\n", "delay", "gives the rate, not the delay"),
        ("time_s,rate\n0,1gbit\n0,2gbit\n", "rate", "line 3: 0 s does not come after"),
        ("time_s,rate\n", "rate", "a header and no rows"),
        ("time_s,rate\n0,100\n", "rate", "line 2: '100' is not a rate.*rate_bps"),
        ("time_s,delay\n0,1ms\n", "rate", "the second column is 'delay', not the rate"),
        ("time_s,rate\n0,1gbit,3\n", "rate", "line 2: 3 columns"),
        ("time_s,rate_bps\n0,nan\n", "rate", "line 2"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(text: str, field: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_trace(text, field=field)  # type: ignore[arg-type]
