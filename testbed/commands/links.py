"""link show, set, down, up: links of a run that goes on, from another terminal."""

from typing import Annotated, Final

import typer
from rich.console import Console

from testbed.commands.options import EPILOG, Json, Run, emit
from testbed.errors import SpecError
from transports.bench.terminal import standard_output

commands: Final = typer.Typer(
    help="Links of a run that goes on, from another terminal: show them, change them, take them down and up.",
    no_args_is_help=True,
)

Where = Annotated[
    list[str],
    typer.Argument(
        metavar="[RUN] LINK",
        help="RUN: the beginning of a run's id, or `last`; left out where one run is alive. LINK: w1-s0, one direction "
        "'w1->s0', or a pattern 'w*-s*'.",
        show_default=False,
    ),
]


@commands.command("show", epilog=EPILOG, short_help="The configuration of every direction now, and what it carries.")
def link_show(
    run: Run = None,
    as_json: Json = False,
) -> None:
    """Every direction of a run's links: its configuration now, what it carries at this moment, its queue."""
    from testbed.report.terminal.links import render_links
    from testbed.runner.link_client import choose_run, show_links

    run_id = choose_run(run)
    rows = show_links(run_id)
    if as_json:
        emit({"schema_version": 2, "run_id": run_id, "links": rows})
    else:
        render_links(run_id, rows, standard_output())


@commands.command("set", epilog=EPILOG, short_help="Change rate, delay, loss, queue, ... in place.")
def link_set(
    where: Where,
    rate: Annotated[str | None, typer.Option(help="Line rate: 50mbit.", show_default=False)] = None,
    delay: Annotated[str | None, typer.Option(help="One way: 5ms.", show_default=False)] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Standard deviation of the delay: 1ms.", show_default=False)
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets: 1%.", show_default=False)] = None,
    queue: Annotated[str | None, typer.Option(help="150kB, or 2bdp.", show_default=False)] = None,
    ecn: Annotated[
        str | None, typer.Option(help="Packets that find this much in the queue are marked: 50kB.", show_default=False)
    ] = None,
    duplicate: Annotated[
        str | None, typer.Option(help="Share of packets that arrive twice: 0.1%.", show_default=False)
    ] = None,
    reorder: Annotated[
        str | None, typer.Option(help="Share of packets that overtake those that wait: 1%.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Change links of a run while it goes on, in place: no packet is dropped; what is not named stays.

    Examples:

    \b
      testbed link set w1-s0 --rate 50mbit
      testbed link set last 's0->w*' --rate 20mbit --queue 200kB
    """
    settings = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss, "queue": queue, "ecn": ecn}
    settings |= {"duplicate": duplicate, "reorder": reorder}
    given = {name: value for name, value in settings.items() if value is not None}
    if not given:
        raise SpecError(f"nothing to change: name one of {', '.join(f'--{name}' for name in settings)}")
    _change_links(where, given, None, as_json)


@commands.command("down", epilog=EPILOG, short_help="Take links down: what is sent into them is lost.")
def link_down(where: Where, as_json: Json = False) -> None:
    """Take links of a run down: everything sent into them is lost, no interface reports it, routes and queues stay."""
    _change_links(where, {}, "down", as_json)


@commands.command("up", epilog=EPILOG, short_help="Bring links up that are down.")
def link_up(where: Where, as_json: Json = False) -> None:
    """Bring links up that `link down` has taken down."""
    _change_links(where, {}, "up", as_json)


def _change_links(where: list[str], settings: dict[str, str], carrier: str | None, as_json: bool) -> None:
    from testbed.runner.link_client import change_links, choose_run

    if len(where) > 2:
        raise SpecError(f"{' '.join(where)}: write [RUN] LINK, such as `last w1-s0`")
    run_id = choose_run(where[0] if len(where) == 2 else None)
    changed = change_links(run_id, where[-1], settings, carrier=carrier)
    if as_json:
        emit({"schema_version": 1, "run_id": run_id, "changed": changed})
        return
    console = Console(highlight=False, soft_wrap=True)
    for each in changed:
        text = f"{each['from']} -> {each['to']}: {each['setting']} {each['before']} -> {each['after']}"
        console.print(text, markup=False)
    if not changed:
        console.print("nothing changed: it was so already")
