"""topology: networks that other simulators describe, and ours for them."""

import json
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from testbed.commands.options import EPILOG, Json, Set, Spec, emit
from testbed.errors import SpecError
from transports.bench.terminal import standard_output

commands: Final = typer.Typer(
    no_args_is_help=True,
    help="Networks as InfraGraph documents (infragraph.dev), which other simulators read and write. A spec takes one "
    "as `topology: {kind: infragraph, path: FILE}`.",
)

_Format = Annotated[Literal["infragraph"], typer.Option("--format", help="infragraph (version 3.1), in YAML or JSON.")]


@commands.command("show", epilog=EPILOG, short_help="Print what a document becomes as a topology.")
def show(
    document: Annotated[
        Path, typer.Argument(help="An InfraGraph document, YAML or JSON.", metavar="FILE", show_default=False)
    ],
    place: Annotated[
        Literal["nic", "host"],
        typer.Option(
            "--place", help="nic: each link of a host to a switch is a place for a worker; host: each host is."
        ),
    ] = "nic",
    as_json: Json = False,
) -> None:
    """Print what a document becomes as a topology: places for workers, switches, links; what is left out, and what was
    taken for what.

    Example: testbed topology show cluster.yaml
    """
    from pydantic import ValidationError

    from testbed.experiment.explanations import explanations
    from testbed.experiment.topologies.base import TOPOLOGIES
    from testbed.report.terminal.topology import render_fabric

    given = {"path": str(document), "place": place}
    try:
        topology = TOPOLOGIES.parse({"kind": "infragraph", **given})
    except ValidationError as error:
        raise SpecError("\n".join(explanations(error, given, TOPOLOGIES["infragraph"], prefix=("topology",)))) from None
    if as_json:
        emit(TOPOLOGIES.dump(topology))
    else:
        render_fabric(topology, standard_output())


@commands.command("export", epilog=EPILOG, short_help="Write a spec's network for other simulators.")
def export(
    spec: Spec,
    output: Annotated[
        Path,
        typer.Argument(
            help="The file to write: YAML, or JSON where it ends in .json.", metavar="FILE", show_default=False
        ),
    ],
    overrides: Set = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            max=100_000,
            help="How many, instead of the spec's; the topology grows with them, beyond what can be emulated.",
            show_default=False,
        ),
    ] = None,
    format_: _Format = "infragraph",  # noqa: ARG001 - there is one
) -> None:
    """Write a spec's network as others read it: a host for each worker, switches, and links with their rates and
    latencies. What the format cannot say is named.

    Examples:

    \b
      testbed topology export experiments/quickstart.yaml star.yaml
      testbed topology export quickstart cluster.json --workers 1024 --set topology=fat_tree
    """
    import yaml

    from testbed.experiment.experiment import load
    from testbed.plan.infrastructure import infragraph
    from testbed.record.writer import replace_bytes
    from testbed.report.terminal.notes import render_notes
    from testbed.theory.simulation.simulate import grown, scaled

    experiment = load(spec, overrides or [])
    if workers is not None:
        experiment = grown(scaled(experiment, workers))
    found = infragraph(experiment)
    if output.suffix == ".json":
        text = json.dumps(found.document, indent=1)
    else:
        text = yaml.dump(found.document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    replace_bytes(output, f"{text.rstrip()}\n".encode(), make_folder=True)
    console = standard_output()
    console.print(
        f"{output}: {found.num_hosts} hosts, {found.num_switches} switches, {found.num_links} links",
        highlight=False,
        markup=False,
    )
    render_notes(found.left_out, console)
