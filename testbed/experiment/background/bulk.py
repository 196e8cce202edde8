"""TCP that never has enough: backups, model downloads, another training job."""

from typing import ClassVar, Literal

from pydantic import Field

from testbed.experiment.background.base import BACKGROUNDS, Background


@BACKGROUNDS.register
class Bulk(Background):
    """As much as its streams get through; its congestion control is the routes', as the experiment's."""

    streams: int = Field(1, ge=1, le=64)
    """Connections: each asks for a share of its own."""

    protocol: ClassVar[Literal["udp", "tcp"]] = "tcp"

    def source_arguments(self, *, seed: int) -> tuple[str, ...]:  # noqa: ARG002
        """The number of streams; nothing is drawn."""
        return (str(self.streams),)

    def offered_bps(self) -> float | None:
        """None: the flow sends as much as it gets."""
        return None

    def text(self) -> str:
        """The streams."""
        return f"{self.streams} TCP stream{'s' if self.streams > 1 else ''}"
