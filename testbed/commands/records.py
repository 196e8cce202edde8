"""report: what a run has left to be read."""

from pathlib import Path
from typing import Annotated, Final

import typer

from testbed.commands.options import EPILOG, Json, emit
from transports.bench.terminal import standard_output

commands: Final = typer.Typer()


@commands.command(epilog=EPILOG, short_help="Write the report of a record again.")
def report(
    record: Annotated[Path, typer.Argument(help="The directory of a record.", metavar="RECORD", show_default=False)],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Also write every worker's, bucket's and link's timeline to this file in Chrome's trace format, for "
            "ui.perfetto.dev or chrome://tracing; compressed where its name ends in .gz.",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write report.html and report.md of a record again, its figures as SVG and PNG beside them, and print its summary.

    Examples:

    \b
      testbed report results/RECORD
      testbed report results/RECORD --trace trace.json.gz
    """
    from testbed.record.reader import load as load_record
    from testbed.report.chrome_trace import write_trace
    from testbed.report.page import write_report
    from testbed.report.terminal.summary import render_summary

    loaded = load_record(record)
    if trace is not None:
        write_trace(loaded, trace)
    path = write_report(loaded, pictures=True)
    if as_json:
        traced = {} if trace is None else {"trace": str(trace)}
        emit({"report": str(path), **traced, "summary": loaded.summary.model_dump(mode="json", by_alias=True)})
    else:
        render_summary(loaded.summary, standard_output())
        if trace is not None:
            standard_output().print(f"trace {trace}: open it in ui.perfetto.dev", markup=False, soft_wrap=True)
