"""trace: what a training computes and exchanges, as files: shown, generated, imported, exported."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

import typer

from testbed.commands.options import EPILOG, Json, emit
from testbed.errors import SpecError, as_spec_errors
from transports.bench.terminal import standard_output

if TYPE_CHECKING:
    from testbed.traces.devices import DeviceName
    from testbed.traces.formats.base import Trace as AnyTrace
    from testbed.traces.formats.base import TraceFormat
    from testbed.traces.graph import Graph
    from testbed.traces.table import LayerTable

commands: Final = typer.Typer(
    no_args_is_help=True,
    help="Look at traces, make them, read and write the formats of others. A trace is a table of layers, which all "
    "workers compute and whose gradients they exchange, or a graph of what each rank computes and exchanges.",
)

BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", min=1, max=65536, help="Samples per worker of a network named; 32 where nothing is said."
    ),
]
Device = Annotated[
    Literal["v100", "h100", "h100_bf16"] | None,
    typer.Option(
        "--device",
        help="Of a network named: v100, derived from published totals, where nothing is said; h100, or h100_bf16 "
        "(mixed precision), recorded.",
        show_default=False,
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
_AnyTrace = Annotated[
    str,
    typer.Argument(
        help="A network, such as resnet50 (`testbed trace list` names all); a file; or a directory with a file for "
        "each rank.",
        metavar="TRACE",
        show_default=False,
    ),
]
Iteration = Annotated[
    str | None,
    typer.Option(
        "--iteration",
        metavar="TIME",
        help="Of one worker alone, such as 97ms: for a trace that says nothing of its forward pass, which takes what "
        "is left of that.",
        show_default=False,
    ),
]
_Output = Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE", show_default=False)]
_Ranks = Annotated[int, typer.Option("--ranks", min=2, max=4096, help="How many.", show_default=False)]


_HOOKS_SHARE: Final = 0.05
"""Of an iteration; where hooks take more, `trace record` says so."""


class Loaded(NamedTuple):
    """A table of layers, and where it is from."""

    table: "LayerTable"
    name: str
    source: str


def completed(table: "LayerTable", iteration: str | None) -> "LayerTable":
    """With a forward pass, so that an iteration takes that time; itself for None. Raises SpecError."""
    from transports.units import parse_time_s

    if iteration is None:
        return table
    try:
        return table.with_iteration(parse_time_s(iteration))
    except ValueError as error:
        raise SpecError(f"--iteration: {error}") from error


def load_table(trace: str, batch_size: int | None, device: "DeviceName | None" = None) -> Loaded:
    """A network's table, or a file's. Raises SpecError."""
    from testbed.traces.formats.base import read_table

    if (found := _network(trace, batch_size, device)) is not None:
        return found
    table = read_table(_path(trace, batch_size, device))
    recorded = f"recorded on {table.recorded_on}" if table.recorded_on else "which names no device"
    batch = "no batch size" if table.batch_size is None else f"batch {table.batch_size}"
    return Loaded(table, Path(trace).name, f"from {trace}, {recorded}, {batch}")


def _network(trace: str, batch_size: int | None, device: "DeviceName | None") -> Loaded | None:
    from testbed.traces.devices import DEFAULT_BATCH_SIZE, DEFAULT_DEVICE, network_table, source_text
    from testbed.traces.networks import NetworkName

    on, size = device or DEFAULT_DEVICE, batch_size or DEFAULT_BATCH_SIZE
    for name in get_args(NetworkName):
        if trace == name:
            try:
                table = network_table(name, device=on, batch_size=size)
            except ValueError as error:
                raise SpecError(f"--{error}".replace("batch_size", "batch-size", 1)) from None
            return Loaded(table, trace, f"{on}, batch {size}, {source_text(name, on, table)}")
    return None


def _path(trace: str, batch_size: int | None, device: "DeviceName | None") -> Path:
    """Of a trace that is no network. Raises SpecError."""
    from testbed.traces.networks import NetworkName

    if not Path(trace).exists():
        if trace in get_args(NetworkName):
            raise SpecError(f"{trace} is a network, which has no format: leave --format out")
        known = ", ".join(get_args(NetworkName))
        raise SpecError(f"{trace!r} is neither a network nor a file; networks: {known}")
    for option, given in (("--batch-size", batch_size), ("--device", device)):
        if given is not None:
            raise SpecError(f"{option} goes with a network's name: a file says what was recorded, on which device")
    return Path(trace)


def _load(trace: str, batch_size: int | None, device: "DeviceName | None") -> "AnyTrace":
    from testbed.traces.formats.base import read_trace

    loaded = _network(trace, batch_size, device)
    return read_trace(_path(trace, batch_size, device)) if loaded is None else loaded.table


@commands.command("show", epilog=EPILOG, short_help="Print a trace: its layers, or what its ranks do.")
def show(trace: _AnyTrace, batch_size: BatchSize = None, device: Device = None, as_json: Json = False) -> None:
    """Print a trace: how long its layers compute, and how many bytes of gradients they make; or of a graph what each
    rank computes and exchanges.

    Examples:

      testbed trace show resnet50
      testbed trace show gpt2 --device h100_bf16 --batch-size 16
      testbed trace show fsdp8.json
      testbed trace show profiles/        (torch's profiler, a file for each rank)
    """
    from testbed.report.terminal.advice import render_trace, trace_json
    from testbed.report.terminal.graph import graph_json, render_graph
    from testbed.traces.graph import Graph

    loaded = _load(trace, batch_size, device)
    if isinstance(loaded, Graph):
        if as_json:
            emit(graph_json(loaded, trace))
        else:
            render_graph(loaded, trace, standard_output())
        return
    table = load_table(trace, batch_size, device)
    if as_json:
        emit(trace_json(*table))
    else:
        render_trace(*table, standard_output())


@commands.command("list", epilog=EPILOG, short_help="Name networks, formats and generators.")
def list_traces(as_json: Json = False) -> None:
    """Name the networks that traces are derived for, the formats that can be read and written, and the generators of
    graphs."""
    from testbed.traces.formats.base import TRACE_FORMATS, writable
    from testbed.traces.generators.base import GENERATORS
    from testbed.traces.networks import NetworkName

    known = {
        "networks": list(get_args(NetworkName)),
        "formats": TRACE_FORMATS.kinds(),
        "formats_written": writable(),
        "generators": GENERATORS.kinds(),
    }
    if as_json:
        emit(known)
        return
    titles = ("networks", "formats read", "formats written", "generators")
    lines = [f"{title}: {', '.join(names)}" for title, names in zip(titles, known.values(), strict=True)]
    standard_output().print("\n".join(lines), highlight=False)


@commands.command("generate", epilog=EPILOG, short_help="Make the graph of a training divided among ranks.")
def generate(
    kind: Annotated[
        str,
        typer.Argument(
            help="data_parallel, fsdp, pipeline, tensor_parallel or mixture_of_experts.",
            metavar="GENERATOR",
            show_default=False,
        ),
    ],
    trace: Trace,
    output: _Output,
    ranks: _Ranks,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="An option of the generator, such as --set micro_batches=16.", metavar="OPTION=VALUE"
        ),
    ] = None,
    batch_size: BatchSize = None,
    device: Device = None,
    format_: Annotated[str, typer.Option("--format", help="graph, or chakra for ASTRA-sim and others.")] = "graph",
) -> None:
    """Make the graph of an iteration, for any number of ranks, from a table of layers.

    Examples:

      testbed trace generate fsdp gpt2 fsdp8.json --ranks 8 --batch-size 4
      testbed trace generate pipeline gpt2 1f1b.json --ranks 4 --set activations=6MiB --set micro_batches=8
      testbed trace generate mixture_of_experts gpt2 moe.json --ranks 8 --set tokens=12MiB --set skew=1
      testbed trace generate tensor_parallel gpt2 tp.json --ranks 4 --set activations=6MiB
      testbed run SPEC --set 'workload={kind: replay, trace: fsdp8.json}' --set workers=8
    """
    from pydantic import ValidationError

    from testbed.experiment.explanations import explanations
    from testbed.traces.formats.base import TRACE_FORMATS
    from testbed.traces.generators.base import GENERATORS

    with as_spec_errors():
        given = _options(options or [])
        if "kind" in given:
            raise SpecError(f"--set kind: it is {kind}, which comes first")
        try:
            generator = GENERATORS.parse({"kind": kind, **given})
        except ValidationError as error:
            raise SpecError("\n".join(explanations(error, given, GENERATORS[kind]))) from None
        written = TRACE_FORMATS.parse(format_)
    table = load_table(trace, batch_size, device).table
    if device is not None and table.host_to_device_s:
        typer.echo(
            f"the copy of a batch to the device ({1e3 * table.host_to_device_s:.2f} ms) is left out: a graph has no "
            "input that is read ahead of its iteration",
            err=True,
        )
        table = replace(table, host_to_device_s=0.0)
    if table.input_and_copy_s:
        raise SpecError(
            f"{trace}: a graph has no input that is read ahead of its iteration; leave input_us and host_to_device_us "
            "out of the table"
        )
    _write(written, generator.generate(table, ranks), output)


@commands.command("schedule", epilog=EPILOG, short_help="Write a collective's messages, rank by rank.")
def schedule(
    collective: Annotated[
        str, typer.Argument(help="ring, tree, halving_doubling, ...", metavar="COLLECTIVE", show_default=False)
    ],
    output: _Output,
    ranks: _Ranks,
    size: Annotated[str, typer.Option("--size", help="Of the larger buffer: 25MB, 1MiB.")] = "25MB",
    operation: Annotated[
        str, typer.Option("--operation", help="all_reduce, all_gather, reduce_scatter, ...")
    ] = "all_reduce",
    element_type: Annotated[str, typer.Option("--type", help="Of elements.")] = "float32",
    format_: Annotated[
        str, typer.Option("--format", help="chakra, as ASTRA-sim's custom collectives; or graph.")
    ] = "chakra",
) -> None:
    """Write the messages of one collective as a graph of sends and receives, a file for each rank: what a simulator
    takes as a custom collective.

    Example: testbed trace schedule halving_doubling schedules/hd --ranks 8 --size 64MiB
    """
    from testbed.traces.formats.base import TRACE_FORMATS
    from testbed.traces.graph import ELEMENT_BYTES
    from testbed.traces.schedules import schedule_graph
    from transports.collectives.base import COLLECTIVES
    from transports.units import parse_size_bytes

    with as_spec_errors():
        if element_type not in ELEMENT_BYTES:
            raise SpecError(f"--type: {element_type!r} is not known; allowed: {', '.join(ELEMENT_BYTES)}")
        try:
            size_bytes = parse_size_bytes(size)
        except ValueError as error:
            raise SpecError(f"--size: {error}") from None
        if size_bytes % ELEMENT_BYTES[element_type]:
            raise SpecError(f"--size: {size_bytes} bytes, which no number of {element_type} has")
        count = size_bytes // ELEMENT_BYTES[element_type]
        graph = schedule_graph(COLLECTIVES.parse(collective), operation, ranks, count, element_type)  # type: ignore[arg-type]  # checked there
        written = TRACE_FORMATS.parse(format_)
    _write(written, graph, output)


@commands.command("record", epilog=EPILOG, short_help="Time a model's layers on this machine.")
def record(
    output: _Output,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="cnn, which the workload `training` trains; or MODULE:FUNCTION, which returns a torch.nn.Module: "
            "torchvision.models:resnet50, or a file of yours here.",
            show_default=False,
        ),
    ],
    batch_size: Annotated[
        int, typer.Option("--batch", "--batch-size", min=1, max=65536, help="Samples of an iteration.")
    ] = 32,
    sample: Annotated[
        str | None,
        typer.Option("--sample", help="The shape of one sample: 3x224x224, or 128 of a sequence.", show_default=False),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, help="Samples are whole numbers below this one.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1.")] = "cpu",
    autocast: Annotated[
        Literal["bfloat16"] | None,
        typer.Option("--autocast", help="Mixed precision: what torch.autocast computes with.", show_default=False),
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=3, max=10_000, help="Timed ones.")] = 10,
    warmup: Annotated[int, typer.Option("--warmup", min=1, max=10_000, help="Iterations before them.")] = 3,
) -> None:
    """Time the layers of a model on this machine, with real forward and backward passes, and write a table of layers
    that `workload: replay` takes, marked with the device's name. Times are medians over iterations; the optimizer is
    SGD with momentum; copying to the device is timed where it is not the processor.

    Examples:

      testbed trace record cnn.txt --model cnn --batch 64
      testbed trace record resnet50.txt --model torchvision.models:resnet50 --sample 3x224x224 --device cuda
      testbed trace record gpt2.txt --model my_models:gpt2 --sample 512 --tokens 50257 --device cuda --autocast bfloat16
      testbed run SPEC --set 'workload={kind: replay, trace: cnn.txt}'
    """
    from testbed.machine.layer_times import Recording, imported, record_layers, shipped
    from testbed.traces.formats.base import TRACE_FORMATS

    known = shipped(model)
    if known is None and ":" not in model:
        raise SpecError(f"--model: {model!r} is no model; allowed: cnn, or MODULE:FUNCTION that returns one")
    if known is not None and (sample is not None or tokens is not None):
        raise SpecError(f"--sample, --tokens: {model} has samples of its own; leave them out")
    if known is None and sample is None:
        raise SpecError("--sample: required: the shape of one sample of this model, such as 3x224x224")
    recording = Recording(
        model=model,
        make=imported(model) if known is None else known.make,
        sample_shape=_shape(sample or "") if known is None else known.sample_shape,
        num_tokens=tokens,
        batch_size=batch_size,
        device=device,
        autocast=autocast,
        num_iterations=iterations,
        num_warmup=warmup,
    )
    found = record_layers(recording)
    if found.hooked_s > (1 + _HOOKS_SHARE) * found.unhooked_s:
        typer.echo(
            f"hooks on its layers made iterations {100 * (found.hooked_s / found.unhooked_s - 1):.0f} % longer; passes "
            "are as long as without them, layers have the shares that they had with them",
            err=True,
        )
    _write(TRACE_FORMATS.parse("layers"), found.table, output)


def _shape(text: str) -> tuple[int, ...]:
    """`3x224x224`. Raises SpecError."""
    sides = text.split("x")
    if not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise SpecError(f"--sample: {text!r} is no shape; write whole numbers with an x between: 3x224x224, or 128")
    return tuple(map(int, sides))


@commands.command("import", epilog=EPILOG, short_help="Read a trace of any format, write it in our own.")
def import_trace(
    trace: _AnyTrace,
    output: _Output,
    batch_size: BatchSize = None,
    device: Device = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="What the trace is, where it is not recognised: kineto, chakra, layers, ..."),
    ] = None,
    iteration: Iteration = None,
) -> None:
    """Read a trace of any format and write it as a file of our own, to be looked at, edited and replayed: a table with
    the columns Id Name Forward Backward Comm Size, or a graph in JSON.

    Formats: tables of layers; `wait_us,bytes` logs; B-Caffe's logs; Kineto, as torch's profiler writes it with
    record_shapes=True (a directory with a file for each rank); MLCommons Chakra (NAME.0.et, NAME.1.et, ... in a
    directory).

    Examples:

      testbed trace import profiles/ mine.json && testbed trace show mine.json
      testbed trace import chakra_traces/ mine.json
      testbed trace import resnet50.bk.log mine.txt --iteration 128ms
    """
    from testbed.traces.formats.base import TRACE_FORMATS, read_trace
    from testbed.traces.graph import Graph

    with as_spec_errors():
        if format_ is None:
            loaded = _load(trace, batch_size, device)
        else:
            loaded = read_trace(_path(trace, batch_size, device), TRACE_FORMATS.parse(format_))
        if isinstance(loaded, Graph):
            if iteration is not None:
                raise SpecError("--iteration is of a table of layers, and this is a graph, which says what it computes")
        else:
            loaded = completed(loaded, iteration)
            if not loaded.forward_s:
                typer.echo(
                    "the trace says nothing of a forward pass, and none will be replayed: --iteration says how long an "
                    "iteration of one worker takes",
                    err=True,
                )
        written = TRACE_FORMATS.parse("graph" if isinstance(loaded, Graph) else "layers")
    _write(written, loaded, output)


@commands.command("export", epilog=EPILOG, short_help="Write a record, or a trace, for other tools.")
def export(
    source: Annotated[
        str,
        typer.Argument(
            help="The directory of a record; or a trace, as `testbed trace show` takes it.",
            metavar="SOURCE",
            show_default=False,
        ),
    ],
    output: _Output,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="Of a record: layers (the table that `workload: replay` takes) or chrome (for Perfetto, with the "
            "argument names of torch's profiler). Of a trace: layers, graph or chakra.",
        ),
    ] = "layers",
    batch_size: BatchSize = None,
    device: Device = None,
) -> None:
    """Write what a run was, or what a trace says, in a format of others.

    Of a run: how long its layers computed and how many bytes of gradients they made, to be replayed; or everything that
    happened. Chakra is a file for each rank, FILE.0.et, FILE.1.et, ..., and FILE.groups.json where ranks have groups.

    Examples:

      testbed trace export results/RECORD mine.txt
      testbed run experiments/quickstart.yaml --set 'workload={kind: replay, trace: mine.txt}'
      testbed trace export results/RECORD run.json.gz --format chrome
      testbed trace export fsdp8.json astra/fsdp8 --format chakra
    """
    from testbed.traces.formats.base import TRACE_FORMATS

    if (Path(source) / "summary.json").is_file():
        if batch_size is not None or device is not None:
            raise SpecError(
                "a record has the times and the batch that were run, so --batch-size and --device say nothing; allowed "
                "with networks"
            )
        _export_record(Path(source), output, format_)
        return
    with as_spec_errors():
        written = TRACE_FORMATS.parse(format_)
    _write(written, _load(source, batch_size, device), output)


def _export_record(path: Path, output: Path, format_: str) -> None:
    from testbed.record.reader import load as load_record
    from testbed.report.chrome_trace import write_trace
    from testbed.report.layer_table import recorded_table
    from testbed.traces.formats.base import TRACE_FORMATS

    if format_ == "chrome":
        write_trace(load_record(path), output)
    elif format_ == "layers":
        _write(TRACE_FORMATS.parse("layers"), recorded_table(load_record(path)), output)
    else:
        raise SpecError(f"--format is {format_!r}; of a record allowed: layers, chrome")


def _write(trace_format: "TraceFormat", trace: "LayerTable | Graph", output: Path) -> None:
    from testbed.record.writer import replace_bytes

    for appendix, data in trace_format.files(trace).items():
        replace_bytes(output.with_name(output.name + appendix), data, make_folder=True)


def _options(texts: Sequence[str]) -> dict[str, Any]:
    """`activations=6MiB` and others. Raises SpecError."""
    from testbed.experiment.documents import load_document

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SpecError(f"--set is {text!r}; write an option and a value, such as activations=6MiB")
        try:
            found[name] = load_document(value)
        except ValueError as error:
            raise SpecError(f"--set {name}: {value!r} {error}") from None
    return found
