"""reproduce: what papers claim, run and judged."""

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from testbed.calibration.cache import Mode
from testbed.commands.options import EPILOG, Calibrate, Json, Output, Retries, Reused, Verbose, emit, set_up_logging
from testbed.commands.running import planner, runner
from transports.bench.terminal import standard_output

commands: Final = typer.Typer()
VALID: Final = ("valid",)
_OUTPUT: Final = Path("results")
_RETRIES: Final = 1


@commands.command(epilog=EPILOG, short_help="Run what papers claim and judge it: paper, model, emulated side by side.")
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER|SPEC|all]",
            help="A paper by name, the folder of one of yours, a spec with `claims`, or all papers; without it, what "
            "there is.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points and iterations, as each spec says under `quick`.")
    ] = False,
    output: Output = _OUTPUT,
    calibration: Calibrate = Mode.CACHED,
    reuse: Reused = "same",
    retries: Retries = _RETRIES,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Judge what has been run already, without root; run nothing.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run what papers claim and judge it: what the paper says, what a model says and what was emulated, side by side.

    Every claim says what is computed of which runs, what is expected, and why that tolerance; it is only as good as the
    runs below it. One that is invalid or degraded, by this machine's doing, is repeated (--retries); what it is then
    counts, and if that is invalid, the claim is not judged. Points with a valid result below --output are not run
    again, unless another version of the code or another machine made it (--reuse). A page, Markdown, LaTeX and JSON go
    to OUTPUT/claims, those of --quick beside the others (NAME-quick). Needs root.

    Exit codes of their own: 1 if any claim within reach does not hold.

    Examples:

    \b
      testbed reproduce
      testbed reproduce alqahtani_2019 --quick
      testbed reproduce all --quick --json
    """
    from testbed.experiment.papers import shipped_papers
    from testbed.machine.doctor import plan_here
    from testbed.record.summary import STANDING
    from testbed.report.claims.page import write_claims, write_index
    from testbed.report.claims.table import claims_json
    from testbed.report.claims.terminal import render_claims
    from testbed.runner.reproduce import Reproduction, prepare, require
    from testbed.runner.sweep_points import reuse_texts

    set_up_logging(verbose)
    if what is None:
        papers = shipped_papers()
        if as_json:
            named = [{"name": each.name, "authors": each.authors, "title": each.title} for each in papers]
            emit({"schema_version": 1, "papers": named})
            return
        for paper in papers:
            standard_output().print(f"[bold]{paper.name}[/]  {paper.authors}: {paper.title}", highlight=False)
        return
    # What stands is judged; what is only degraded is tried again.
    errors = Console(stderr=True, quiet=as_json)
    plan = plan_here if dry_run else planner(errors)
    outcomes = STANDING if dry_run else VALID
    reproductions = prepare(
        what, quick=quick, output=output, reuse=reuse, outcomes=outcomes, num_retries=retries, plan=plan
    )
    if not dry_run:
        require(reproductions)
    folder = output / "claims"
    options = {
        "--quick": quick,
        f"--output={output}": output != _OUTPUT,
        f"--calibrate={calibration}": calibration is not Mode.CACHED,
        f"--reuse={reuse}": reuse != "same",
        f"--retries={retries}": retries != _RETRIES,
        "--dry-run": dry_run,
    }
    again = shlex.join(["testbed", "reproduce", what, *(option for option, said in options.items() if said)])

    run_one = runner(errors, output=output, calibration_mode=calibration)
    done: list[tuple[Reproduction, Path]] = []
    for reproduction in reproductions:
        finished = reproduction
        for number, part in enumerate(reproduction.parts):
            if not dry_run:
                finished = finished.with_part_run(number, run_one, errors)
                continue
            for line in reuse_texts(part.comparison):
                errors.print(f"{part.path}: {line}", highlight=False, markup=False)
        page = write_claims(
            finished.name,
            finished.paper,
            finished.judgements,
            left_out=finished.left_out,
            quick=quick,
            folder=folder,
            sweeps=[part.comparison.directory for part in finished.parts],
            command=again,
        )
        done.append((finished, page))
        if not as_json:
            render_claims(
                finished.name,
                finished.paper,
                finished.judgements,
                standard_output(),
                finished.left_out,
                quick=quick,
            )
            standard_output().print(Text.assemble(("Page", "bold"), f"    {page}"), highlight=False, soft_wrap=True)
    if len(done) > 1:
        titled = [(each.paper.title if each.paper else each.name, each.judgements, page.name) for each, page in done]
        write_index(titled, quick=quick, folder=folder)
    if as_json:
        emit(
            {
                "papers": [
                    claims_json(each.name, each.paper, each.judgements, each.left_out, quick=quick) for each, _ in done
                ]
            }
        )
    if not all(each.holds for each, _ in done):
        raise typer.Exit(1)
