"""The commands: thin. Each parses its line, calls one function and prints; heavy imports happen inside.

Exit codes: 0 ok, 1 the run failed, 2 usage or spec error, 3 this machine lacks something, 4 ran but the result is
invalid, 130 interrupted and cleaned.
"""

import importlib.metadata
import io
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from testbed.calibration_cache import Mode
from testbed.errors import Interrupted, SpecError, TestbedError
from transports.terminal import standard_output

if TYPE_CHECKING:
    from testbed.benchmarks.targets import Benchmarks
    from testbed.results.record import Summary
    from testbed.results.terminal import LiveProgress
    from testbed.run import CaptureRequest
    from testbed.spec.experiment import Experiment
    from testbed.spec.sweep import Sweep

EXIT_INVALID: Final = 4
EXIT_INTERRUPTED: Final = 130
_EPILOG: Final = (
    "Exit codes: 0 ok, 1 run failed, 2 usage or spec error, 3 this machine lacks something, "
    "4 ran but the result is invalid, 130 interrupted and cleaned."
)

app = typer.Typer(
    name="testbed",
    help="Emulate the network of distributed training: real gradients over measured links, and a verdict on whether "
    "the numbers can be trusted.\n\nStart with: testbed run experiments/quickstart.yaml",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    help="Micro-benchmarks: all stacks interleaved on the same links in one run.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench", short_help="Benchmarks: stacks and links against targets and rivals.")
link_app = typer.Typer(
    help="Links of a run that goes on, from another terminal: look at them, change them, cut them.",
    no_args_is_help=True,
)
app.add_typer(link_app, name="link", short_help="Look at, change and cut links of a run that goes on.")

Spec = Annotated[
    Path, typer.Argument(help="A YAML spec; `testbed schema` describes it.", metavar="SPEC", show_default=False)
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, for scripts.")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv says everything.", show_default=False)
]


def _logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])


def _emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"testbed {importlib.metadata.version('ina-testbed')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Those before any command. Their help is the application's."""


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


@app.command(epilog=_EPILOG, short_help="Train over an emulated network, say where the time went.")
def run(
    spec: Spec,
    overrides: Set = None,
    output: Output = Path("results"),
    capture: Capture = None,
    capture_bytes: CaptureBytes = 128,
    prometheus: Prometheus = False,
    runtime: Runtime = None,
    calibration: Calibrate = Mode.CLASS,
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
      testbed run experiments/quickstart.yaml --prometheus
      testbed run experiments/quickstart.yaml --runtime docker
    """
    from testbed.results.terminal import LiveProgress
    from testbed.spec.experiment import load

    _logging(verbose)
    told = [*(overrides or []), *([f"runtime.kind={runtime}"] if runtime else [])]
    experiment = load(spec, told)
    if prometheus and experiment.metrics.prometheus is None:
        experiment = load(spec, [*told, "metrics.prometheus=true"])
    _run(
        experiment,
        progress=LiveProgress(Console(stderr=True), enabled=not as_json),
        output=output,
        as_json=as_json,
        calibration_mode=calibration,
        capture=_captures(capture, capture_bytes),
    )


@app.command(
    "exec",
    epilog=_EPILOG,
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
        int | None, typer.Option(help="How many, in a star unless --spec says otherwise (default 4).", min=2, max=64)
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="RATE[,DELAY[,LOSS]] of every link, such as 1gbit,1ms.", show_default=False)
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option("--spec", help="Take all but the workload from this spec.", dir_okay=False, show_default=False),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="testbed: replace gloo or nccl, whatever the script names, by ours with the spec's collective, "
            "channel and compression.",
            show_default=False,
        ),
    ] = None,
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
    variables of gloo and NCCL. Lines are printed behind [w0], [w1], ...; standard error stays apart; both are also in
    the logs of the record. `testbed link set`, `testbed top` and `testbed status` work meanwhile from elsewhere.
    The verdict is about the links: their rates, delays and settings hold. Needs root.

    Exit codes of their own: that of the first worker that failed (128 + n if signal n ended it), others are ended.

    Examples:

    \b
      testbed exec --workers 4 --link 1gbit,1ms -- python train.py --epochs 1
      testbed exec --backend testbed --set collective=tree -- python ddp.py
      testbed exec --workers 2 --link 50mbit,5ms -- sh examples/iperf.sh
    """
    from testbed.links.spec import parse_link
    from testbed.results.streams import Streams
    from testbed.results.terminal import LiveProgress
    from testbed.spec.experiment import apply_override, naming, read, validate

    _logging(verbose)
    data = {"name": "exec"} if spec is None else read(spec)
    workload: dict[str, Any] = {"kind": "command", "argv": command}
    told = {"workers": workers, "link": parse_link(link) if link else None}
    data |= {"workload": workload | ({"backend": backend} if backend else {})}
    data |= {key: value for key, value in told.items() if value is not None}
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
        capture=_captures(capture, capture_bytes),
        on_line=streams.write,
    )


