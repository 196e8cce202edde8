"""The console script: the commands of `testbed/commands/`, and errors as one readable text and an exit code.

Exit codes: 0 ok, 1 the run failed, 2 usage or spec error, 3 something is missing on this machine, 4 ran but the result
is invalid, 130 interrupted and cleaned.
"""

import importlib.metadata
import signal
import sys
from contextlib import suppress
from typing import Annotated, Final

import typer
from rich.console import Console

from testbed.commands import (
    benchmarks,
    examples,
    links,
    machine,
    papers,
    records,
    results,
    running,
    specs,
    theory,
    topologies,
    traces,
    watching,
)
from testbed.commands.options import EPILOG
from testbed.errors import Interrupted, SpecError, TestbedError
from testbed.system.interruptions import SIGNALS, interrupt

EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    name="testbed",
    help="Emulate the network of distributed training: real gradients over measured links, and a verdict on whether "
    "the numbers can be trusted.\n\nStart with: testbed run quickstart",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for each in (running, papers, specs, theory, records, results, machine, watching):
    app.add_typer(each.commands)
app.add_typer(
    benchmarks.commands, name="bench", short_help="Benchmarks: stacks and links against targets and baselines."
)
app.add_typer(results.results, name="results", short_help="Many runs: list, query, export, delete.")
app.add_typer(examples.commands, name="examples", short_help="Specs and scripts to begin with: list and copy.")
app.add_typer(traces.commands, name="trace", short_help="Traces: look at them, make, import and export them.")
app.add_typer(
    topologies.commands,
    name="topology",
    short_help="Networks of other simulators: show and export InfraGraph documents.",
)
app.add_typer(
    links.commands, name="link", short_help="Show, change, take down and bring up links of a running experiment."
)


def _version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"testbed {importlib.metadata.version('ina-testbed')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options that stand before any command. Their help is the application's."""


def _execute() -> None:
    try:
        app()
    except ModuleNotFoundError:
        from testbed.machine.doctor import require_packages

        require_packages()  # it is of an extra that is not installed; says of which
        raise


def main() -> None:
    """The console script: commands, and errors as one readable text and an exit code."""
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored by nohup(1)
            signal.signal(number, interrupt)
    errors = Console(stderr=True, emoji=False)  # `foo:x:` is no cross
    try:
        _execute()
    except Interrupted as interrupted:
        with suppress(OSError):  # the terminal is gone
            errors.print(f"{interrupted}: interrupted; everything this run made has been removed", style="yellow")
        sys.exit(EXIT_INTERRUPTED)
    except TestbedError as error:
        kind = "spec error" if isinstance(error, SpecError) else "error"
        errors.print(f"[bold red]{kind}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
