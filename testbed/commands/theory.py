"""advise, predict, simulate, trace: what models say of a training, without running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, get_args

import typer

from testbed.commands.options import EPILOG, Json, Set, Spec, emit
from testbed.errors import SpecError
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.traces.table import LayerTable

commands: Final = typer.Typer()
traces: Final = typer.Typer(no_args_is_help=True, help="Look at traces: layers, their times, their gradients.")
_MTU: Final = 1500

BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", min=1, max=65536, help="Samples per worker of a network named; 32 where nothing is said."
    ),
]
Trace = Annotated[
    str,
    typer.Argument(
        help="A network, such as resnet50 (`testbed trace list` names all), or a file of a layer-wise trace.",
        metavar="TRACE",
        show_default=False,
    ),
]


class _Loaded(NamedTuple):
    table: "LayerTable"
    name: str
    source: str


def _load(trace: str, batch_size: int | None) -> _Loaded:
    from testbed.traces.derived import DEVICES, derived_table
    from testbed.traces.formats.base import read_trace
    from testbed.traces.networks import NetworkName

    for name in get_args(NetworkName):
        if trace == name:
            size = batch_size or 32
            source = f"derived, batch {size}; {DEVICES['v100'].source}"
            return _Loaded(derived_table(name, batch_size=size), trace, source)
    if not Path(trace).is_file():
        known = ", ".join(get_args(NetworkName))
        raise SpecError(f"{trace!r} is neither a network nor a file; networks: {known}")
    if batch_size is not None:
        raise SpecError("--batch-size goes with a network's name: a file says what was recorded, at one batch size")
    return _Loaded(read_trace(Path(trace)), Path(trace).name, f"from {trace}")


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
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            dir_okay=False,
            help="Write a page with the picture: scaling factor over rate.",
            metavar="FILE.html",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Is this link enough for that model on so many workers, and if not, what is the least to change?

    Faster links, compression, another fusion, a better transport, a switch that aggregates, larger batches or fewer
    synchronisations, each by itself and each with its price. All numbers are predicted, by the model of "Is Network the
    Bottleneck of Distributed Training?" (Zhang et al. 2020); `testbed run` measures.

    Example: testbed advise resnet50 --workers 32 --link 25gbit --target 0.9
    """
    from testbed.report.terminal.advice import advice_json, render_advice
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
    loaded = _load(trace, batch_size)
    today = Setting(
        table=loaded.table,
        num_workers=workers,
        rate_bps=rate_bps,
        latency_s=latency_s,
        efficiency=most if efficiency is None else efficiency,
    )
    found = find(today, target, max_efficiency=most)
    if page is not None:
        from testbed.report.advice import write_advice

        write_advice(found, loaded.name, page)
    if as_json:
        emit(advice_json(found, loaded.name))
    else:
        render_advice(found, loaded.name, standard_output())


@commands.command(epilog=EPILOG, short_help="Predict a spec's iteration, by every model there is.")
def predict(spec: Spec, overrides: Set = None, as_json: Json = False) -> None:
    """Predict a spec's iteration without root and without running it.

    Its time and parts, the scaling factor, bytes and utilisation of each link, the critical path and what decides, by
    the cost model; beside it what other models say. `testbed fit` measures the cost model's parameters on this machine;
    without it they are defaults. `dilation: auto` is what it is for a run here. Of workload allreduce: the time of each
    size on each stack.

    Example: testbed predict experiments/quickstart.yaml --set link.rate=1gbit --json
    """
    from testbed.experiment.experiment import load
    from testbed.machine.doctor import plan_in_theory
    from testbed.machine.fit import expected_error, known_costs
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
        return
    plan = plan_in_theory(experiment)
    found = predict_iteration(plan, expected)
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


@traces.command("show", epilog=EPILOG, short_help="Print a trace's layers, times and gradients.")
def show(trace: Trace, batch_size: BatchSize = None, as_json: Json = False) -> None:
    """Print a trace: how long its layers compute, and how many bytes of gradients they make."""
    from testbed.report.terminal.advice import render_trace, trace_json

    loaded = _load(trace, batch_size)
    if as_json:
        emit(trace_json(*loaded))
    else:
        render_trace(*loaded, standard_output())


@traces.command("list", epilog=EPILOG, short_help="Name the networks and the formats of files.")
def list_traces(as_json: Json = False) -> None:
    """Name the networks that traces are derived for, and the formats of files that can be read."""
    from testbed.traces.formats.base import TRACE_FORMATS
    from testbed.traces.networks import NetworkName

    names, formats = list(get_args(NetworkName)), TRACE_FORMATS.kinds()
    if as_json:
        emit({"networks": names, "formats": formats})
    else:
        standard_output().print(
            f"networks: {', '.join(names)}\nformats of files: {', '.join(formats)}", highlight=False
        )


@traces.command("convert", epilog=EPILOG, short_help="Write a trace as a table of layers.")
def convert(
    trace: Trace,
    output: Annotated[Path, typer.Argument(dir_okay=False, help="The table to write.", metavar="FILE")],
    batch_size: BatchSize = None,
) -> None:
    """Write a trace as a table with the columns Id Name Forward Backward Comm Size, for people and other tools."""
    from testbed.record.writer import replace_text
    from testbed.traces.formats.layers import layers_text

    replace_text(output, layers_text(_load(trace, batch_size).table))


@traces.command("export", epilog=EPILOG, short_help="Write a record's own times as a trace.")
def export(
    record: Annotated[Path, typer.Argument(help="The directory of a record.", metavar="RECORD", show_default=False)],
    output: Annotated[Path, typer.Argument(dir_okay=False, help="The trace to write.", metavar="FILE")],
    format_: Annotated[
        str, typer.Option("--format", help="layers: the table of layers that `workload: replay` takes.")
    ] = "layers",
) -> None:
    """Write how long the layers of a run computed, and how many bytes of gradients they made, to be replayed.

    Example: testbed trace export results/RECORD mine.txt && testbed run experiments/quickstart.yaml --set
    'workload={kind: replay, trace: mine.txt}'
    """
    from testbed.record.reader import load as load_record
    from testbed.record.writer import replace_text
    from testbed.report.layer_table import recorded_table
    from testbed.traces.formats.layers import layers_text

    if format_ != "layers":
        raise SpecError(f"--format is {format_!r}; allowed: layers (for Chrome's format: `testbed report --trace`)")
    replace_text(output, layers_text(recorded_table(load_record(record))))
