"""bench: what is measured beside baselines and against targets."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from testbed.commands.options import EPILOG, Json, Verbose, emit, set_up_logging
from testbed.errors import SpecError
from transports.bench.options import FORMAT_HELP, SIZES_HELP, parse_sizes
from transports.bench.terminal import standard_output
from transports.errors import OptionError

if TYPE_CHECKING:
    from testbed.benchmarks.targets import Benchmarks

commands: Final = typer.Typer(
    help="Micro-benchmarks: all stacks interleaved on the same links in one run.", no_args_is_help=True
)


@commands.command("allreduce", epilog=EPILOG, short_help="Time all-reduce on several stacks, interleaved.")
def bench_allreduce(
    workers: Annotated[int, typer.Option(help="How many workers, in a star.", min=2, max=64)] = 4,
    link: Annotated[str, typer.Option(help="RATE[,DELAY[,LOSS]] of every link.")] = "1gbit,0s",
    sizes: Annotated[str, typer.Option(help=f"{SIZES_HELP} of buffer sizes.")] = "64KiB,1MiB,25MB",
    stack: Annotated[
        str,
        typer.Option(
            help="Comma-separated COLLECTIVE/CHANNEL[/COMPRESSION] or baselines; ring/udp:rate=1gbit:window=aimd."
        ),
    ] = "ring/tcp,gloo",
    repeat: Annotated[int, typer.Option(help="Samples of each size and stack.", min=1, max=10_000)] = 10,
    congestion: Annotated[str, typer.Option(help="Congestion control on the routes, for every stack.")] = "cubic",
    mtu: Annotated[
        int, typer.Option(help="Of every link; 9000 lets in_network:num_elements=2048/ebpf.", min=1500, max=9000)
    ] = 1500,
    format_: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "table",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Time all-reduce of each size on each stack, interleaved on the same links, every result checked.

    time is that of the slowest worker; busbw is nccl-tests' bus bandwidth; `of bound` is the bound over the time:
    2(N-1)/N x size over the links' goodput, with servers size over goodput, and with in_network its frames over the
    line rate; error is the largest relative one against the sum in float64. The same on a
    cluster of yours: torchrun --nproc-per-node 4 -m transports.bench.

    Example: testbed bench allreduce --sizes 4B:64MiB:4 --stack ring/tcp,recursive_doubling/tcp,tree/tcp --format osu
    """
    from testbed.benchmarks.allreduce import allreduce_rows
    from testbed.experiment.link import parse_link
    from transports.bench.rows import parse_format

    set_up_logging(verbose)
    try:
        sizes_bytes, render = parse_sizes(sizes), parse_format(format_)
    except OptionError as error:
        raise SpecError(str(error)) from None
    if ":" in sizes:  # nobody has chosen those between: whole float32
        sizes_bytes = list(dict.fromkeys(-(-size_bytes // 4) * 4 for size_bytes in sizes_bytes))
    rows = allreduce_rows(
        num_workers=workers,
        link=parse_link(link),
        sizes=[f"{size_bytes}B" for size_bytes in sizes_bytes],
        stacks=stack.split(","),
        repeat=repeat,
        congestion=congestion,
        mtu=mtu,
    )
    if as_json:
        emit({"schema_version": 2, "rows": rows})
    else:
        render(rows, standard_output())


@commands.command("links", epilog=EPILOG, short_help="Emulated links: rate, delay, loss, queue, incast.")
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
    from testbed.experiment.link import parse_link

    set_up_logging(verbose)
    if link and only:
        raise SpecError(f"--only {only}: of the targets, which are not measured with --link")
    if not link:
        _bench_targets(benchmarks(runtime), only, as_json=as_json)
        return
    rows = link_rows([parse_link(text) for text in link], repeat=repeat, runtime=runtime)
    if as_json:
        emit({"schema_version": 2, "rows": rows})
    else:
        render_links(rows, standard_output())


@commands.command("transports", epilog=EPILOG, short_help="Channels and collectives beside their baselines.")
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
    """Measure the transports of gradients against their targets, each beside its baselines on the same links.

    ring: 1 to 100 MB at 1 Gbit/s against the bound, gloo and Open MPI. small: messages that latency decides. far: 10 ms
    round trip, all with cubic. unshaped: links faster than the processor. parameter-server, peer-to-peer: against
    their formulas. udp: our channel at 1 Gbit/s without loss, its rate fixed and probed. udp-loss: 200 Mbit/s,
    20 ms round trip, 0.5 % random loss, beside TCP cubic. udp-fair: what a window that gives way leaves to a cubic
    flow, and gets. mptcp: two disjoint paths against one. grpc: beside ring/tcp. All take about 15 minutes; links and
    sizes are in --json. gRPC's parameter server is in `testbed bench training`.

    Example: testbed bench transports --only udp
    """
    from testbed.benchmarks.transports import BENCHMARKS

    set_up_logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@commands.command("hosts", epilog=EPILOG, short_help="What hosts are spared in an all-reduce.")
def bench_hosts(
    only: Annotated[str, typer.Option(help="Of the targets only these: kept,vectors.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure what hosts are spared in an all-reduce, each saving by itself; nothing is emulated.

    kept: 4 B to 64 KiB between two processes over loopback, with the schedule and buffers of the all-reduce before, and
    with these worked out anew. vectors: additions of float32 by vectors and by single elements, in the processor's
    cache and in memory. Under a minute; like all benchmarks it needs root.

    Example: sudo testbed bench hosts --json
    """
    from testbed.benchmarks.hosts import BENCHMARKS

    set_up_logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@commands.command("training", epilog=EPILOG, short_help="Fusion, order and overlap beside each other.")
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

    set_up_logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@commands.command("aggregation", epilog=EPILOG, short_help="The aggregating switch beside its baselines.")
def bench_aggregation(
    only: Annotated[
        str, typer.Option(help="Of the targets only these: baselines,many-workers,jumbo,delay,loss,program.")
    ] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure the aggregating switch against its targets: how full its links are, with baselines on the same links.

    baselines: 4 workers at 200 Mbit/s beside a ring, gloo and servers. many-workers: 8 at 50 Mbit/s. jumbo: packets of
    2048 elements. delay: 2 ms each way. loss: 1 % each way. program: ns in the kernel for a packet and an element.

    Example: testbed bench aggregation --only baselines,program
    """
    from testbed.benchmarks.aggregation import BENCHMARKS

    set_up_logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@commands.command("containers", epilog=EPILOG, short_help="Containers beside namespaces.")
def bench_containers(
    only: Annotated[str, typer.Option(help="Of the targets only these: same,start.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure `runtime: docker` against its targets; needs a Docker daemon, and the image that `make image` builds.

    same: five quickstarts in namespaces and five in containers, in turns: the same parameters bit by bit, and the
    median over the runs' median iterations. start: the seconds around the iterations with 4 and 16 workers. How
    exact links at containers are: testbed bench links --runtime docker.

    Example: testbed bench containers --only same
    """
    from testbed.benchmarks.containers import BENCHMARKS

    set_up_logging(verbose)
    _bench_targets(BENCHMARKS, only, as_json=as_json)


@commands.command("predictions", epilog=EPILOG, short_help="The cost model beside measurements.")
def bench_predictions(
    only: Annotated[
        str, typer.Option(help="Of the groups only these, as --list names them; `mean` is over those before it.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="Print the points and measure nothing.")] = False,
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Measure exchanges and iterations on emulated links, and hold the cost model's predictions to them.

    Every collective and channel, 2 to 8 workers, 64 KiB to 100 MB, delays of 0, 1 and 10 ms, a slow link, a dumbbell,
    stragglers: the error of each point, the mean, and how much slower `auto` is than the best of its candidates. The
    parameters are those of `testbed fit`, which measures other links. About 15 minutes.

    Example: testbed bench predictions --only four,mean
    """
    from testbed.benchmarks.predictions import benchmarks, iteration_specs, points

    set_up_logging(verbose)
    if listed:
        lines = [f"{each.group}: {each.stack} {each.size}" for each in points()]
        lines += [f"{name}: iteration" for name in iteration_specs()]
        if as_json:
            emit({"points": lines})
        else:
            standard_output().print("\n".join(lines), highlight=False, markup=False)
        return
    _bench_targets(benchmarks(), only, as_json=as_json)


@commands.command("simulation", epilog=EPILOG, short_help="The flow simulation beside measurements.")
def bench_simulation(
    only: Annotated[str, typer.Option(help="Of the runs only these, by their names, and `cost`.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run jobs on emulated links, and hold the flow simulation to their iterations.

    4 to 16 workers on a star, a dumbbell, leaves and a spine, a torus and a fat tree, alone and two jobs beside each
    other: the error of each (target 5 %). cost: what simulating 16 to 16,384 workers takes. About 8 minutes.

    Example: testbed bench simulation --only star_4,two_jobs_dumbbell,cost
    """
    from testbed.benchmarks.simulation import benchmarks

    set_up_logging(verbose)
    _bench_targets(benchmarks(), only, as_json=as_json)


@commands.command("sweeps", epilog=EPILOG, short_help="The sweeps of the package: minutes, and runs that are valid.")
def bench_sweeps(
    only: Annotated[str, typer.Option(help="Only these, by their names as `testbed examples` lists them.")] = "",
    as_json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Run every sweep that comes with the package as it is, and hold it to ten minutes and to runs that are all valid.

    Each has three runs of each point, in turns, of at least 15 measured iterations. All take more than an hour, and
    need a machine that does nothing else.

    Example: testbed bench sweeps --only link_speed,workers
    """
    from testbed.benchmarks.sweeps import benchmarks

    set_up_logging(verbose)
    _bench_targets(benchmarks(), only, as_json=as_json)


def _bench_targets(benchmarks: "Benchmarks", only: str, *, as_json: bool) -> None:
    from testbed.benchmarks.targets import Journal, chosen, render_targets
    from testbed.machine.doctor import require_root

    selected = chosen(benchmarks, [name.strip() for name in only.split(",") if name.strip()])
    require_root()
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with Journal(stream=sys.stdout if as_json else None, tell=errors.print) as journal:
        for name, benchmark in selected.items():
            journal.measure(name, benchmark)
    if not as_json:
        render_targets(journal.rows, standard_output())
    journal.require_all()


@commands.command("all", epilog=EPILOG, short_help="All of them: what `make bench` runs.")
def bench_all(
    output: Annotated[Path, typer.Option("--output", help="Where the rows go, as JSON.", dir_okay=False)] = Path(
        "bench.json"
    ),
    verbose: Verbose = 0,
) -> None:
    """Every benchmark with its targets: links, transports, the aggregating switch, training, hosts, and what surrounds
    a run.

    Each target is reported as it is measured, and all are one table at the end. Each row is a line of --output as soon
    as it is measured; a benchmark that fails stops no other. Takes about 30 minutes on two cores, and more where the
    hypervisor takes time from them, since what was measured meanwhile is repeated. One part alone: testbed bench links,
    transports, aggregation, training, hosts, containers (among them only where make image has built what it needs).

    Example: testbed bench all --output bench.json
    """
    from testbed.benchmarks.suite import every_part, run_all
    from testbed.machine.doctor import require_root

    set_up_logging(verbose)
    require_root()  # before the rows of the last time are gone
    run_all(every_part(), output, standard_output())


@commands.command("page", epilog=EPILOG, short_help="Everything that was measured, as a page of Markdown.")
def bench_page(
    rows: Annotated[Path, typer.Argument(help="What `testbed bench all --output FILE` wrote.", metavar="FILE")],
) -> None:
    """Print every row of a run of all benchmarks as Markdown, by part, with the machine and the commit.

    Example: testbed bench page docs/measured.json > docs/measured.md
    """
    from testbed.benchmarks.page import measured_page, read_rows

    typer.echo(measured_page(read_rows(rows)), nl=False)
