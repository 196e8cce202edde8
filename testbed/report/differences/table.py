"""The rows of compared settings, as text: the same for the page and for Markdown."""

from collections.abc import Iterator
from statistics import fmean
from typing import Final, NamedTuple

from testbed.record.number_text import time_text
from testbed.report import wording
from testbed.report.terminal.results import basis_text, interval_text, ratio_text, value_text
from testbed.store.compare import Compared, Setting
from testbed.store.differences import CONFIDENCE

HEADERS = ("setting", "runs", "mean", "difference", f"{100 * CONFIDENCE:.0f} % interval", "finding", "rests on")
"""Of :func:`rows`."""


class PartsRow(NamedTuple):
    """The parts of one setting's iterations."""

    name: str
    cells: list[tuple[str, str]]
    """Of each part, and of the whole: its time, and by how much that is more than the first setting's."""


COMPARED: Final = "settings compared"


def title(compared: Compared) -> str:
    """`quickstart: 3 settings compared`."""
    names = dict.fromkeys(summary.name for setting in compared.settings for summary in setting.summaries)
    return f"{', '.join(names)}: {len(compared.settings)} {COMPARED}"


def marked(setting: Setting) -> str:
    """Its name, with a word where some of its runs are not valid."""
    outcomes = dict.fromkeys(run.outcome for run in setting.summaries if run.outcome != "valid")
    return f"{setting.name} ({', '.join(outcomes)})" if outcomes else setting.name


def rows(compared: Compared) -> Iterator[tuple[Setting, list[str]]]:
    """Each setting with its cells."""
    first, *others = compared.settings
    value = value_text(compared.metric, first.mean)
    yield first, [marked(first), str(len(first.values)), value, "", "", "what the others are compared with", ""]
    for other, found in zip(others, compared.differences, strict=True):
        value = value_text(compared.metric, other.mean)
        change, interval, basis = ratio_text(found.ratio), interval_text(found), basis_text(found)
        yield other, [marked(other), str(len(other.values)), value, change, interval, compared.finding(found), basis]


def parts_rows(compared: Compared) -> list[PartsRow]:
    """The parts of the mean iteration of each setting's runs, whose differences add up to that of the iteration; none
    where a setting has no iterations."""
    times = [_parts(setting) for setting in compared.settings]
    if not all(times):
        return []
    return [
        PartsRow(
            marked(setting),
            [
                (time_text(time_s), "" if number == 0 else _more_text(time_s - first_s))
                for time_s, first_s in zip(parts, times[0], strict=True)
            ],
        )
        for number, (setting, parts) in enumerate(zip(compared.settings, times, strict=True))
    ]


PARTS_HEADERS = (*(name for name, *_ in wording.PARTS), "iteration")
"""Of :func:`parts_rows`, after the setting."""


def _parts(setting: Setting) -> list[float]:
    runs = [[time_s for _, time_s in wording.parts(run)] for run in setting.summaries if run.iteration_time_s]
    means = [fmean(column) for column in zip(*runs, strict=True)]
    return [*means, sum(means)] if means else []


def _more_text(time_s: float) -> str:
    """`+12.1 ms`; nothing below a tenth of a microsecond is a difference."""
    if abs(time_s) < 1e-7:
        return "+0 s"
    return f"{'+' if time_s > 0 else '-'}{time_text(abs(time_s))}"
