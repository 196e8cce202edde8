"""advise, predict, simulate: what models say of a training, without running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.commands.options import EPILOG, Json, Output, Set, Spec, emit
from testbed.commands.traces import BatchSize, Device, Iteration, Trace, completed, load_table
from testbed.errors import CalibrationError, SpecError
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.theory.advise import Advice, Verification

commands: Final = typer.Typer()
_MTU: Final = 1500


def _link(text: str) -> tuple[float, float]:
    """Rate and latency from `25gbit` or `25gbit,50us`. Raises SpecError."""
    from transports.units import parse_rate_bps, parse_time_s

    rate, _, latency = text.partition(",")
    try:
        rate_bps, latency_s = parse_rate_bps(rate), parse_time_s(latency) if latency else 0.0
    except ValueError as error:
        raise SpecError(f"--link: {error}") from error
    if not rate_bps > 0:
        raise SpecError("--link: a rate of 0 carries nothing; write one such as 25gbit")
    return rate_bps, latency_s


@commands.command(epilog=EPILOG, short_help="Is this link enough, and if not, what is the least to change?")
def advise(
    trace: Trace,
    workers: Annotated[int, typer.Option("--workers", max=100_000, help="How many.", show_default=False)],
    link: Annotated[
        str,
        typer.Option(
            "--link",
            metavar="RATE[,LATENCY]",
            help="Rate of each worker, full duplex, and one-way latency to any other: 25gbit or 25gbit,50us.",
            show_default=False,
        ),
    ],
    target: Annotated[
        float, typer.Option("--target", help="The scaling factor to reach: between 0 and 1.", metavar="SHARE")
    ] = 0.9,
    efficiency: Annotated[
        float | None,
        typer.Option(
            "--efficiency",
            metavar="SHARE",
            help="Of a link's rate, what reaches the application while it sends: as measured on yours; unless given, "
            "what the headers of TCP leave (0.956).",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    iteration: Iteration = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            dir_okay=False,
            help="Write a page with the picture, scaling factor over rate; and the picture as SVG and PNG beside it.",
            metavar="FILE.html",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Emulate what is recommended, or today's setting where that is enough, and say how far off the advice "
            "is. Needs root, and `testbed doctor` once; as many workers as --workers says.",
        ),
    ] = False,
    output: Output = Path("results"),
    as_json: Json = False,
) -> None:
    """Is this link enough for that model on so many workers, and if not, what is the least to change?

    Another fusion, another collective, a better transport, a switch that aggregates, faster links, compression, larger
    batches or fewer synchronisations, each by itself and each with its price. All numbers are predicted, by the model
    of "Is Network the Bottleneck of Distributed Training?" (Zhang et al. 2020); `--verify` measures the recommended
    one, in time that runs slower. Exit code 1 with `--verify`: what is recommended misses the target by more than two
    points.

    Examples:

    \b
      testbed advise resnet50 --workers 32 --link 25gbit --target 0.9
      testbed advise gpt2 --device h100_bf16 --batch-size 16 --workers 32 --link 100gbit
      testbed advise resnet50 --workers 4 --link 10gbit --target 0.9 --verify
    """
    from testbed.report.terminal.advice import advice_json, render_advice, render_verification
    from testbed.theory.advise import Setting
    from testbed.theory.advise import advise as find
    from transports.channels.base import CHANNELS

    most = CHANNELS.parse("tcp").goodput_fraction(_MTU)
    rate_bps, latency_s = _link(link)
    if workers < 2:
        raise SpecError(f"--workers: {workers} has nobody to exchange gradients with; allowed: at least 2")
    if not 0 < target < 1:
        raise SpecError(f"--target is {target:g}; it is a share between 0 and 1, such as 0.9")
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"--efficiency is {efficiency:g}; it is a share above 0 and at most 1, such as 0.8")
    loaded = load_table(trace, batch_size, device)
    today = Setting(
        table=completed(loaded.table, iteration),
        num_workers=workers,
        rate_bps=rate_bps,
        latency_s=latency_s,
        efficiency=most if efficiency is None else efficiency,
    )
    found = find(today, target, max_efficiency=most)
    if page is not None:
        from testbed.report.advice import write_advice

        write_advice(found, loaded.name, loaded.source, page)
    if not as_json:
        render_advice(found, loaded.name, loaded.source, standard_output())
    verified = _verified(found, loaded.name, max_efficiency=most, output=output, quiet=as_json) if verify else None
    if as_json:
        emit(advice_json(found, loaded.name, loaded.source, verified))
    elif verified is not None:
        render_verification(verified, standard_output())
    if verified is not None and verified.outcome == "invalid":
        raise typer.Exit(CalibrationError.exit_code)
    if verified is not None and (verified.outcome == "failed" or not verified.reached):
        raise typer.Exit(1)


def _verified(found: "Advice", trace: str, *, max_efficiency: float, output: Path, quiet: bool) -> "Verification":
    """What became of the advice in emulation. Raises SpecError where nothing is recommended."""
    from testbed.commands.running import runner
    from testbed.experiment.experiment import validate
    from testbed.theory.advise import Verification
    from testbed.theory.emulation import emulated

    if found.chosen is None:
        raise SpecError("--verify: no single change is enough, so there is none to emulate; ask for a lower target")
    errors = Console(stderr=True, quiet=quiet)
    run_one = runner(errors, output=output, calibration_mode=Mode.CLASS)
    summary = run_one(validate(emulated(found.chosen, trace, max_efficiency=max_efficiency)))
    return Verification(
        predicted=found.chosen.scaling_factor,
        target=found.target,
        measured=summary.scaling_factor,
        missing=summary.scaling_factor_missing,
        outcome=summary.outcome,
        reasons=tuple(summary.reasons),
        dilation=summary.dilation,
        record=summary.record,
    )


@commands.command(epilog=EPILOG, short_help="Predict a spec's iteration, by every model there is.")
def predict(spec: Spec, overrides: Set = None, as_json: Json = False) -> None:
    """Predict a spec's iteration without root and without running it.

    Its time and parts, the scaling factor, bytes and utilization of each link, the critical path and what decides, by
    the cost model; beside it what other models say. `testbed fit` measures the cost model's parameters on this machine;
    without it they are defaults. `dilation: auto` is what it is for a run here. Of workload allreduce: the time of each
    size on each stack.

    Example: testbed predict experiments/quickstart.yaml --set link.rate=1gbit --json
    """
    from testbed.experiment.experiment import load
    from testbed.machine.codec_cost import contending_codec_times
    from testbed.machine.doctor import plan_in_theory
    from testbed.machine.fit import expected_error, known_costs
    from testbed.report.terminal.notes import render_notes
    from testbed.report.terminal.prediction import (
        exchanges_json,
        prediction_json,
        render_exchanges,
        render_prediction,
    )
    from testbed.theory.predict import predict_exchanges, predict_iteration

    experiment = load(spec, overrides or [])
    expected = expected_error()
    if experiment.workload.lone_exchanges():
        costs = known_costs()
        exchanges = predict_exchanges(experiment, plan_in_theory, expected)
        if as_json:
            emit(exchanges_json(exchanges, costs, expected))
        else:
            render_exchanges(exchanges, costs, expected, standard_output())
            render_notes(experiment.topology.assumptions(), standard_output())
        return
    plan = plan_in_theory(experiment)
    found = predict_iteration(plan, expected, contending_codec_times(plan))
    if as_json:
        emit(prediction_json(found, plan, expected))
    else:
        render_prediction(found, plan, expected, standard_output())


@commands.command(epilog=EPILOG, short_help="Simulate a spec's flows, with thousands of workers if requested.")
def simulate(
    spec: Spec,
    overrides: Set = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", max=100_000, help="How many, instead of the spec's.", show_default=False),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=1, max=1000, help="How many.")] = 1,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=64, help="So many jobs like this one, next to each other.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Simulate iterations of a spec flow by flow, without root and without running anything.

    Links are shared fairly, flows choose among equal paths by a hash, stragglers are drawn from the spec's seed.
    Topologies grow with the workers, beyond what can be emulated. Packets, losses and queues are not simulated.

    Example: testbed simulate experiments/quickstart.yaml --workers 4096 --set topology=fat_tree
    """
    from testbed.experiment.experiment import load
    from testbed.report.terminal.simulation import render_simulation, simulation_json
    from testbed.theory.simulation.simulate import scaled
    from testbed.theory.simulation.simulate import simulate as run

    experiment = load(spec, overrides or [])
    if workers is not None:
        experiment = scaled(experiment, workers)
    found = run(experiment, num_iterations=iterations, num_jobs=jobs)
    if as_json:
        emit(simulation_json(found))
    else:
        render_simulation(found, standard_output())
