"""Nothing before backward has ended, then all at once; with `collective: cntk` tensor by tensor, as CNTK."""

from typing import ClassVar, Final

from testbed.experiment.fusion.base import FUSIONS, Fusion

_NO_LIMIT_BYTES: Final = 2**53
"""Exact as the floating-point MiB that DistributedDataParallel takes."""


@FUSIONS.register
class WholeGradient(Fusion):
    """One bucket, and so no overlap."""

    whole_gradient: ClassVar[bool] = True

    @property
    def limit_bytes(self) -> int:
        """No gradient reaches it."""
        return _NO_LIMIT_BYTES

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return "all after backward"
