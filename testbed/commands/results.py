"""results, compare: many records, what they say together, and whether they differ."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from testbed.commands.options import EPILOG, Json, Output, emit
from testbed.store.metrics import Metric
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.store.index import Index

commands: Final = typer.Typer()
results: Final = typer.Typer(no_args_is_help=True, epilog=EPILOG)

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        help="Runs for which this SQL condition holds: \"workers = 4 and outcome = 'valid'\". `testbed results "
        "columns` lists what there is.",
        metavar="CONDITION",
        show_default=False,
    ),
]
RunId = Annotated[
    str,
    typer.Argument(help="The beginning of a run's id or of its record's name, or `last`.", metavar="RUN"),
]


@contextmanager
def _index(output: Path) -> Iterator["Index"]:
    """The index of a directory, as new as its records."""
    from testbed.store.index import Index

    with closing(Index(output)) as index:
        index.refresh()
        yield index


@results.command("list", epilog=EPILOG, short_help="The runs there are, newest first.")
def list_(
    where: Where = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many; 0: all.", min=0)] = 20,
    output: Output = Path("results"),
    as_json: Json = False,
) -> None:
    """List the runs whose records are below --output, newest first, and name what cannot be read.

    Examples:

    \b
      testbed results list
      testbed results list --where "collective = 'ring' and scaling_factor > 0.9" --json
    """
    from testbed.report.terminal.results import render_runs

    with _index(output) as index:
        runs, problems = index.runs(where or "", limit=limit or None), index.problems()
    if as_json:
        emit({"runs": runs, "left_out": [problem._asdict() for problem in problems]})
    else:
        render_runs(runs, problems, standard_output())


@results.command(epilog=EPILOG, short_help="One run's summary.")
def show(run: RunId, output: Output = Path("results"), as_json: Json = False) -> None:
    """Print a run's summary again, as `testbed run` did at its end."""
    from testbed.record.reader import load_summary
    from testbed.report.terminal.summary import render_summary

    with _index(output) as index:
        record = output / index.find(run)["record"]
    summary = load_summary(record / "summary.json")
    if as_json:
        emit(summary.model_dump(mode="json", by_alias=True))
    else:
        render_summary(summary, standard_output())


@results.command(epilog=EPILOG, short_help="The columns that there are, and their meaning.")
def columns(as_json: Json = False) -> None:
    """List the columns of the table `runs`, for --where and `testbed results query`."""
    from testbed.report.terminal.results import render_rows
    from testbed.store.index import COLUMNS

    rows = [column._asdict() for column in COLUMNS]
    if as_json:
        emit(rows)
    else:
        render_rows(["name", "type", "meaning"], rows, standard_output())


@results.command(epilog=EPILOG, short_help="Ask in SQL.")
def query(
    statement: Annotated[str, typer.Argument(help="An SQL statement that reads `runs`.", metavar="SQL")],
    output: Output = Path("results"),
    as_json: Json = False,
) -> None:
    """Ask the table `runs` in SQL (SQLite's); nothing can be written.

    Examples:

    \b
      testbed results query "SELECT link_rate, avg(scaling_factor) FROM runs WHERE outcome = 'valid' GROUP BY link_rate"
      testbed results query "SELECT run_id, json_extract(spec, '$.fusion.kind') AS fusion FROM runs" --json
    """
    from testbed.report.terminal.results import render_rows

    with _index(output) as index:
        names, rows = index.query(statement)
    if as_json:
        emit(rows)
    else:
        render_rows(names, rows, standard_output())


@results.command(epilog=EPILOG, short_help="Runs, or their measurements, as one table in a file.")
def export(
    file: Annotated[Path, typer.Argument(help="A .csv or .parquet file to write.", metavar="FILE", dir_okay=False)],
    where: Where = None,
    table: Annotated[
        Literal["runs", "iterations", "buckets", "links"],
        typer.Option(help="One row a run, or all rows of that table of every run, with its run_id."),
    ] = "runs",
    output: Output = Path("results"),
) -> None:
    """Write one table of many runs: CSV or Parquet, by the file's name. Runs whose table cannot be read are named and
    left out.

    Times of `runs` are virtual; those of the other tables are wall seconds, to be divided by their column `dilation`.

    Examples:

    \b
      testbed results export runs.csv --where "outcome = 'valid'"
      testbed results export iterations.parquet --table iterations
    """
    from testbed.report.terminal.results import render_problems
    from testbed.store.export import write_table

    with _index(output) as index:
        rows = write_table(index, file, table=table, condition=where or "")
    standard_output().print(f"{rows.frame.height} rows in {file}", markup=False, highlight=False, soft_wrap=True)
    render_problems(rows.left_out, standard_output())


