"""A trace: the layers of a known network as a device would compute them, or a file of somebody's measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from testbed.errors import SpecError
from testbed.experiment.iterative import Replayed, milliseconds
from testbed.experiment.workloads.base import WORKLOADS, unread
from testbed.traces.devices import DEFAULT_BATCH_SIZE, DEFAULT_DEVICE, DeviceName, network_table, source_text
from testbed.traces.formats.base import File, lines_of, read_trace
from testbed.traces.formats.graph import graph_text, parse_graph
from testbed.traces.formats.layers import Layers, layers_text
from testbed.traces.graph import Graph
from testbed.traces.networks import NetworkName
from testbed.traces.table import LayerTable
from transports.units import Time

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment


class WrittenTrace(BaseModel):
    """A file's contents, so that a resolved spec needs no other file and its hash covers them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Where it was read from."""
    layers: str
    """The table, in the format `layers`."""

    @field_validator("layers")
    @classmethod
    def _whole(cls, layers: str) -> str:
        _parsed(layers)
        return layers


class WrittenGraph(BaseModel):
    """The same of a trace that is a graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Where it was read from."""
    graph: str
    """In the format `graph`."""

    @field_validator("graph")
    @classmethod
    def _whole(cls, graph: str) -> str:
        _graph(graph)
        return graph


@WORKLOADS.register
class Replay(Replayed):
    """`{trace: resnet50, batch_size: 32, device: v100}`."""

    trace: Annotated[
        NetworkName | WrittenTrace | WrittenGraph,
        WithJsonSchema({"anyOf": [{"enum": list(get_args(NetworkName))}, {"type": ["string", "object"]}]}),
    ]
    """`alexnet`, `bert_base`, `googlenet`, `gpt2`, `mobilenet`, `resnet50`, `resnet101` or `vgg16`, on one of the
    devices that are known; or a file in any of the formats that `testbed trace list` names,
    from the directory in which the command runs. A file that holds a graph for each worker is replayed as it is,
    without layers, gradients or what is done with these; `testbed trace generate` makes such files."""
    device: DeviceName | None = None
    """Of a network named: `v100`, also where nothing is said, whose times are derived from published totals and the
    multiplications of layers; `h100`, recorded in float32 as torch is set, or `h100_bf16`, with autocast to bfloat16. A
    file says what was recorded."""
    batch_size: int | None = Field(None, ge=1, le=65536)
    """Samples per worker and iteration. 32 of a network where nothing is said; those of the file, if it says how many
    it was recorded with. Forward and backward take a time in proportion, on the devices that were recorded what they
    took: between two batch sizes on the line from one to the other."""
    update_s: Time | None = Field(None, alias="update", ge=0, le=3600)
    """Of a network named: how long the optimizer's step takes, and whatever else an iteration takes beside its passes
    and communication, instead of what is known of the device (nothing of `v100`). A file says it itself."""

    @field_validator("trace", mode="before")
    @classmethod
    def _read(cls, trace: object) -> object:
        """A file's contents in place of its path."""
        names = get_args(NetworkName)
        if not isinstance(trace, str) or trace in names:
            return trace
        if not Path(trace).is_file():
            raise ValueError(f"{trace!r} is neither a network nor a file; allowed: {', '.join(names)}, or a file")
        found = read_trace(Path(trace))
        if isinstance(found, Graph):
            return {"file": trace, "graph": graph_text(found)}
        return {"file": trace, "layers": layers_text(found)}

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_form(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """A graph's workload is a class of its own, which a spec need not know."""
        found = handler(data)
        if cls is Replay and isinstance(found.trace, WrittenGraph):
            return cast("Self", GraphReplay.model_validate({**data, "trace": found.trace}))
        return found

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, data: Any) -> Any:
        """What is not said, said, so that a resolved spec depends on no default."""
        if not isinstance(data, Mapping) or data.get("trace") not in get_args(NetworkName):
            return data
        return {
            **data,
            "device": DEFAULT_DEVICE if data.get("device") is None else data["device"],
            "batch_size": DEFAULT_BATCH_SIZE if data.get("batch_size") is None else data["batch_size"],
        }

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not isinstance(self.trace, WrittenTrace | WrittenGraph):
            self.layer_table()  # raises ValueError
            return self
        if self.device is not None:
            raise ValueError("device: a file says what was recorded, on whatever device; leave it out")
        if self.update_s is not None:
            raise ValueError(
                "update: a file says how long the optimizer's step takes; leave it out, or change the file"
            )
        if isinstance(self.trace, WrittenGraph):
            return self
        table = _parsed(self.trace.layers)
        if self.batch_size is not None and table.batch_size is None:
            raise ValueError(
                f"batch_size: {self.trace.file} does not say of how many samples its times are; leave it out, or write "
                "`# batch_size=32` at the head of a file of the format `layers` (`testbed trace import`)"
            )
        for layer in table.layers:
            _ = layer.tensors  # raises ValueError
        return self

    def layer_table(self) -> LayerTable:
        """The trace's table of layers, at the batch size requested."""
        assert not isinstance(self.trace, WrittenGraph), "that is a GraphReplay"
        table = _table(self.trace, self.device or DEFAULT_DEVICE, self.batch_size)
        return table if self.update_s is None else replace(table, update_s=self.update_s)

    def origin(self) -> str:
        """The network and the device, or the file."""
        if isinstance(self.trace, WrittenTrace):
            recorded_on = self.layer_table().recorded_on
            return f"{self.trace.file} (recorded on {recorded_on})" if recorded_on else self.trace.file
        if isinstance(self.trace, WrittenGraph):
            return self.trace.file
        device, batch_size = self.device or DEFAULT_DEVICE, self.batch_size or DEFAULT_BATCH_SIZE
        source = source_text(self.trace, device, self.layer_table()).partition(";")[0]
        return f"{self.trace} on {device}, batch {batch_size} ({source})"


