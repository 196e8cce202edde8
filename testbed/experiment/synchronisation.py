"""When workers tell each other what they have learned: in every iteration, now and then, or without waiting. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from testbed.errors import SpecError
from testbed.experiment.fusion import GRADIENT_ELEMENT_BYTES
from transports.channels.base import Channel
from transports.channels.framing import STALENESS_BYTES
from transports.collectives.parameter_server import ParameterServer
from transports.collectives.schedules.segments import parts

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment

SynchronisationKind = Literal["every_iteration", "local_sgd", "asynchronous"]

_DEFAULT_EVERY = 8


class Synchronisation(BaseModel):
    """How far workers' models may drift apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: SynchronisationKind = "every_iteration"
    """`every_iteration`: the mean of all gradients, before each step.
    `local_sgd`: workers step by themselves and average their parameters after every so many iterations (Stich 2019,
    "Local SGD Converges Fast and Communicates Little"), and after the last one.
    `asynchronous`: workers push gradients to parameter servers, which step at once, and pull parameters, without
    waiting for each other (Dean et al. 2012, Downpour SGD). Needs `collective: parameter_server`. Each gradient is
    applied at the whole learning rate: where training diverges, divide it by the number of workers."""
    every: int | None = Field(
        default_factory=lambda data: _DEFAULT_EVERY if data.get("kind") == "local_sgd" else None, ge=1, le=100_000
    )
    """Of `local_sgd`: iterations from one averaging to the next; 8 where nothing is said."""

    @model_validator(mode="after")
    def _every_where_it_means_something(self) -> Self:
        if (self.kind == "local_sgd") != (self.every is not None):
            raise ValueError(
                "`local_sgd` averages `every` so many iterations; write a number"
                if self.kind == "local_sgd"
                else f"`{self.kind}` has no `every`; leave it out, or write `kind: local_sgd`"
            )
        return self

    def num_exchanges(self, num_iterations: int) -> int:
        """In a phase of so many iterations, at whose end workers agree once more."""
        return -(-num_iterations // (self.every or 1))


def parse_synchronisation(value: object) -> object:
    """`"local_sgd"` stands for `{"kind": "local_sgd"}`. Raises ValueError for what is neither that nor a mapping."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict | Synchronisation):
        return value
    raise ValueError("a synchronisation is every_iteration, local_sgd, asynchronous, or {kind: local_sgd, every: 8}")


def require_synchronisable(experiment: "Experiment") -> None:
    """Raises SpecError where the rest of the spec does not go with the way workers synchronise."""
    kind = experiment.synchronisation.kind
    if kind == "every_iteration":
        return
    where = f"synchronisation: {kind}"
    if reason := experiment.workload.synchronisation_refusal():
        raise SpecError(f"{where} {reason}")
    if experiment.compression.kind != "none":
        raise SpecError(
            f"{where} exchanges parameters, and compression {experiment.compression.kind} is made for gradients; leave "
            "one of them out"
        )
    if kind == "local_sgd":
        if experiment.fusion.by_engine:
            raise SpecError(
                f"{where} averages parameters when the optimizer has stepped, so that fusion {experiment.fusion.kind} "
                "has nothing to order; allowed: size, layers, none"
            )
        return
    collective = experiment.collective
    if experiment.stack is not None or not isinstance(collective, ParameterServer) or not collective.num_servers:
        raise SpecError(f"{where} needs servers of its own: write `collective: parameter_server`, and no stack")
    if collective.pipelined:
        raise SpecError(f"{where} answers a gradient that has come whole; leave collective.pipelined out")
    if experiment.fusion.kind != "none":
        raise SpecError(f"{where} pushes a gradient when backward has ended; write `fusion: none`")


def asynchronous_traffic(
    names: Sequence[str], num_workers: int, num_elements: int, channel: Channel, mtu: int
) -> dict[tuple[str, str], int]:
    """Wire bytes from participant to participant when each worker pushes and pulls once."""
    traffic = {}
    servers = names[num_workers:]
    for server, (_, count) in zip(servers, parts(num_elements, len(servers)), strict=True):
        shard_bytes = GRADIENT_ELEMENT_BYTES * count + channel.header_bytes
        pulled_bytes = shard_bytes + STALENESS_BYTES + channel.header_bytes
        for worker in names[:num_workers]:
            traffic[worker, server] = channel.wire_bytes(shard_bytes, mtu).forward
            traffic[server, worker] = channel.wire_bytes(pulled_bytes, mtu).forward
    return traffic


def asynchronous_time_s(
    num_elements: int, *, num_workers: int, num_servers: int, goodput_bps: float, alpha_s: float
) -> tuple[float, float]:
    """The least time for one iteration's push and pull, and the expected one: a worker by itself pushes, then pulls,
    over its own link; all together they share the servers' links, which carry both directions at once."""
    size_s = GRADIENT_ELEMENT_BYTES * num_elements * 8 / goodput_bps
    alone_s = 2 * size_s + 2 * alpha_s
    return max(2 * size_s, size_s * num_workers / num_servers), max(alone_s, size_s * num_workers / num_servers)
