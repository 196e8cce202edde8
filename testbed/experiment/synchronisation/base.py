"""When workers tell each other what they have learned: in every iteration, now and then, or without waiting. Pure."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
