"""What commands share: their epilogue, options that several have, JSON and logging."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.logging import RichHandler

from testbed.calibration.cache import Mode
from testbed.store.reuse import Reuse

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
MachinesFile = Annotated[
    Path | None,
    typer.Option(
        "--machines",
        help="Spread the emulation over the two machines of this file: docs/several_machines.md.",
        dir_okay=False,
        show_default=False,
        metavar="FILE",
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        help="So many invalid runs of a point are repeated, and degraded ones with reproduce.",
        min=0,
        max=100,
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
        "this machine, this schema and, of a command, this program. any: others too, and sweep.json says so. none: all "
        "is run again.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where runs are made. local: here, one after another. ray: on the machines of a Ray cluster that offer "
        "the resource emulation_slot and are like this one, one run at a time on each; "
        "'{kind: ray, address: HOST:PORT}' names the cluster (docs/sweeps.md). Of one run: where its --machines are.",
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, for scripts.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv says everything.", show_default=False)
]


def emit(value: Any) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def set_up_logging(verbose: int) -> None:
    """Logs go to standard error: warnings, with -v information, with -vv everything."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
