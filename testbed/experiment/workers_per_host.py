"""Several workers on one host: they share its link to the network, each reaching it over a link inside the host."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from testbed.experiment.link import UNSHAPED_BPS, LinkOverride, LinkSpec

_UNSHAPED: Final = LinkSpec.model_validate({}).model_copy(update={"rate_bps": UNSHAPED_BPS})


def _parse_link(value: Any) -> Any:
    if isinstance(value, Mapping):  # validated here, so that an error names its key and not the kinds there are
        return LinkOverride.model_validate(dict(value))
    if value == "unshaped" or isinstance(value, LinkOverride):
        return value
    raise ValueError(f"{value!r} is no link; write unshaped, or settings such as {{rate: 10gbit}}")


class WorkersPerHost(BaseModel):
    """How many workers share a host, and what lies between them and it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(1, ge=1, le=64)
    """1: every worker is a host of its own. More: host `h0` has that many workers, and `link` is the host's."""
    link: Annotated[
        Literal["unshaped"] | LinkOverride,
        BeforeValidator(_parse_link, json_schema_input_type=Literal["unshaped"] | LinkOverride),
    ] = "unshaped"
    """Between a worker and its host: as fast as the machine is, or that with some settings: `{rate: 10gbit}`."""

    @model_validator(mode="after")
    def _link_of_something(self) -> Self:
        if self.count == 1 and self.link != "unshaped":
            raise ValueError("link: with one worker per host there is no link inside; allowed: a count of 2 or more")
        return self

    @property
    def intra_host(self) -> LinkSpec:
        """The configuration of the links between a host and its workers."""
        return _UNSHAPED if self.link == "unshaped" else _UNSHAPED.overridden(self.link)

    def num_hosts(self, num_workers: int) -> int:
        """The last host may have fewer workers."""
        return -(-num_workers // self.count)


def parse_workers_per_host(value: Any) -> Any:
    """`4` stands for `{count: 4}`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    if isinstance(value, Mapping | WorkersPerHost):
        return value
    raise ValueError(f"{value!r} is no number of workers; write 4, or {{count: 4, link: {{rate: 10gbit}}}}")
