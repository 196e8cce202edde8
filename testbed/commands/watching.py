"""status, top, replay: runs that go on, from another terminal, and records as they went."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from testbed.commands.options import EPILOG, Json, Run, emit
from testbed.errors import Interrupted

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


@commands.command(epilog=EPILOG, short_help="Show a record again as it went, on a page, at any speed.")
def replay(
    record: Annotated[Path, typer.Argument(help="The directory of a record.", metavar="RECORD", show_default=False)],
    speed: Annotated[
        float, typer.Option(help="Seconds of the run for each second of yours.", min=0.05, max=1000)
    ] = 1.0,
    paused: Annotated[bool, typer.Option("--paused", help="Begin without moving.")] = False,
    port: Annotated[int, typer.Option(help="TCP port of the page; 0 takes any free one.", min=0, max=65535)] = 0,
    address: Annotated[
        str,
        typer.Option(help="Address of this machine to serve on; beyond 127.0.0.1 others can reach the page."),
    ] = "127.0.0.1",
) -> None:
    """Show a record again as it went, on the page of `run --live`: pause, speed and place are chosen there.

    Serves on loopback until Ctrl-C; the page's URL, with a token in it, is printed. Needs pip install
    'ina-testbed[live]', and no root.

    Examples:

    \b
      testbed replay results/RECORD
      testbed replay results/RECORD --speed 10
    """
    from testbed.live.replay import timeline_of
    from testbed.live.server import listen, require_framework, serve_replay
    from testbed.record.reader import load

    require_framework()
    shown = timeline_of(load(record))
    listening, place = listen(address, port, option="--")
    errors = Console(stderr=True)
    if shown.stride > 1:
        errors.print(f"every {shown.stride}. sample of the links is shown", highlight=False)
    errors.print(f"replay: {place.url}   (Ctrl-C ends it)", highlight=False, markup=False, soft_wrap=True)
    with listening, suppress(Interrupted):
        serve_replay(shown, listening, place, speed=speed, paused=paused)
