"""run, exec, sweep, validate-dilation: what deploys networks and trains over them."""

import io
import math
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.commands.live_page import Live, LiveAddress, LivePort, live_feed
from testbed.commands.options import (
    EPILOG,
    Calibrate,
    EngineName,
    Json,
    MachinesFile,
    Output,
    Retries,
    Reused,
    Runtime,
    Set,
    Spec,
    SpecOption,
    Track,
    Verbose,
    emit,
    set_up_logging,
)
from testbed.errors import CalibrationError, RunFailedError, SpecError
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from testbed.experiment.experiment import Experiment
    from testbed.live.feed import Feed
    from testbed.machine.doctor import Planner
    from testbed.record.summary import Summary
    from testbed.report.terminal.summary import LiveProgress
    from testbed.runner.run import CaptureRequest
    from testbed.tracking.targets import Target

commands: Final = typer.Typer()

Capture = Annotated[
    list[str] | None,
    typer.Option(
        "--capture",
        help="Write the packets of these links to the record as pcapng: w1-s0,w0-s0. Repeatable. Needs dumpcap.",
        metavar="LINK[,LINK]",
    ),
]
CaptureBytes = Annotated[
    int, typer.Option("--capture-bytes", help="So much of each packet captured.", min=64, max=262_144)
]
Prometheus = Annotated[
    bool,
    typer.Option(
        "--prometheus",
        help="Start Prometheus on loopback, have it scrape the run every second, keep its data in the record and "
        "compare its counters with the record's at the end. The same as --set metrics.prometheus=true.",
    ),
]


