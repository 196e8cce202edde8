"""examples: what comes with the package to begin with."""

from pathlib import Path
from typing import Annotated, Final

import typer

from testbed.commands.options import EPILOG, Json, emit
from transports.bench.terminal import standard_output

commands: Final = typer.Typer(invoke_without_command=True, epilog=EPILOG)


@commands.callback()
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List the specs, papers, scripts and dashboards that come with the package; `copy` makes one yours.

    A spec runs by its name: `testbed run quickstart`, where there is no file of that name.
    """
    if context.invoked_subcommand is not None:
        return
    from testbed.experiment.examples import examples
    from testbed.report.terminal.results import render_rows

    rows = [{"name": each.name, "kind": each.kind, "about": each.about} for each in examples()]
    if as_json:
        emit(rows)
    else:
        render_rows(["name", "kind", "about"], rows, standard_output())


@commands.command(epilog=EPILOG, short_help="Copy one into a folder.")
def copy(
    name: Annotated[str, typer.Argument(help="As `testbed examples` lists it.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to.", file_okay=False)] = Path(),
) -> None:
    """Copy an example into a folder. What is there already is never written over.

    Examples:

    \b
      testbed examples copy quickstart
      testbed examples copy ddp.py scripts
    """
    from testbed.experiment.examples import copy_example

    standard_output().print(str(copy_example(name, folder)), markup=False, highlight=False, soft_wrap=True)
