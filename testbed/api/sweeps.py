"""A sweep, and what runs differ by, as objects that show themselves in a notebook."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from testbed.api.pictures import Picture
from testbed.api.runs import Run
from testbed.report.comparison.answer import answer
from testbed.report.comparison.markdown import sweep_markdown
from testbed.report.comparison.page import comparison_figures
from testbed.report.comparison.points import ComparedPoint, Comparison, State
from testbed.report.comparison.time_to_loss import TimeToLoss, time_to_loss
from testbed.report.differences.page import compared_figures, write_compared
from testbed.report.markdown import plain, table
from testbed.report.terminal.results import compared_json, sentences
from testbed.store.compare import Compared


class SweepResult:
    """The points of a sweep with their runs. A point's numbers are those of its runs that stand: of a point that has
    none they are None."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.directory = comparison.directory.absolute()
        """Of sweep.json, sweep.csv, sweep.html, sweep.md."""

    @property
    def points(self) -> tuple[ComparedPoint, ...]:
        """In the order of the sweep, each with its settings, its runs' summaries and what theory says."""
        return self.comparison.points

    @property
    def outcomes(self) -> set[State]:
        """Of the points: `not run` where runs are missing."""
        return self.comparison.outcomes

    @property
    def answer(self) -> list[str]:
        """Sentences: what differs by more than noise between runs, and what does not."""
        return answer(self.comparison)

    @property
    def reasons(self) -> list[str]:
        """What a reader should know of runs that are not valid, or count although they were made otherwise."""
        return self.comparison.reasons

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row for each point, in the order of the sweep: settings, `outcome`, numbers, predictions."""
        return self.comparison.frame()

    @cached_property
    def runs(self) -> list[Run]:
        """Every run, in the order of the points."""
        return [Run(summary.record) for point in self.points for summary in point.runs]

    @cached_property
    def time_to_loss(self) -> TimeToLoss | None:
        """When each point reaches the lowest loss that all reach; None where points have none."""
        return time_to_loss(self.comparison)

    @cached_property
    def figures(self) -> Mapping[str, Picture]:
        """Those that there is something to draw for: `iteration`, `allreduce`, `scaling`, `breakdown`, `time_to_loss`;
        `command` of programs of the user's."""
        found = comparison_figures(self.comparison, self.time_to_loss)
        return {name: Picture(name, each, self._caption) for name, each in found.items()}

    @property
    def report(self) -> Path:
        """The page for people, in one file that opens offline."""
        return self.directory / "sweep.html"

    @property
    def _caption(self) -> str:
        """`link-speed, 5 points: 4 valid, 1 INVALID`."""
        outcomes = [point.outcome for point in self.points]
        counted = ", ".join(
            f"{outcomes.count(each)} {each if each == 'valid' else each.upper()}" for each in dict.fromkeys(outcomes)
        )
        return f"{self.comparison.name}, {len(outcomes)} point{'s' if len(outcomes) != 1 else ''}: {counted}"

    def __repr__(self) -> str:
        return f"<SweepResult {self._caption}; {' '.join(self.answer)} {self.directory}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What IPython shows: the answer, a row for each point, and what was wrong."""
        return {"text/markdown": sweep_markdown(self.comparison, self.time_to_loss, []), "text/plain": repr(self)}


class Differences:
    """Settings, the first of which the others are compared with: ratios with intervals."""

    def __init__(self, compared: Compared) -> None:
        self.compared = compared

    @property
    def sentences(self) -> list[str]:
        """One for each setting but the first."""
        return sentences(self.compared)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know before believing it."""
        return self.compared.notes

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row for each setting: its mean, and but for the first the ratio with `low` and `high` and whether it is
        `distinguishable` from noise."""
        return pl.DataFrame(compared_json(self.compared)["settings"], infer_schema_length=None)

    @cached_property
    def figures(self) -> Mapping[str, Picture]:
        """`differences`, `runs`, and `parts` where there are iterations."""
        caption = f"{self.compared.metric}: {' '.join((*self.sentences, *self.notes))}"
        return {name: Picture(name, each, caption) for name, each in compared_figures(self.compared).items()}

    def write_page(self, path: str | Path) -> Path:
        """Write what `testbed compare --page` does: the page, Markdown and pictures beside it. Raises SpecError for a
        name that does not end in .html, and MissingRequirementError where they cannot be written."""
        return write_compared(self.compared, Path(path))

    def __repr__(self) -> str:
        return f"<Differences in {self.compared.metric}: {' '.join((*self.sentences, *self.notes))}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        rows = [
            [
                str(row["name"]),
                str(len(row["runs"])),
                f"{row['mean']:.4g}",
                *map(_number, (row["ratio"], row["low"], row["high"])),
            ]
            for row in self.frame.iter_rows(named=True)
        ]
        header = ("setting", "runs", self.compared.metric, "of the first", "from", "to")
        lines = [*table(header, "lrrrrr", rows), *(f"{plain(sentence)}  " for sentence in self.sentences)]
        lines += ["", *(f"- {plain(note)}" for note in self.notes)]
        return {"text/markdown": "\n".join(lines), "text/plain": repr(self)}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