@commands.command(epilog=EPILOG, short_help="Train over an emulated network, say where the time went.")
def run(
    spec: Spec,
    overrides: Set = None,
    output: Output = Path("results"),
    capture: Capture = None,
    capture_bytes: CaptureBytes = 128,
    prometheus: Prometheus = False,
    runtime: Runtime = None,
    calibration: Calibrate = Mode.CLASS,
    track: Track = None,
    live: Live = False,
    live_port: LivePort = None,
    live_address: LiveAddress = None,
    machines: MachinesFile = None,
    engine: EngineName = "local",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run a spec: deploy its network, measure every link, train over it, and say where the time went.

    Needs root. The record (spec, measurements, samples, report.html) goes to a new directory below --output.

    Examples:

    \b
      testbed run experiments/quickstart.yaml
      testbed run experiments/quickstart.yaml --set link.rate=1gbit --json
      testbed run experiments/quickstart.yaml --capture w1-s0
      testbed run experiments/quickstart.yaml --live
      testbed run experiments/quickstart.yaml --prometheus
      testbed run experiments/quickstart.yaml --runtime docker
      testbed run experiments/quickstart.yaml --track tensorboard:runs
      testbed run experiments/quickstart.yaml --machines machines.yaml
    """
    from testbed.experiment.experiment import load
    from testbed.experiment.machines import load_machines
    from testbed.report.terminal.summary import LiveProgress
    from testbed.runner.engines.base import parse_engine
    from testbed.tracking.targets import parse_targets

    set_up_logging(verbose)
    chosen = parse_engine(engine)
    if machines is None and not chosen.runs_here:
        raise SpecError(f"--engine {engine}: one run is made here; with --machines its machines are found so")
    targets = parse_targets(track or [])
    given = [*(overrides or []), *([f"runtime.kind={runtime}"] if runtime else [])]
    experiment = load(spec, given)
    if prometheus and experiment.metrics.prometheus is None:
        experiment = load(spec, [*given, "metrics.prometheus=true"])
    with live_feed(live, live_port, live_address) as feed:
        _run(
            experiment,
            progress=LiveProgress(Console(stderr=True), enabled=not as_json),
            output=output,
            as_json=as_json,
            targets=targets,
            calibration_mode=calibration,
            capture=_captures(capture, capture_bytes),
            live=feed,
            machines=None if machines is None else load_machines(machines),
            engine=chosen,
        )


@commands.command(
    "exec",
    epilog=EPILOG,
    short_help="Run your own command once per worker: torchrun with links.",
    context_settings={"allow_interspersed_args": False},
)
def execute(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="The program that every worker runs; put -- before it.",
            show_default=False,
        ),
    ],
    workers: Annotated[
        int | None, typer.Option(help="How many, in a star unless --spec says otherwise (default 4).", min=1, max=64)
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="RATE[,DELAY[,LOSS]] of every link, such as 1gbit,1ms.", show_default=False)
    ] = None,
    spec: SpecOption = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="testbed: replace gloo or nccl, whatever the script names, by ours with the spec's collective, "
            "channel and compression.",
            show_default=False,
        ),
    ] = None,
    launcher: Annotated[
        bool,
        typer.Option(
            "--launcher",
            help="COMMAND starts the processes itself, as mpirun does over ssh: it runs in w0 alone, and hosts w0, w1, "
            "... can be reached from there.",
        ),
    ] = False,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Rank 0 reads the standard input of this command; otherwise nobody does.")
    ] = False,
    runtime: Runtime = None,
    overrides: Set = None,
    output: Output = Path("results"),
    capture: Capture = None,
    capture_bytes: CaptureBytes = 128,
    prometheus: Prometheus = False,
    calibration: Calibrate = Mode.CLASS,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run your own command once per worker on an emulated network: torchrun with links.

    Every worker gets what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...) and the interface
    variables of gloo and NCCL; workers are called w0, w1, ... and find each other by these names. Lines are printed
    behind [w0], [w1], ...; standard error stays apart; both are also in the logs of the record. `testbed link set`,
    `testbed top` and `testbed status` work meanwhile from elsewhere.
    The verdict is about the links: their rates, delays and settings hold. Needs root.

    Exit codes of their own: that of the first worker that failed (128 + n if signal n ended it), others are ended.

    Examples:

    \b
      testbed exec --workers 4 --link 1gbit,1ms -- python train.py --epochs 1
      testbed exec --backend testbed --set collective=tree -- python ddp.py
      testbed exec --workers 2 --link 50mbit,5ms -- sh examples/iperf.sh
      testbed exec --launcher -- mpirun python examples/with_mpi4py.py
    """
    from testbed.experiment.experiment import apply_override, naming, read, set_value, validate
    from testbed.experiment.link import parse_link
    from testbed.report.terminal.streams import Streams
    from testbed.report.terminal.summary import LiveProgress

    set_up_logging(verbose)
    descriptor = _own_stdin() if stdin else None
    data = {"name": "exec"} if spec is None else read(spec)
    workload: dict[str, Any] = {"kind": "command", "argv": command}
    workload |= ({"backend": backend} if backend else {}) | ({"launcher": True} if launcher else {})
    data |= {"workload": workload}
    data |= {} if workers is None else {"workers": workers}
    for setting, value in (parse_link(link) if link else {}).items():
        set_value(data, f"link.{setting}", value)
    for override in [*(overrides or []), *([f"runtime.kind={runtime}"] if runtime else [])]:
        apply_override(data, override)
    if prometheus and not (isinstance(data.get("metrics"), dict) and data["metrics"].get("prometheus")):
        apply_override(data, "metrics.prometheus=true")
    with naming(spec or "exec"):
        experiment = validate(data)
    progress = LiveProgress(Console(stderr=True), enabled=not as_json)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every letter
            stream.reconfigure(errors="replace")
    streams = Streams(
        output=sys.stderr if as_json else sys.stdout, error=sys.stderr, environment=os.environ, above=progress.above
    )
    _run(
        experiment,
        progress=progress,
        output=output,
        as_json=as_json,
        calibration_mode=calibration,
        hands_on_status=True,
        capture=_captures(capture, capture_bytes),
        on_line=streams.write,
        stdin=descriptor,
    )


def _own_stdin() -> int:
    """Raises SpecError where there is none."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError):  # it was closed, or is no file
        raise SpecError("--stdin: this command has no standard input to hand on") from None


def _captures(names: list[str] | None, snap_bytes: int) -> "CaptureRequest":
    from testbed.runner.run import CaptureRequest

    links = [name.strip() for several in names or [] for name in several.split(",")]
    return CaptureRequest(links=links, snap_bytes=snap_bytes)


def runner(
    console: Console, *, output: Path, calibration_mode: Mode, live: "Feed | None" = None
) -> "Callable[[Experiment], Summary]":
    """Runs one experiment of several, with its progress on the console unless that is quiet, and on the live page if
    there is one. Of one that ended early it returns what there is; a signal ends the others, too."""
    from testbed.report.terminal.summary import LiveProgress
    from testbed.runner.run import RunStoppedError, run_experiment

    def run_one(experiment: "Experiment") -> "Summary":
        progress = LiveProgress(console, enabled=not console.quiet)
        try:
            return run_experiment(
                experiment, output=output, progress=progress, calibration_mode=calibration_mode, live=live
            )
        except RunStoppedError as stopped:
            return stopped.summary_unless_interrupted()
        finally:
            progress.close()

    return run_one


def planner(console: Console) -> "Planner":
    """Plans what is about to run, and says on the console if it measures this machine first."""
    from testbed.machine.doctor import plan_to_run

    return partial(plan_to_run, say=partial(console.print, highlight=False, soft_wrap=True))


def _import_early(experiment: "Experiment") -> None:
    """What workers need takes seconds to import: it begins before this process has imported what runs an experiment."""
    from testbed.hosts.fork_client import preload

    if experiment.runtime.imports_here:
        preload(experiment.workload.preload)


def _run(
    experiment: "Experiment",
    *,
    progress: "LiveProgress",
    as_json: bool,
    targets: "Sequence[Target]" = (),
    hands_on_status: bool = False,
    **how: Any,
) -> None:
    """Run it, print its summary, write its result to the targets, end with its exit code: that of a command of the
    user's that failed only where it is handed on, since others would read it as ours."""
    _import_early(experiment)
    from testbed.report.terminal.notes import render_notes
    from testbed.report.terminal.summary import render_summary
    from testbed.runner.run import RunStoppedError, run_experiment
    from testbed.runner.user_command import CommandFailedError

    stopped: BaseException | None = None
    try:
        summary = run_experiment(experiment, progress=progress, **how)
    except RunStoppedError as error:
        summary, stopped = error.summary, error.__cause__
    finally:
        progress.close()
    if as_json:
        emit(summary.model_dump(mode="json", by_alias=True))
    elif stopped is None:
        render_summary(summary, standard_output())
        render_notes(experiment.topology.assumptions(), standard_output())
    if isinstance(stopped, CommandFailedError) and not hands_on_status:
        raise RunFailedError(str(stopped)) from stopped
    if stopped is not None:
        raise stopped
    _track([summary], targets)
    if summary.outcome == "invalid":
        raise typer.Exit(CalibrationError.exit_code)
    if summary.outcome == "failed":
        raise typer.Exit(1)


def _track(runs: "Sequence[Summary]", targets: "Sequence[Target]") -> None:
    from testbed.tracking.targets import track

    errors = Console(stderr=True, emoji=False)
    track(
        [Path(run.record) for run in runs],
        targets,
        say=lambda text: errors.print(text, markup=False, highlight=False, soft_wrap=True),
    )


@commands.command(epilog=EPILOG, short_help="Run every combination of what a spec lists, compare.")
def sweep(
    spec: Spec,
    overrides: Set = None,
    output: Output = Path("results"),
    calibration: Calibrate = Mode.CLASS,
    reuse: Reused = "same",
    engine: EngineName = "local",
    retries: Retries = 1,
    target_loss: Annotated[
        float | None,
        typer.Option(
            "--target-loss",
            help="How soon each point reaches this loss is in the page; unless given, the lowest that all reach. The "
            "page of a sweep that is done is written again, and nothing is run.",
            metavar="LOSS",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, without root; run nothing.")] = False,
    track: Track = None,
    live: Live = False,
    live_port: LivePort = None,
    live_address: LiveAddress = None,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run every combination of what a spec lists under `sweep:`, and compare: one table, one page of plots.

    A spec says what varies by path, with `where` which combinations are run, and with `repeat: n` how often each point
    runs (with the same seed; several seeds are `seed: [1, 2, 3]` under `sweep`):

    \b
      sweep:
        link.rate: [100mbit, 1gbit]
        compression: [none, {kind: top_k, ratio: 1%}]

    Every point is planned before the first runs. Repetitions go round by round, in an order drawn from `order_seed`.
    Points with a valid or degraded result below --output are not run again, so that the same command goes on where an
    interruption, or kill -9, has ended it; a point that fails stops no other. Needs root.

    With --engine ray runs are made on every machine of a Ray cluster that was started with
    ray start ... --resources '{"emulation_slot": 1}' and is like this one; a machine that is lost costs what ran on it
    another attempt.

    Exit codes of their own: 1 if any point failed, 4 if none failed and any is invalid.

    Examples:

    \b
      testbed sweep experiments/link_speed.yaml
      testbed sweep experiments/quickstart.yaml --set repeat=3 \\
          --set 'sweep.link.rate=[50mbit, 200mbit]'
      testbed sweep experiments/compression.yaml --set 'where.compression=[none, fp16]' --retries 2
      testbed sweep experiments/link_speed.yaml --set repeat=5 --engine ray
    """
    from testbed.experiment.sweep import load_sweep
    from testbed.runner.engines.base import parse_engine
    from testbed.tracking.targets import parse_targets

    set_up_logging(verbose)
    chosen = parse_engine(engine)
    targets = parse_targets(track or [])
    if live and dry_run:
        raise SpecError("--live: --dry-run runs nothing that a page could show; leave one of them out")
    if live and not chosen.runs_here:
        raise SpecError("--live: runs are made on other machines, whose page this would not be; leave --engine out")
    if target_loss is not None and not math.isfinite(target_loss):
        raise SpecError(f"--target-loss is {target_loss:g}; it is a number, such as 0.5")
    swept = load_sweep(spec, overrides or [])
    if swept.is_single_run:
        raise SpecError(
            f"{spec}: nothing varies; list values under `sweep`, such as --set 'sweep.link.rate=[100mbit, 1gbit]', or "
            "use `testbed run`"
        )
    if chosen.runs_here and not dry_run:
        _import_early(swept.points[0].experiment)
    from testbed.machine.doctor import plan_here
    from testbed.report.comparison.comparison import render_comparison, render_points
    from testbed.runner.sweep import exit_code, run_sweep
    from testbed.runner.sweep_points import found, plan_points, require_points, reuse_texts

    errors = Console(stderr=True, quiet=as_json)
    plans = plan_points(swept, plan_here if dry_run else planner(errors))
    if unsupported := chosen.unsupported(plans):
        raise SpecError("\n".join(unsupported))
    comparison = replace(found(swept, plans, output=output, reuse=reuse, num_retries=retries), target_loss=target_loss)
    if dry_run:
        if as_json:
            emit(comparison.to_json())
        else:
            render_points(comparison, standard_output())
            for line in reuse_texts(comparison):
                standard_output().print(line, highlight=False, markup=False)
        return
    require_points(swept, plans)

    points = {id(point.experiment): point.text for point in swept.points}
    with live_feed(live, live_port, live_address) as feed:
        run_one = runner(errors, output=output, calibration_mode=calibration, live=feed)

        def run_point(experiment: "Experiment") -> "Summary":
            if feed is not None:
                feed.point = points[id(experiment)]
            return run_one(experiment)

        comparison = run_sweep(
            comparison,
            plans,
            run=run_point,
            console=errors,
            engine=chosen,
            arguments=("--calibrate", calibration.value),
        )
    if as_json:
        emit(comparison.to_json())
    else:
        render_comparison(comparison, standard_output())
    _track([run for point in comparison.points for run in point.runs], targets)
    if code := exit_code(comparison):
        raise typer.Exit(code)


@commands.command("validate-dilation", epilog=EPILOG, short_help="Does the answer depend on how slow time runs?")
def validate_dilation(
    spec: Spec,
    overrides: Set = None,
    output: Output = Path("results"),
    times: Annotated[
        list[float] | None,
        typer.Option(help="A multiple of k to compare with. Repeatable.", min=1.01, max=1000, show_default="2 and 4"),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs at each dilation, in turns.", min=1, max=100)] = 3,
    tolerance: Annotated[float, typer.Option(help="Within which ratios must lie.", min=0.001, max=0.5)] = 0.03,
    calibration: Calibrate = Mode.CLASS,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run a spec at its dilation k (or what `auto` is here) and at multiples of it, in turns, and compare.

    Iteration time and scaling factor must be the same: the 95 % interval of their ratio to those at k within the
    tolerance of 1. Where a spec can be had without dilation, its k is 1. Needs root.

    Exit codes of their own: 0 if they agree, 1 if they differ, the intervals are too wide to say, or a run failed, 4 if
    a run is invalid.

    Examples:

    \b
      testbed validate-dilation experiments/resnet50_100g.yaml --set workers=4
      testbed validate-dilation my.yaml --set dilation=1 --times 2 --times 8 --json
    """
    from testbed.experiment.experiment import load
    from testbed.report.terminal.dilation import render_validation
    from testbed.runner.dilation import validate_dilation as validate_at_dilations
    from testbed.verdict.dilation import FACTORS

    set_up_logging(verbose)
    experiment = load(spec, overrides or [])
    errors = Console(stderr=True, quiet=as_json)

    run_point = runner(errors, output=output, calibration_mode=calibration)

    def run_one(point: "Experiment") -> "Summary":
        errors.print(f"dilation {point.dilation:g}", highlight=False)
        return run_point(point)

    found = validate_at_dilations(
        experiment,
        repeat=repeat,
        run=run_one,
        factors=times or FACTORS,
        tolerance=tolerance,
        plan=planner(errors),
    )
    if as_json:
        emit(found.to_json())
    else:
        render_validation(
            found.compared, found.agreement, tolerance, standard_output(), not_compared=found.not_compared
        )
    if any(run.outcome == "invalid" for run in found.runs):
        raise typer.Exit(CalibrationError.exit_code)
    if found.agreement != "agrees":
        raise typer.Exit(1)
