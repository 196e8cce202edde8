"""doctor, fit, clean: what this machine can do, and what dead runs left on it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.commands.options import EPILOG, Json, emit
from testbed.errors import MissingRequirementError, RunFailedError
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.theory.fit import Fit

commands: Final = typer.Typer()


@commands.command(epilog=EPILOG, short_help="Say what this machine can do, and the fix for the rest.")
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Try what works, but do not measure how much.")] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, by trying it in a throw-away namespace, and the fix for what is missing.

    As root it also measures, for about ten seconds, what the machine carries: traffic through shaped links with
    super-frames and with single packets, and how late delays and timers are. `testbed plan` compares with it.
    """
    from testbed.machine.doctor import examine, measure

    errors = Console(stderr=True)
    checks = examine()
    budget = None
    if not quick and os.geteuid() == 0 and all(check.ok for check in checks if check.severity == "needed"):
        with errors.status("measuring") as status:
            budget = measure(on_step=lambda step: status.update(f"measuring: {step}"))
    if as_json:
        emit(
            {
                "schema_version": 2,
                "checks": [asdict(check) for check in checks],
                "budget": None if budget is None else asdict(budget),
            }
        )
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("", "what", "found", "fix"):
            table.add_column(column, overflow="fold")
        for check in checks:
            mark = "[green]ok[/]" if check.ok else "[red]no[/]" if check.severity == "needed" else "[yellow]--[/]"
            table.add_row(mark, *map(Text, (check.name, check.found, "" if check.ok else check.fix)))
        standard_output().print(table)
        if budget is not None:
            from testbed.report.terminal.budget import render_budget

            standard_output().print()
            render_budget(budget, standard_output())
    if any(not check.ok and check.severity == "needed" for check in checks):
        raise typer.Exit(MissingRequirementError.exit_code)


@commands.command(epilog=EPILOG, short_help="Fit the cost model's parameters to this machine.")
def fit(
    limit: Annotated[
        float | None,
        typer.Option(
            "--limit",
            help="Fail where the largest residual is above this share of what was measured, as 0.15; the fit is kept.",
            min=0,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what hosts add to links here, and fit the parameters of predictions to it; a few minutes, as root.

    All-reduces of 4 KiB to 64 MiB on emulated links, by TCP and then by the other channels. What is found is kept
    beside the machine's budget; `testbed predict`, plans, reports and `auto` use it from then on.
    """
    from testbed.benchmarks.fit import measure_fit
    from testbed.machine.doctor import require_root
    from testbed.machine.fit import keep_fit

    require_root()
    with Console(stderr=True).status("measuring") as status:
        found, rows = measure_fit(on_step=lambda step: status.update(f"measuring: {step}"))
    keep_fit(found)
    if as_json:
        errors = {"mean_error": found.mean_error, "largest_error": found.largest_error}
        emit({"costs": asdict(found.costs), **errors, "rows": rows})
    else:
        _print_fit(found, rows)
    if limit is not None and found.largest_error > limit:
        raise RunFailedError(
            f"the largest residual is {100 * found.largest_error:.1f} %, above --limit {limit:g}: fit again when the "
            "machine is quieter"
        )


def _print_fit(found: "Fit", rows: Sequence[Mapping[str, Any]]) -> None:
    from testbed.report.wording import costs_text

    table = Table(box=None, pad_edge=False)
    for column in ("exchange", "size", "measured", "by the fit", "residual"):
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for row in rows:
        table.add_row(
            f"{row['group']}: {row['stack']}",
            f"{row['size_bytes']:,} B",
            f"{row['measured_s'] * 1e3:.2f} ms",
            f"{row['predicted_s'] * 1e3:.2f} ms",
            f"{100 * row['residual']:+.1f} %",
        )
    standard_output().print(table)
    standard_output().print(
        f"{costs_text(found.costs)}\nresiduals: mean {100 * found.mean_error:.1f} %, largest "
        f"{100 * found.largest_error:.1f} %",
        highlight=False,
    )


@commands.command(epilog=EPILOG, short_help="Remove what dead runs left behind.")
def clean(
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run-id", help="Only the run whose id begins so, even if it is alive.", metavar="RUN", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget containers of Docker daemons that are gone for good.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what dead runs left behind, by id, and nothing else. The next run does the same by itself."""
    from testbed.hosts.clean import FORGET_FIX, named_run
    from testbed.hosts.clean import clean as remove

    chosen = None if run_id is None else named_run(run_id)
    done = remove(chosen, dry_run=dry_run, forget=forget)
    if as_json:
        emit(asdict(done))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for leftover in done.removed:
            console.print(f"{'would remove' if dry_run else 'removed'} {leftover.kind} {leftover.what}", markup=False)
        for leftover in done.remaining:
            console.print(f"could not remove {leftover.kind} {leftover.what} of run {leftover.run_id}", markup=False)
        for problem in dict.fromkeys(left.problem for left in done.remaining if left.problem):
            console.print(f"{problem}\n  {FORGET_FIX}", markup=False)
        for live in done.live_run_ids if chosen is None else ():
            console.print(f"run {live} is alive and was left alone (--run-id {live} ends it)")
        if chosen is not None and not (done.removed or done.remaining):
            console.print(f"nothing is left of run {chosen}")
        elif not (done.removed or done.remaining or done.live_run_ids):
            console.print("nothing to clean")
    if done.remaining:
        raise typer.Exit(1)
