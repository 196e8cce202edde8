import io
from typing import Any

import pytest
from rich.console import Console

from testbed.record import number_text
from testbed.report.terminal.results import render_compared, render_rows, render_runs, sentences
from testbed.store.compare import Compared, Setting
from testbed.store.differences import RunValues, difference
from testbed.store.index import COLUMNS, Problem
from testbed.store.metrics import Metric


def console(width: int = 140) -> Console:
    return Console(file=io.StringIO(), width=width)


def text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def run(**changes: Any) -> dict[str, Any]:
    known = {
        "run_id": "r1",
        "name": "q",
        "workload": "training cnn",
        "workers": 4,
        "link_rate": "1gbit",
        "outcome": "valid",
    }
    empty = dict.fromkeys(column.name for column in COLUMNS)
    return {**empty, **known, "collective": "ring", "channel": "tcp", "compression": "none", **changes}


@pytest.mark.parametrize("width", [80, 140])
def test_runs_are_rows_and_what_is_left_out_is_named(width: int) -> None:
    shown = console(width)
    rows = [
        run(iteration_time_s=0.25, scaling_factor=0.5),
        run(run_id="r2", compression="top_k", link_delay="5ms", outcome="invalid"),
        run(run_id="r3", stack="gloo"),
    ]
    render_runs(rows, [Problem("q-0", "summary.json cannot be read")], shown)
    lines = text(shown).splitlines()
    assert "250 ms" in lines[1]
    assert "0.5" in lines[1]
    assert any("gloo" in line for line in lines)
    assert lines[-1] == "left out: q-0: summary.json cannot be read"
    if width == 140:
        assert "ring/tcp/top_k" in lines[2]
        assert "1gbit, 5ms" in lines[2]
        assert lines[2].rstrip().endswith("invalid")


def test_an_answer_is_a_table() -> None:
    shown = console()
    render_rows(["a", "b"], [{"a": 1, "b": None}], shown)
    assert text(shown).split() == ["a", "b", "1", number_text.DASH]


def compared(first: list[float], second: list[float], metric: Metric = "iteration_time_s") -> Compared:
    runs = [
        tuple(RunValues(f"2026-01-01T00:{2 * index + which:02d}", [mean]) for index, mean in enumerate(means))
        for which, means in enumerate((first, second))
    ]
    settings = tuple(
        Setting(name=name, summaries=(), values=values, mean=sum(each.mean for each in values) / len(values))
        for name, values in zip(("A", "B"), runs, strict=True)
    )
    return Compared(metric=metric, settings=settings, differences=(difference(*runs),), notes=("mind",))


@pytest.mark.parametrize(
    ("first", "second", "metric", "sentence"),
    [
        (
            [1.0, 1.01, 1.0],
            [1.1, 1.11, 1.1],
            "iteration_time_s",
            "B is worse than A: +10.0 % (+9.8 % to +10.1 %; 3 pairs",
        ),
        ([1.0, 1.01, 1.0], [1.1, 1.11, 1.1], "samples_per_s", "B is better than A: +10.0 %"),
        ([1.0, 1.1, 1.0], [1.0, 1.0, 1.1], "iteration_time_s", "B and A cannot be told apart: -"),
        ([1.0, 1.0], [4.0, 4.0], "iteration_time_s", "B is worse than A: 4 x (4 x to 4 x; 2 pairs"),
        ([1.0], [1.1, 1.2], "iteration_time_s", "B: +14.9 % against A; too few iterations to say how surely."),
    ],
)
def test_a_sentence_says_what_noise_allows(
    first: list[float], second: list[float], metric: Metric, sentence: str
) -> None:
    found = compared(first, second, metric)
    (said,) = sentences(found)
    assert said.startswith(sentence), said
    shown = console()
    render_compared(found, shown)
    assert said in text(shown)
    assert "• mind" in text(shown)


def test_values_in_brackets_are_no_markup() -> None:
    shown = console()
    render_rows(["[b]"], [{"[b]": "[/usr/bin/x]"}], shown)
    assert text(shown).split() == ["[b]", "[/usr/bin/x]"]
    values = (RunValues("1", [1.0]),)
    settings = tuple(
        Setting(name=f"workload.argv=['[/{each}]']", summaries=(), values=values, mean=1.0) for each in "ab"
    )
    compared = Compared(
        metric="command_time_s", settings=settings, differences=(difference(values, values),), notes=("[/note]",)
    )
    shown = console()
    render_compared(compared, shown)
    assert [text(shown).count(f"['[/{each}]']") for each in "ab"] == [2, 2]
    shown = console()
    render_runs([run(link_rate="[/1gbit]")], [], shown)
    assert "[/1gbit]" in text(shown)
