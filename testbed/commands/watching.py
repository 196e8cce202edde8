"""status, top: runs that go on, from another terminal."""

from typing import Annotated, Final

import typer
from rich.console import Console

from testbed.commands.options import EPILOG, Json, Run, emit

commands: Final = typer.Typer()


@commands.command(epilog=EPILOG, short_help="Say which runs are alive and how far they are.")
def status(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The beginning of a run's id, or `last`; all where left out.", metavar="RUN", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which runs are alive: what each does, since when, how far it is, where its record will be."""
    from datetime import UTC, datetime

    from testbed.deployment.aggregator_control import sockets
    from testbed.record.status import alive_runs, choose, read_status
    from testbed.report.terminal.status import render_status

    alive = alive_runs()
    chosen = alive if run is None else [choose(run, alive)]
    found = {run_id: read_status(run_id) for run_id in chosen}
    if as_json:
        runs = [each.model_dump(mode="json") if each else {"run_id": run_id} for run_id, each in found.items()]
        emit({"schema_version": 1, "runs": runs})
    else:
        adding = {run_id: sockets(run_id) for run_id in chosen}
        render_status(found, Console(), now=datetime.now(UTC), sockets=adding)


@commands.command(epilog=EPILOG, short_help="Watch the links of a run that goes on.")
def top(
    run: Run = None,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.3, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch the links of a run that goes on: requested and carried rates, queues, drops, marks.

    Ends with the run, or with Ctrl-C, which the run does not notice. A look costs the run some milliseconds of a core.

    Examples:

    \b
      testbed top
      testbed top last --once
    """
    from testbed.commands.top import once as look_once
    from testbed.commands.top import watch

    if as_json:
        emit({"schema_version": 1, **look_once(run, interval_s=interval_s).to_json()})
    elif once:
        look_once(run, interval_s=interval_s).render(Console())
    else:
        watch(run, Console(), interval_s=interval_s)