def _captures(names: list[str] | None, snap_bytes: int) -> "CaptureRequest":
    from testbed.run import CaptureRequest

    links = [name.strip() for several in names or [] for name in several.split(",")]
    return CaptureRequest(links=links, snap_bytes=snap_bytes)


def _run(experiment: "Experiment", *, progress: "LiveProgress", as_json: bool, **how: Any) -> None:
    """Run it, print its summary, end with its exit code."""
    from testbed.results.terminal import render_summary
    from testbed.run import RunStoppedError, run_experiment

    stopped: BaseException | None = None
    try:
        summary = run_experiment(experiment, progress=progress, **how)
    except RunStoppedError as error:
        summary, stopped = error.summary, error.__cause__
    finally:
        progress.close()
    if as_json:
        _emit(summary.model_dump(mode="json", by_alias=True))
    elif stopped is None:
        render_summary(summary, standard_output())
    if stopped is not None:
        raise stopped
    if summary.outcome == "invalid":
        raise typer.Exit(EXIT_INVALID)
    if summary.outcome == "failed":
        raise typer.Exit(1)


@app.command(epilog=_EPILOG, short_help="Run every combination of what a spec lists, compare.")
def sweep(
    spec: Spec,
    overrides: Set = None,
    output: Output = Path("results"),
    calibration: Calibrate = Mode.CLASS,
    force: Annotated[bool, typer.Option("--force", help="Run also what has a valid result below --output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, without root; run nothing.")] = False,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run every combination of what a spec lists under `sweep:`, and compare: one table, one page of plots.

    A spec says what varies by path, and with `repeat: n` how often each point runs (with the same seed; several seeds
    are `seed: [1, 2, 3]` under `sweep`):

    \b
      sweep:
        link.rate: [100mbit, 1gbit]
        compression: [none, {kind: top_k, ratio: 1%}]

    Every point is planned before the first runs. Points with a valid result below --output are skipped, so that the
    same command goes on after an interruption; a point that fails stops no other. Needs root.

    Exit codes of their own: 1 if any point failed, 4 if none failed and any is invalid.

    Examples:

    \b
      testbed sweep experiments/link_speed.yaml
      testbed sweep experiments/quickstart.yaml --set repeat=3 \\
          --set 'sweep.link.rate=[50mbit, 200mbit]'
    """
    from testbed.results.compare import render_comparison, render_points
    from testbed.results.terminal import LiveProgress
    from testbed.run import run_experiment
    from testbed.spec.experiment import Experiment
    from testbed.spec.sweep import load_sweep
    from testbed.sweep import exit_code, found, plan_points, require_points, run_sweep

    _logging(verbose)
    swept = load_sweep(spec, overrides or [])
    if swept.is_single_run:
        raise SpecError(
            f"{spec}: nothing varies; list values under `sweep`, such as --set 'sweep.link.rate=[100mbit, 1gbit]', or "
            "use `testbed run`"
        )
    plans = plan_points(swept)
    comparison = found(swept, plans, output=output, force=force)
    if dry_run:
        if as_json:
            _emit(comparison.to_json())
        else:
            render_points(comparison, standard_output())
        return
    require_points(swept, plans)
    errors = Console(stderr=True, quiet=as_json)

    def run_one(experiment: Experiment) -> "Summary":
        progress = LiveProgress(errors, enabled=not as_json)
        try:
            return run_experiment(experiment, output=output, progress=progress, calibration_mode=calibration)
        finally:
            progress.close()

    comparison = run_sweep(comparison, [point.experiment for point in swept.points], run=run_one, console=errors)
    if as_json:
        _emit(comparison.to_json())
    else:
        render_comparison(comparison, standard_output())
    if code := exit_code(comparison):
        raise typer.Exit(code)


@app.command(epilog=_EPILOG, short_help="Print what a run would do, without root and doing nothing.")
def plan(spec: Spec, overrides: Set = None, as_json: Json = False, verbose: Verbose = 0) -> None:
    """Print what a run would do, without root and without doing it.

    Nodes, addresses, every ip and tc command, processes, the bytes each link must carry and the time theory predicts.
    Of a spec with `sweep`: its points, and what theory predicts for each.
    """
    from testbed.budget import asked_bps, comparison, known_budget, refuse_excess
    from testbed.doctor import plan_here
    from testbed.results.plan_text import render_plan
    from testbed.spec.sweep import load_sweep

    _logging(verbose)
    swept = load_sweep(spec, overrides or [])
    if not swept.is_single_run:
        _plan_sweep(swept, as_json=as_json)
        return
    made = plan_here(swept.points[0].experiment)
    budget = known_budget()
    refuse_excess(made, budget)
    if as_json:
        carries_bps = None if budget is None else budget.carries_bps(made.experiment.packet_bytes)
        _emit({**made.to_json(), "budget": {"asked_bps": asked_bps(made), "carries_bps": carries_bps}})
    else:
        render_plan(made, standard_output())
        standard_output().print(f"\n[bold]traffic[/]\n  {comparison(made, budget)}", highlight=False, soft_wrap=True)


def _plan_sweep(swept: "Sweep", *, as_json: bool) -> None:
    from testbed.results.compare import render_points
    from testbed.sweep import found, plan_points

    points = found(swept, plan_points(swept), output=Path(), force=True)
    if as_json:
        _emit(points.to_json())
    else:
        render_points(points, standard_output())


@app.command(epilog=_EPILOG, short_help="Write the report of a record again.")
def report(
    record: Annotated[Path, typer.Argument(help="The directory of a record.", metavar="RECORD", show_default=False)],
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Also write every worker's, bucket's and link's timeline to this file in Chrome's trace format, for "
            "ui.perfetto.dev or chrome://tracing; compressed where its name ends in .gz.",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write report.html of a record again, and print its summary.

    Examples:

    \b
      testbed report results/RECORD
      testbed report results/RECORD --trace trace.json.gz
    """
    from testbed.results.chrome_trace import write_trace
    from testbed.results.record import load as load_record
    from testbed.results.report import write_report
    from testbed.results.terminal import render_summary

    loaded = load_record(record)
    if trace is not None:
        write_trace(loaded, trace)
    path = write_report(loaded)
    if as_json:
        traced = {} if trace is None else {"trace": str(trace)}
        _emit({"report": str(path), **traced, "summary": loaded.summary.model_dump(mode="json", by_alias=True)})
    else:
        render_summary(loaded.summary, standard_output())
        if trace is not None:
            standard_output().print(f"trace {trace}: open it in ui.perfetto.dev", markup=False, soft_wrap=True)


@app.command(epilog=_EPILOG, short_help="Say what this machine can do, and the cure for the rest.")
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Try what works, but do not measure how much.")] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, by trying it in a throw-away namespace, and the cure for what it lacks.

    As root it also measures, for about ten seconds, what the machine carries: traffic through shaped links with
    super-frames and with single packets, and how late delays and timers are. `testbed plan` compares with it.
    """
    from testbed.doctor import examine, measure

    errors = Console(stderr=True)
    checks = examine()
    budget = None
    if not quick and os.geteuid() == 0 and all(check.ok for check in checks if check.severity == "needed"):
        with errors.status("measuring") as status:
            budget = measure(on_step=lambda step: status.update(f"measuring: {step}"))
    if as_json:
        _emit(
            {
                "schema_version": 1,
                "checks": [asdict(check) for check in checks],
                "budget": None if budget is None else asdict(budget),
            }
        )
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("", "what", "found", "cure"):
            table.add_column(column, overflow="fold")
        for check in checks:
            mark = "[green]ok[/]" if check.ok else "[red]no[/]" if check.severity == "needed" else "[yellow]--[/]"
            table.add_row(mark, check.name, check.found, "" if check.ok else check.cure)
        standard_output().print(table)
        if budget is not None:
            from testbed.results.budget_text import render_budget

            standard_output().print()
            render_budget(budget, standard_output())
    if any(not check.ok and check.severity == "needed" for check in checks):
        raise typer.Exit(3)


@app.command(epilog=_EPILOG, short_help="Remove what dead runs left behind.")
def clean(
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Only this run, even if it is alive.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget containers of Docker daemons that are gone for good.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what dead runs left behind, by id, and nothing else. The next run does the same by itself."""
    from testbed.clean import FORGET_CURE
    from testbed.clean import clean as remove

    done = remove(run_id, dry_run=dry_run, forget=forget)
    if as_json:
        _emit(asdict(done))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for leftover in done.removed:
            console.print(f"{'would remove' if dry_run else 'removed'} {leftover.kind} {leftover.what}", markup=False)
        for leftover in done.remaining:
            console.print(f"could not remove {leftover.kind} {leftover.what} of run {leftover.run_id}", markup=False)
        for problem in dict.fromkeys(left.problem for left in done.remaining if left.problem):
            console.print(f"{problem}\n  {FORGET_CURE}", markup=False)
        for live in done.live_run_ids:
            console.print(f"run {live} is alive and was left alone (--run-id {live} ends it)")
        if not (done.removed or done.remaining or done.live_run_ids):
            console.print("nothing to clean")
    if done.remaining:
        raise typer.Exit(1)


@app.command(epilog=_EPILOG, short_help="Print the JSON schema of a spec.")
def schema() -> None:
    """Print the JSON schema of a spec, so that editors complete it."""
    from testbed.spec.sweep import sweep_schema

    _emit(sweep_schema())


Where = Annotated[
    list[str],
    typer.Argument(
        metavar="[RUN] LINK",
        help="RUN: the beginning of a run's id, or `last`; left out where one run is alive. LINK: w1-s0, one direction "
        "'w1->s0', or a pattern 'w*-s*'.",
        show_default=False,
    ),
]


@link_app.command("show", epilog=_EPILOG, short_help="What is asked of every direction now, and what it carries.")
def link_show(
    run: Run = None,
    as_json: Json = False,
) -> None:
    """Every direction of a run's links: what is asked of it now, what it carries at this moment, its queue."""
    from testbed.control.link_client import choose_run, show_links
    from testbed.results.link_text import render_links

    run_id = choose_run(run)
    rows = show_links(run_id)
    if as_json:
        _emit({"schema_version": 1, "run_id": run_id, "links": rows})
    else:
        render_links(run_id, rows, standard_output())


@link_app.command("set", epilog=_EPILOG, short_help="Change rate, delay, loss, queue, ... in place.")
def link_set(
    where: Where,
    rate: Annotated[str | None, typer.Option(help="Line rate: 50mbit.", show_default=False)] = None,
    delay: Annotated[str | None, typer.Option(help="One way: 5ms.", show_default=False)] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Standard deviation of the delay: 1ms.", show_default=False)
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Share of packets: 1%.", show_default=False)] = None,
    queue: Annotated[str | None, typer.Option(help="150kB, or 2bdp.", show_default=False)] = None,
    ecn: Annotated[
        str | None, typer.Option(help="Packets that find this much in the queue are marked: 50kB.", show_default=False)
    ] = None,
    duplicate: Annotated[
        str | None, typer.Option(help="Share of packets that arrive twice: 0.1%.", show_default=False)
    ] = None,
    reorder: Annotated[
        str | None, typer.Option(help="Share of packets that overtake those that wait: 1%.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Change links of a run while it goes on, in place: no packet is dropped; what is not named stays.

    Examples:

    \b
      testbed link set w1-s0 --rate 50mbit
      testbed link set last 's0->w*' --rate 20mbit --queue 200kB
    """
    settings = {"rate": rate, "delay": delay, "jitter": jitter, "loss": loss, "queue": queue, "ecn": ecn}
    settings |= {"duplicate": duplicate, "reorder": reorder}
    told = {name: value for name, value in settings.items() if value is not None}
    if not told:
        raise SpecError(f"nothing to change: name one of {', '.join(f'--{name}' for name in settings)}")
    _change_links(where, told, None, as_json)


@link_app.command("down", epilog=_EPILOG, short_help="Cut links: what is sent into them is lost.")
def link_down(where: Where, as_json: Json = False) -> None:
    """Cut links of a run: everything sent into them is lost, nobody is told, routes and queues stay."""
    _change_links(where, {}, "down", as_json)


@link_app.command("up", epilog=_EPILOG, short_help="Mend links that were cut.")
def link_up(where: Where, as_json: Json = False) -> None:
    """Mend links that `link down` has cut."""
    _change_links(where, {}, "up", as_json)


def _change_links(where: list[str], settings: dict[str, str], carrier: str | None, as_json: bool) -> None:
    from testbed.control.link_client import change_links, choose_run

    if len(where) > 2:
        raise SpecError(f"{' '.join(where)}: write [RUN] LINK, such as `last w1-s0`")
    run_id = choose_run(where[0] if len(where) == 2 else None)
    changed = change_links(run_id, where[-1], settings, carrier=carrier)
    if as_json:
        _emit({"schema_version": 1, "run_id": run_id, "changed": changed})
        return
    console = Console(highlight=False, soft_wrap=True)
    for each in changed:
        text = f"{each['from']} -> {each['to']}: {each['setting']} {each['before']} -> {each['after']}"
        console.print(text, markup=False)
    if not changed:
        console.print("nothing changed: it was so already")


@app.command(epilog=_EPILOG, short_help="Say which runs are alive and how far they are.")
def status(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The beginning of a run's id, or `last`; all where left out.", metavar="RUN", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which runs are alive: what each does, since when, how far it is, where its record will be."""
    from datetime import UTC, datetime

    from testbed.results.status_text import render_status
    from testbed.status import alive_runs, choose, read_status

    alive = alive_runs()
    chosen = alive if run is None else [choose(run, alive)]
    found = {run_id: read_status(run_id) for run_id in chosen}
    if as_json:
        runs = [each.model_dump(mode="json") if each else {"run_id": run_id} for run_id, each in found.items()]
        _emit({"schema_version": 1, "runs": runs})
    else:
        render_status(found, Console(), now=datetime.now(UTC))


@app.command(epilog=_EPILOG, short_help="Watch the links of a run that goes on.")
def top(
    run: Run = None,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.3, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch the links of a run that goes on: what each is asked, what it carries, what waits, is dropped, is marked.

    Ends with the run, or with Ctrl-C, which the run does not notice. A look costs the run some milliseconds of a core.

    Examples:

    \b
      testbed top
      testbed top last --once
    """
    from testbed.top import once as look_once
    from testbed.top import watch

    if as_json:
        _emit({"schema_version": 1, **look_once(run, interval_s=interval_s).to_json()})
    elif once:
        look_once(run, interval_s=interval_s).render(Console())
    else:
        watch(run, Console(), interval_s=interval_s)


@bench_app.command("allreduce", epilog=_EPILOG, short_help="Time all-reduce on several stacks, interleaved.")
def bench_allreduce(
    workers: Annotated[int, typer.Option(help="How many workers, in a star.", min=2, max=64)] = 4,
    link: Annotated[str, typer.Option(help="RATE[,DELAY[,LOSS]] of every link.")] = "1gbit,0s",
    sizes: Annotated[str, typer.Option(help="Comma-separated buffer sizes.")] = "64KiB,1MiB,25MB",
    stack: Annotated[
        str,
        typer.Option(
            help="Comma-separated COLLECTIVE/CHANNEL[/COMPRESSION] or whole stacks; ring/udp:rate=1gbit:window=aimd."
        ),
    ] = "ring/tcp,gloo",
    repeat: Annotated[int, typer.Option(help="Samples of each size and stack.", min=1, max=10_000)] = 10,
    congestion: Annotated[str, typer.Option(help="Congestion control on the routes, for every stack.")] = "cubic",
    mtu: Annotated[
        int, typer.Option(help="Of every link; 9000 lets in_network:num_elements=2048/ebpf.", min=1500, max=9000)
    ] = 1500,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Time all-reduce of each size on each stack, interleaved on the same links, every result checked.

    time is that of the slowest worker; busbw is nccl-tests' bus bandwidth; `of bound` is the bound over the time:
    2(N-1)/N x size over the links' goodput, with servers size over goodput, and with in_network its frames over the
    line rate; error is the largest relative one against the sum in float64. The same on a
    cluster of yours: torchrun --nproc-per-node 4 -m transports.bench.
    """
    from testbed.benchmarks.allreduce import allreduce_rows
    from testbed.links.spec import parse_link
    from transports.samples import render

    _logging(verbose)
    rows = allreduce_rows(
        num_workers=workers,
        link=parse_link(link),
        sizes=sizes.split(","),
        stacks=stack.split(","),
        repeat=repeat,
        congestion=congestion,
        mtu=mtu,
    )
    if as_json:
        _emit({"schema_version": 1, "rows": rows})
    else:
        render(rows, standard_output())


@bench_app.command("links", epilog=_EPILOG, short_help="Emulated links: rate, delay, loss, queue, incast.")
def bench_links(
    link: Annotated[
        list[str] | None,
        typer.Option(help="Measure a link of RATE[,DELAY[,LOSS]] instead; repeatable."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Measurements of each --link.", min=1, max=1000)] = 5,
    only: Annotated[
        str, typer.Option(help="Of the targets only these: rate,ring,delay,through-delay,loss,queue,incast,change.")
    ] = "",
    runtime: Annotated[
        str, typer.Option("--runtime", help="Between hosts that are namespaces, or containers: docker.")
    ] = "namespace",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure emulated links against their targets: rate, total, delay, loss, queue, incast; or --link against itself.

    Examples:

    \b
      testbed bench links --only rate,queue
      testbed bench links --link 1gbit,50us --link 10gbit
      testbed bench links --only rate,queue --runtime docker
    """
    from testbed.benchmarks.links import benchmarks, link_rows, render_links
    from testbed.links.spec import parse_link

    _logging(verbose)
    if not link:
        _bench_targets(benchmarks(runtime), only, as_json=as_json)
        return
    rows = link_rows([parse_link(text) for text in link], repeat=repeat, runtime=runtime)
    if as_json:
        _emit({"schema_version": 1, "rows": rows})
    else:
        render_links(rows, standard_output())


@bench_app.command("transports", epilog=_EPILOG, short_help="Channels and collectives beside their rivals.")
def bench_transports(
    only: Annotated[
        str,
        typer.Option(
            help="Of the targets only these: ring,small,far,unshaped,parameter-server,peer-to-peer,udp,udp-loss,"
            "udp-fair,mptcp,grpc."
        ),
    ] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure ways for gradients to travel against their targets, each beside its rivals on the same links.

    ring: 1 to 100 MB at 1 Gbit/s against the bound, gloo and Open MPI. small: messages that latency decides. far: 10 ms
    round trip, all with cubic. unshaped: links faster than the processor. parameter-server, peer-to-peer: against
    their formulas. udp: our channel at 1 Gbit/s without loss, its rate given and discovered. udp-loss: 200 Mbit/s,
    20 ms round trip, 0.5 % random loss, beside TCP cubic. udp-fair: what a window that gives way leaves to a cubic
    flow, and gets. mptcp: two disjoint paths against one. grpc: beside ring/tcp. All take about 12 minutes; links and
    sizes are in --json. gRPC's parameter server is in `testbed bench training`.

    Example: testbed bench transports --only udp
    """
    from testbed.benchmarks.transports import BENCHMARKS

    _logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@bench_app.command("training", epilog=_EPILOG, short_help="Fusion, order and overlap beside each other.")
def bench_training(
    only: Annotated[str, typer.Option(help="Of the targets only these: overlap,merging,rpc.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure fusion, order and overlap against their targets: whole runs, side by side; computing is time that passes.

    overlap: 4 workers, 300 ms of computing and 260 ms of communicating, in layers as they become ready (WFBP), merged
    (MG-WFBP), in Horovod's cycles, by priority (ByteScheduler), beside nothing before backward has ended. merging:
    MobileNet's tensors where every message waits 1 ms a link. rpc: 8 workers, a fused ring beside parameter servers
    that get tensor by tensor over gRPC, gRPC with a channel for bulk, and TCP; ResNet-50 and MobileNet.

    Example: testbed bench training --only overlap
    """
    from testbed.benchmarks.training import BENCHMARKS

    _logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@bench_app.command("aggregation", epilog=_EPILOG, short_help="The switch that adds beside its rivals.")
def bench_aggregation(
    only: Annotated[
        str, typer.Option(help="Of the targets only these: rivals,many-workers,jumbo,delay,loss,program.")
    ] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure the switch that adds against its targets: how full its links are, beside its rivals on the same links.

    rivals: 4 workers at 200 Mbit/s beside a ring, gloo and servers. many-workers: 8 at 50 Mbit/s. jumbo: 2048 elements
    in a packet. delay: 2 ms each way. loss: 1 % each way. program: ns in the kernel for a packet and an element.

    Example: testbed bench aggregation --only rivals,program
    """
    from testbed.benchmarks.aggregation import BENCHMARKS

    _logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@bench_app.command("containers", epilog=_EPILOG, short_help="Containers beside namespaces.")
def bench_containers(
    only: Annotated[str, typer.Option(help="Of the targets only these: same,start.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure `runtime: docker` against its targets; needs a Docker daemon, and the image that `make image` builds.

    same: three quickstarts in namespaces and three in containers, in turns: the same parameters bit by bit, and the
    median iteration of the quietest run of each. start: the seconds around the iterations with 4 and 16 workers. How
    exact links at containers are: testbed bench links --runtime docker.

    Example: testbed bench containers --only same
    """
    from testbed.benchmarks.containers import BENCHMARKS

    _logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


def _bench_targets(benchmarks: "Benchmarks", only: str, *, as_json: bool) -> None:
    from testbed.benchmarks.targets import Journal, chosen, render_targets
    from testbed.doctor import require_root

    selected = chosen(benchmarks, [name.strip() for name in only.split(",") if name.strip()])
    require_root()
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with Journal(stream=sys.stdout if as_json else None, tell=errors.print) as journal:
        for name, benchmark in selected.items():
            journal.measure(name, benchmark)
    if not as_json:
        render_targets(journal.rows, standard_output())
    journal.require_all()


@bench_app.command("all", epilog=_EPILOG, short_help="All of them: what `make bench` runs.")
def bench_all(
    output: Annotated[Path, typer.Option("--output", help="Where the rows go, as JSON.", dir_okay=False)] = Path(
        "bench.json"
    ),
    verbose: Verbose = 0,
) -> None:
    """Every benchmark with its targets: links, transports, the switch that adds, training, and what surrounds a run.

    Each target is told as it is measured, and all are one table at the end. Each row is a line of --output as soon as
    it is measured; a benchmark that fails stops no other. Takes about 30 minutes on two cores, and more where the
    hypervisor takes time from them, since what was measured meanwhile is repeated. One part alone: testbed bench links,
    transports, aggregation, training, containers (among them only where make image has built what it needs).

    Example: testbed bench all --output bench.json
    """
    from testbed.benchmarks.suite import every_part, run_all

    _logging(verbose)
    run_all(every_part(), output, standard_output())


def _interrupt(signum: int, _frame: FrameType | None) -> NoReturn:
    # A second signal must not interrupt the cleaning that the first one started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted(signal.Signals(signum).name)


def main() -> None:
    """The console script: commands, and errors as one readable text and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    errors = Console(stderr=True)
    try:
        app()
    except Interrupted as interrupted:
        errors.print(f"{interrupted}: interrupted; everything this run made has been removed", style="yellow")
        sys.exit(EXIT_INTERRUPTED)
    except TestbedError as error:
        kind = "spec error" if isinstance(error, SpecError) else "error"
        errors.print(f"[bold red]{kind}:[/] ", end="")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
