"""--live and what goes with it: the page of the runs that a command makes, for as long as it makes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from testbed.errors import SpecError

if TYPE_CHECKING:
    from testbed.live.feed import Feed

Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Serve a page on loopback that draws the network and what moves on it while this goes on; its URL, with a "
        "token in it, is printed. Needs pip install 'ina-testbed[live]'.",
    ),
]
LivePort = Annotated[
    int | None,
    typer.Option("--live-port", help="TCP port of the page; any free one where left out.", min=0, max=65535),
]
LiveAddress = Annotated[
    str | None,
    typer.Option(
        "--live-address",
        help="Address of this machine that the page is served on instead of 127.0.0.1. Others can then reach it, and "
        "whoever has its URL sees the run.",
        show_default=False,
    ),
]


@contextmanager
def live_feed(live: bool, port: int | None, address: str | None) -> "Iterator[Feed | None]":
    """What runs tell the page that such options request; None where they request none. Raises SpecError for an option
    that would mean nothing."""
    for option, given in (("port", port), ("address", address)):
        if given is not None and not live:
            raise SpecError(f"--live-{option} is about the page of --live: add --live, or leave it out")
    if not live:
        yield None
        return
    from testbed.live.feed import live_page
    from testbed.live.server import LOOPBACK

    errors = Console(stderr=True)

    def say(text: str) -> None:
        errors.print(text, highlight=False, markup=False, soft_wrap=True)

    with live_page(address=address or LOOPBACK, port=port or 0, say=say) as feed:
        yield feed
