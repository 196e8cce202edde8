"""How gradients are joined into buckets before they are exchanged: as the spec says it, and what comes of it.

Backward makes gradients from the last layer to the first. A bucket goes out as soon as its last gradient is there,
while backward goes on; so buckets decide how much of communication hides behind computation, and how often its fixed
costs are paid. `size`, `layers` and `none` are torch's DistributedDataParallel; for `merged`, `time` and `priority`
gradients go out through an engine of our own (`transports/torch_backend/engine.py`).
"""

from collections.abc import Sequence
from typing import Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from transports.torch_backend.ordering import Grouped, Order, Priority, Timed
from transports.units import Size, Time

FusionKind = Literal["size", "time", "layers", "merged", "none", "priority"]
FusionName = FusionKind | Literal["horovod_5ms", "horovod_1ms"]
"""What a spec may say in one word."""

GRADIENT_ELEMENT_BYTES: Final = 4
"""Gradients are float32."""
_DEFAULT_BYTES: Final[dict[FusionKind, int]] = {"size": 2**20, "time": 2**26, "priority": 2**20}
_DEFAULT_CYCLE_S: Final = 5e-3
_NO_LIMIT_BYTES: Final = 2**53
"""Exact as the floating-point MiB that DistributedDataParallel takes."""
_PRESETS: Final[dict[str, dict[str, object]]] = {
    "horovod_5ms": {"kind": "time", "bytes": "64MiB", "cycle": "5ms"},
    "horovod_1ms": {"kind": "time", "bytes": "128MiB", "cycle": "1ms"},
}
"""Horovod's defaults up to version 0.20, and from 0.21 on."""


class Fusion(BaseModel):
    """How gradients are joined into buckets before they are exchanged, and in which order they go."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    kind: FusionKind = "size"
    """`size`: neighbours until a bucket has `bytes` (DistributedDataParallel).
    `time`: whatever became ready within a `cycle`, up to `bytes` (Horovod; presets `horovod_5ms`, `horovod_1ms`).
    `layers`: each parameter tensor by itself, as soon as its gradient is there (WFBP, Zhang et al. 2017, "Poseidon").
    `merged`: layers joined where that saves time, from the cost of an all-reduce and the time of backward (MG-WFBP, Shi
    et al. 2019).
    `none`: nothing before backward has ended, then all at once; with `collective: cntk` tensor by tensor, as CNTK.
    `priority`: the front layers first, large ones in parts of `bytes`, hidden behind the next forward pass as well
    (ByteScheduler, Peng et al. 2019; P3, Jayarajan et al. 2019)."""
    bucket_bytes: Size | None = Field(
        default_factory=lambda data: _DEFAULT_BYTES.get(data.get("kind", "none")), alias="bytes", ge=1024, le=2**31
    )
    """Of `size`: a bucket is closed when its gradients have reached it; 1MiB where nothing is said. Of `time`: the most
    that is joined; 64MiB. Of `priority`: the most that goes out in one piece; 1MiB. 1KiB to 2GiB."""
    cycle_s: Time | None = Field(
        default_factory=lambda data: _DEFAULT_CYCLE_S if data.get("kind") == "time" else None,
        alias="cycle",
        ge=100e-6,
        le=10,
    )
    """Of `time`: from one look at what is ready to the next; 5ms where nothing is said."""
    backward_s: Time | None = Field(None, alias="backward", gt=0, le=3600)
    """Of `merged`: how long a backward pass takes, which its layers share by their multiplications; where nothing is
    said, as long as they take at 50e9 operations a second, or as the workload says."""

    @model_validator(mode="after")
    def _options_where_they_mean_something(self) -> Self:
        if self.kind in _DEFAULT_BYTES and self.bucket_bytes is None:
            raise ValueError(f"`{self.kind}` needs a size; write one as `bytes`, such as 1MiB")
        if self.kind not in _DEFAULT_BYTES and self.bucket_bytes is not None:
            raise ValueError(
                f"`{self.kind}` joins nothing by size; leave `bytes` out, or write `fusion: {{bytes: ...}}`"
            )
        if self.kind == "time" and self.cycle_s is None:
            raise ValueError("`time` needs a cycle; write one as `cycle`, such as 5ms")
        if self.kind != "time" and self.cycle_s is not None:
            raise ValueError(f"`{self.kind}` has no cycle; leave `cycle` out, or write `kind: time`")
        if self.kind != "merged" and self.backward_s is not None:
            raise ValueError(f"`{self.kind}` asks nothing of backward's time; leave `backward` out, or `kind: merged`")
        return self

    @property
    def by_engine(self) -> bool:
        """Whether DistributedDataParallel cannot do it."""
        return self.kind in ("merged", "time", "priority")

    @property
    def limit_bytes(self) -> int:
        """The size at which a bucket is closed."""
        if self.kind == "layers":
            return 1
        return _NO_LIMIT_BYTES if self.bucket_bytes is None else self.bucket_bytes

    def order(self, buckets: Sequence[int]) -> Order:
        """Of the engine, given the plan's buckets. Raises ValueError where DistributedDataParallel does it."""
        match self.kind:
            case "priority":
                return Priority(partition_bytes=self.limit_bytes)
            case "time":
                assert self.cycle_s is not None
                return Timed(bucket_bytes=self.limit_bytes, cycle_s=self.cycle_s)
            case "merged":
                return Grouped(counts=tuple(buckets))
        raise ValueError(f"{self.kind} is DistributedDataParallel's")


def parse_fusion(value: object) -> object:
    """`"layers"` stands for `{"kind": "layers"}`. Raises ValueError for what is neither that nor a mapping."""
    if isinstance(value, str) and value in (*get_args(FusionKind), *_PRESETS):
        return _PRESETS.get(value, {"kind": value})
    if isinstance(value, dict | Fusion):
        return value
    raise ValueError(
        f"allowed: {', '.join(sorted((*get_args(FusionKind), *_PRESETS)))}, or a mapping such as {{bytes: 1MiB}}"
    )
