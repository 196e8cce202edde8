"""Each parameter tensor by itself, as soon as its gradient is there (WFBP, Zhang et al. 2017, "Poseidon")."""

from testbed.experiment.fusion.base import FUSIONS, Fusion


@FUSIONS.register
class Layers(Fusion):
    """No fusion: wait-free backpropagation."""

    @property
    def limit_bytes(self) -> int:
        """1: any gradient fills a bucket."""
        return 1

    @property
    def text(self) -> str:
        """See :class:`Fusion`."""
        return "layer by layer"