class GraphReplay(Replay):
    """`{trace: FILE}` where the file holds a graph for each worker.

    What is computed takes the time that the graph says; what is exchanged is exchanged, by the process group, as soon
    as the graph lets it. There are no layers, and no gradients to fuse, compress or apply.
    """

    entry: ClassVar[str] = "testbed.worker.graph_replay:work"
    reads_data: ClassVar[bool] = False
    preload: ClassVar[Sequence[str]] = (
        "torch",
        "torch.distributed",
        "transports.torch_backend.process_group",
        "testbed.worker.graph_replay",
    )

    @model_validator(mode="after")
    def _only_what_has_an_effect(self) -> Self:
        fields = type(self).model_fields
        for name in ("batch_size", "compute_only", "verify_gradients"):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name}: a graph has no layers and no gradients that it could be of; leave it out")
        return self

    def graph(self) -> Graph:
        """The file's."""
        assert isinstance(self.trace, WrittenGraph), "a table of layers is a Replay"
        return _graph(self.trace.graph)

    def batch_samples(self) -> int | None:
        """None: a graph has no samples."""
        return None

    def timed_layers(self) -> LayerTable | None:
        """None: a graph has no layers."""
        return None

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """None."""
        return ()

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """None."""
        return ()

    def layer_backward_s(self) -> Sequence[float]:
        """Of none."""
        return ()

    def phase_lengths(self) -> Mapping[str, int]:
        """Nothing is computed without communication: what that would be compared with, one rank alone, is not the same
        work."""
        return {"warmup": self.warmup, "measured": self.iterations}

    def computing(self) -> str:
        """Replayed."""
        graph = self.graph()
        return (
            f"replayed, {self.origin()}: a graph of {sum(map(len, graph.ranks))} nodes; a rank computes for at most "
            f"{milliseconds(graph.longest_compute_s())}, and an iteration whose exchanges take no time lasts "
            f"{milliseconds(graph.critical_path_s())}; contents are random numbers, their bytes are real"
        )

    def unsupported_synchronisation(self) -> str | None:
        """A graph says itself when workers wait for each other."""
        return "is for gradients, and a graph has none"

    def incompatibilities(self, experiment: "Experiment") -> Sequence[str]:
        """Another number of workers; what nobody would read; what does not go from worker to worker."""
        graph, standard = self.graph(), type(experiment)(name="standard")
        found = unread(
            experiment, standard, ("fusion", "compression"), "is for gradients, and a graph has none; leave it out"
        )
        if graph.num_ranks != experiment.workers:
            found.append(
                f"workers: {experiment.workers} cannot replay a graph of {graph.num_ranks} ranks; allowed: "
                f"{graph.num_ranks}, or a graph that `testbed trace generate --ranks {experiment.workers}` makes"
            )
        if experiment.stack is not None:
            found.append(
                f"stack: {experiment.stack.kind} has no groups and no messages beside its all-reduces; leave it out"
            )
        collective = experiment.collective
        if collective.num_servers or collective.link_bytes("all_reduce", 1024, 4) is not None:
            found.append(
                f"collective: {collective.kind} adds elsewhere than in the workers, and a graph's groups exchange "
                "among themselves; allowed: a collective of workers alone, such as ring"
            )
        return found


@cache
def _graph(text: str) -> Graph:
    """Raises ValueError, which names the node."""
    try:
        return parse_graph(text, File(Path("graph"), b""))
    except SpecError as error:
        raise ValueError(str(error)) from None


@cache
def _parsed(layers: str) -> LayerTable:
    """Raises ValueError, which names the line."""
    try:
        return Layers().parse(lines_of(Path("layers"), layers))
    except SpecError as error:
        raise ValueError(str(error)) from None


@cache
def _table(trace: NetworkName | WrittenTrace, device: DeviceName, batch_size: int | None) -> LayerTable:
    if isinstance(trace, WrittenTrace):
        table = _parsed(trace.layers)
        return table if batch_size is None else table.for_batch(batch_size)
    return network_table(trace, device=device, batch_size=batch_size or DEFAULT_BATCH_SIZE)
