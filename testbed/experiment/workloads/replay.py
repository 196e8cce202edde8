"""A trace: the layers of a known network as a device would compute them, or a file of somebody's measurements."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from testbed.errors import SpecError
from testbed.experiment.iterative import Replayed
from testbed.experiment.workloads.base import WORKLOADS
from testbed.traces.derived import DEVICES, DeviceName, derived_table
from testbed.traces.formats.base import lines_of, read_trace
from testbed.traces.formats.layers import Layers, layers_text
from testbed.traces.networks import NetworkName
from testbed.traces.table import LayerTable

_DEFAULT_DEVICE: Final[DeviceName] = "v100"
_DEFAULT_BATCH_SIZE: Final = 32


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


@WORKLOADS.register
class Replay(Replayed):
    """`{trace: resnet50, batch_size: 32, device: v100}`."""

    trace: Annotated[
        NetworkName | WrittenTrace,
        WithJsonSchema({"anyOf": [{"enum": list(get_args(NetworkName))}, {"type": ["string", "object"]}]}),
    ]
    """`alexnet`, `bert_base`, `googlenet`, `gpt2`, `mobilenet`, `resnet50`, `resnet101` or `vgg16`, whose times are
    derived from the multiplications of their layers; or a file in any of the formats that `testbed trace list` names,
    from the directory in which the command runs."""
    device: DeviceName | None = None
    """Of a network named: `v100`, also where nothing is said. A file says what was recorded."""
    batch_size: int | None = Field(None, ge=1, le=65536)
    """Samples per worker and iteration: forward and backward take a time in proportion. 32 of a network where nothing
    is said; those of the file, if it says how many it was recorded with."""

    @field_validator("trace", mode="before")
    @classmethod
    def _read(cls, trace: object) -> object:
        """A file's contents in place of its path."""
        names = get_args(NetworkName)
        if not isinstance(trace, str) or trace in names:
            return trace
        if not Path(trace).is_file():
            raise ValueError(f"{trace!r} is neither a network nor a file; allowed: {', '.join(names)}, or a file")
        return {"file": trace, "layers": layers_text(read_trace(Path(trace)))}

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, data: Any) -> Any:
        """What is not said, said, so that a resolved spec depends on no default."""
        if not isinstance(data, Mapping) or data.get("trace") not in get_args(NetworkName):
            return data
        return {
            **data,
            "device": _DEFAULT_DEVICE if data.get("device") is None else data["device"],
            "batch_size": _DEFAULT_BATCH_SIZE if data.get("batch_size") is None else data["batch_size"],
        }

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not isinstance(self.trace, WrittenTrace):
            return self
        if self.device is not None:
            raise ValueError("device: a file says what was recorded, on whatever device; leave it out")
        table = _parsed(self.trace.layers)
        if self.batch_size is not None and table.batch_size is None:
            raise ValueError(
                f"batch_size: {self.trace.file} does not say of how many samples its times are; leave it out, or write "
                "`# batch_size=32` at the head of a file of the format `layers` (`testbed trace convert`)"
            )
        for layer in table.layers:
            _ = layer.tensors  # raises ValueError
        return self

    def layer_table(self) -> LayerTable:
        """The trace's table of layers, at the batch size requested."""
        return _table(self.trace, self.device or _DEFAULT_DEVICE, self.batch_size)

    def origin(self) -> str:
        """The network and the device, or the file."""
        if isinstance(self.trace, WrittenTrace):
            return self.trace.file
        device = DEVICES[self.device or _DEFAULT_DEVICE]
        measured = "that device's totals" if self.trace in device.totals else "the rate of ResNet-50 there"
        return f"{self.trace} on {self.device}, batch {self.batch_size} (derived from {measured})"


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
    return derived_table(trace, device=device, batch_size=batch_size or _DEFAULT_BATCH_SIZE)