@results.command(epilog=EPILOG, short_help="Remove records from the disk.")
def delete(
    runs: Annotated[list[str], typer.Argument(help="Beginnings of runs' ids.", metavar="RUN...")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: Output = Path("results"),
) -> None:
    """Remove the records of runs, each with everything that it measured. All are looked up before the first goes."""
    with _index(output) as index:
        found = list(dict.fromkeys(index.find(run)["record"] for run in runs))  # one may have been named twice
        if not yes:
            typer.confirm(f"Delete {', '.join(str(output / record) for record in found)}?", abort=True)
        for record in found:
            index.delete(record)
            standard_output().print(f"deleted {output / record}", markup=False, highlight=False, soft_wrap=True)


@results.command(epilog=EPILOG, short_help="Write runs to TensorBoard or MLflow.")
def track(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Records, directories of sweeps, or beginnings of runs' ids below --output.",
            metavar="RECORD...",
            show_default=False,
        ),
    ],
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            help="tensorboard:DIR or mlflow:URI. Repeatable. Needs ina-testbed[tracking].",
            metavar="TARGET",
            show_default=False,
        ),
    ],
    output: Output = Path("results"),
) -> None:
    """Write runs to TensorBoard or MLflow, from their records; those that are there already are left as they are.

    Loss, iteration time and its parts, and what of its rate each link used, for each measured iteration; settings as
    parameters, the verdict as tags. Names of numbers that do not stand begin with invalid/.

    Examples:

    \b
      testbed results track last --to tensorboard:runs
      testbed results track results/link-speed-sweep-1a2b3c4d --to mlflow:http://localhost:5000
    """
    from testbed.store.compare import records_of
    from testbed.tracking.targets import parse_targets
    from testbed.tracking.targets import track as write

    targets = parse_targets(to)
    console = standard_output()
    write(
        records_of(runs, output=output),
        targets,
        say=lambda text: console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True),
    )


@results.command(epilog=EPILOG, short_help="Make the index again.")
def rebuild(output: Output = Path("results"), as_json: Json = False) -> None:
    """Forget what is known of the records and read each of them again. The index holds nothing that they do not."""
    from testbed.report.terminal.results import render_problems
    from testbed.store.index import Index

    with closing(Index(output)) as index:
        found, problems = index.rebuild(), index.problems()
    if as_json:
        emit({"read": found.num_read, "left_out": [problem._asdict() for problem in problems]})
    else:
        standard_output().print(f"{found.num_read - len(problems)} records in {output / 'index.db'}", markup=False)
        render_problems(problems, standard_output())


@commands.command(epilog=EPILOG, short_help="Whether runs differ by more than noise.")
def compare(
    operands: Annotated[
        list[str],
        typer.Argument(
            help="Records, directories of sweeps, or beginnings of runs' ids below --output. Records of one spec are "
            "repetitions; the first one's setting is what the others are compared with.",
            metavar="RECORD...",
            show_default=False,
        ),
    ],
    metric: Annotated[Metric, typer.Option(help="What to compare.")] = "iteration_time_s",
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs that are invalid, or answer different questions, too.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            dir_okay=False,
            help="Write a page, too: differences with intervals, every run, the parts of iterations side by side; "
            "beside it Markdown, and the pictures as SVG and PNG.",
            metavar="FILE.html",
            show_default=False,
        ),
    ] = None,
    output: Output = Path("results"),
    as_json: Json = False,
) -> None:
    """Compare settings by their runs: ratios with intervals, and whether noise alone could explain them.

    Repetitions are what tells noise: `--set repeat=5` in a sweep makes five runs of each setting, in turns.

    Examples:

    \b
      testbed compare results/quickstart-sweep-1a2b3c4d
      testbed compare results/A results/B --metric samples_per_s
      testbed compare results/quickstart-sweep-1a2b3c4d --page compared.html
    """
    from testbed.report.terminal.results import compared_json, render_compared
    from testbed.store.compare import compare as compare_records
    from testbed.store.compare import records_of

    if page is not None:
        from testbed.report.differences.page import require_page, write_compared

        require_page(page)
    found = compare_records(records_of(operands, output=output), metric=metric, force=force)
    if page is not None:
        write_compared(found, page)
    if as_json:
        emit(compared_json(found))
    else:
        render_compared(found, standard_output())
        if page is not None:
            standard_output().print(f"page {page}", markup=False, highlight=False, soft_wrap=True)
