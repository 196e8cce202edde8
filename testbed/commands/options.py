"""What commands share: their epilogue, options that several have, JSON and logging."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.logging import RichHandler

from testbed.calibration.cache import Mode
from testbed.errors import SpecError
from testbed.store.reuse import Reuse

if TYPE_CHECKING:
    from testbed.live.feed import Feed

EPILOG: Final = (
    "Exit codes: 0 ok, 1 run failed, 2 usage or spec error, 3 something is missing on this machine, "
    "4 ran but the result is invalid, 130 interrupted and cleaned. What each number means: docs/definitions.md."
)


def _shipped(given: Path | None) -> Path | None:
    """The file, or the spec of that name that comes with the package."""
    if given is None:
        return None
    from testbed.experiment.shipped import spec_path

    return spec_path(given)


Spec = Annotated[
    Path,
    typer.Argument(
        help="A YAML spec, which `testbed schema` describes; or the name of one that `testbed examples` lists, where "
        "there is no such file.",
        metavar="SPEC",
        show_default=False,
        callback=_shipped,
    ),
]
SpecOption = Annotated[
    Path | None,
    typer.Option(
        "--spec",
        help="Take all but the workload from this spec.",
        dir_okay=False,
        show_default=False,
        callback=_shipped,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one value, such as --set link.rate=1gbit. Repeatable.", metavar="PATH=VALUE"),
]
Run = Annotated[
    str | None,
    typer.Argument(
        help="The beginning of a run's id, or `last`; left out where one is alive.", metavar="RUN", show_default=False
    ),
]
Output = Annotated[Path, typer.Option("--output", help="The directory that records are made in.", file_okay=False)]
Calibrate = Annotated[
    Mode,
    typer.Option(
        "--calibrate",
        help="class: the rate of one link of each class, queue and loss of each class from the cache. full: every "
        "link, nothing from the cache. cached: the rate from the cache too. Settings are read back and delays "
        "measured on every link in each case.",
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        help="What a worker runs in: namespace (the default) or docker, with the image that `make image` builds. The "
        "same as --set runtime.kind=...; an image of your own: --set runtime.image=my/train:latest.",
        show_default=False,
    ),
]
Reused = Annotated[
    Reuse,
    typer.Option(
        "--reuse",
        help="Which results below --output stand for runs of the same spec. same: those of this version of the code, "
        "this machine and this schema. any: others too, and sweep.json says so. none: all is run again.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where runs are made. local: here, one after another. ray: on the machines of a Ray cluster that offer "
        "the resource emulation_slot and are like this one, one run at a time on each; "
        "'{kind: ray, address: HOST:PORT}' names the cluster (docs/sweeps.md).",
        metavar="ENGINE",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Write the result there, too, once the run is over: tensorboard:DIR or mlflow:URI. Repeatable. Needs "
        "ina-testbed[tracking].",
        metavar="TARGET",
    ),
]
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, for scripts.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv says everything.", show_default=False)
]


@contextmanager
def live_feed(
    live: bool,
    port: int | None,
    address: str | None,
) -> "Iterator[Feed | None]":
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


def emit(value: Any) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def set_up_logging(verbose: int) -> None:
    """Logs go to standard error: warnings, with -v information, with -vv everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
