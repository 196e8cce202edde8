"""How gradients are joined into buckets before they are exchanged: as the spec says it, and what comes of it.

Backward makes gradients from the last layer to the first. A bucket goes out as soon as its last gradient is there,
while backward goes on; so buckets decide how much of communication hides behind computation, and how often its fixed
costs are paid.
"""

from collections.abc import Sequence
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from transports.units import Size

FusionKind = Literal["merged", "layers", "none"]

GRADIENT_ELEMENT_BYTES: Final = 4
"""Gradients are float32."""
_DEFAULT_BYTES: Final = 2**20
_NO_LIMIT_BYTES: Final = 2**53
"""Exact as the floating-point MiB that DistributedDataParallel takes."""


class Fusion(BaseModel):
    """How gradients are joined into buckets before they are exchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    kind: FusionKind = "merged"
    """`merged`: neighbours until a bucket has `bytes` (DistributedDataParallel, Horovod; MG-WFBP, Shi et al. 2019).
    `layers`: each parameter tensor by itself, as soon as its gradient is there (WFBP, Zhang et al. 2017, "Poseidon").
    `none`: nothing before backward has ended, then all at once; with `collective: cntk` tensor by tensor, as CNTK."""
    bucket_bytes: Size | None = Field(
        default_factory=lambda data: _DEFAULT_BYTES if data.get("kind") == "merged" else None,
        alias="bytes",
        ge=1024,
        le=2**31,
    )
    """Of `merged`: a bucket is closed when its gradients have reached this size; 1KiB to 2GiB, 1MiB where nothing is
    said. One bucket for each tensor is `fusion: layers`."""

    @model_validator(mode="after")
    def _bytes_where_merged(self) -> Self:
        if self.kind == "merged" and self.bucket_bytes is None:
            raise ValueError("`merged` joins by size; write a size as `bytes`, such as 1MiB")
        if self.kind != "merged" and self.bucket_bytes is not None:
            raise ValueError(
                f"`{self.kind}` joins nothing by size; leave `bytes` out, or write `fusion: {{bytes: ...}}`"
            )
        return self

    @property
    def limit_bytes(self) -> int:
        """The size at which DistributedDataParallel closes a bucket."""
        if self.kind == "merged":
            assert self.bucket_bytes is not None
            return self.bucket_bytes
        return 1 if self.kind == "layers" else _NO_LIMIT_BYTES


def parse_fusion(value: object) -> object:
    """`"layers"` stands for `{"kind": "layers"}`. Raises ValueError for what is neither that nor a mapping."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, dict | Fusion):
        return value
    raise ValueError("a fusion is layers, none, or {bytes: 1MiB}")


def fuse(gradient_counts: Sequence[int], limit_bytes: int) -> tuple[int, ...]:
    """Elements per bucket as DistributedDataParallel forms them: gradients join in the order they become ready,
    and a bucket closes when it has reached the limit (torch's `_compute_bucket_assignment_by_size`)."""
    buckets: list[int] = []
    filled = 0
    for count in gradient_counts:
        filled += count
        if filled * GRADIENT_ELEMENT_BYTES >= limit_bytes:
            buckets.append(filled)
            filled = 0
    return tuple([*buckets, filled] if filled else buckets)
