"""plan, schema: what a spec means, without doing anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from testbed.commands.options import EPILOG, Json, MachinesFile, Set, Spec, Verbose, emit, set_up_logging
from testbed.errors import SpecError
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.experiment.sweep import Sweep

commands: Final = typer.Typer()


@commands.command(epilog=EPILOG, short_help="Print what a run would do, without root and doing nothing.")
def plan(
    spec: Spec,
    overrides: Set = None,
    machines: MachinesFile = None,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Print what a run would do, without root and without doing it.

    Nodes, addresses, every ip and tc command, processes, the bytes each link must carry and the time theory predicts.
    Of a spec with `sweep`: its points, and what theory predicts for each.
    """
    from testbed.experiment.machines import load_machines
    from testbed.experiment.sweep import load_sweep
    from testbed.machine.budget import comparison, known_budget, refuse_excess, requested_bps
    from testbed.machine.doctor import plan_here, require_delay
    from testbed.plan.machines import spread_over
    from testbed.report.terminal.plan import render_plan

    set_up_logging(verbose)
    spread = None if machines is None else load_machines(machines)
    swept = load_sweep(spec, overrides or [])
    if not swept.is_single_run:
        if spread is not None:
            raise SpecError("--machines: points of a sweep run on one machine each; leave it out")
        _plan_sweep(swept, as_json=as_json)
        return
    made = plan_here(swept.points[0].experiment)
    if spread is not None:
        made = spread_over(made, spread)
    budget = known_budget()
    if as_json:
        carries_bps = None if budget is None else budget.carries_bps(made)
        emit({**made.to_json(), "budget": {"requested_bps": requested_bps(made), "carries_bps": carries_bps}})
    else:
        render_plan(made, standard_output())
        standard_output().print(f"\n[bold]traffic[/]\n  {comparison(made, budget)}", highlight=False, soft_wrap=True)
    # Theory holds of links that this machine cannot make or carry, too.
    require_delay(made)
    refuse_excess(made, budget)


def _plan_sweep(swept: "Sweep", *, as_json: bool) -> None:
    from testbed.report.comparison.comparison import render_points
    from testbed.runner.sweep_points import found, plan_points

    points = found(swept, plan_points(swept), output=Path(), reuse="none")
    if as_json:
        emit(points.to_json())
    else:
        render_points(points, standard_output())


@commands.command(epilog=EPILOG, short_help="Print the JSON schema of a spec.")
def schema() -> None:
    """Print the JSON schema of a spec, so that editors complete it."""
    from testbed.experiment.sweep import sweep_schema

    emit(sweep_schema())
