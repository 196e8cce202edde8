"""The models that training can name: their shape as data, and the same shape as a torch module.

The plan reads the shape (how many parameters, in what order) without importing torch; the worker builds the
module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import nn

_KERNEL: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidualNetwork:
    """Convolution, residual blocks, a pooling that halves the image, more residual blocks, one linear layer.

    What it learns depends on what is summed, not on the order of the sums, so that runs with different numbers of
    workers and collectives can be compared. Without batch normalisation the mean of the workers' gradients is the
    gradient of the whole batch. Each block's second convolution and the last layer start at zero (Zhang, Dauphin, Ma
    2019, "Fixup Initialization"), and nothing in it has a kink: with ReLU, maximum pooling or the usual
    initialisation rounding errors of 1e-7 were seen to grow to 1e-4 and beyond in the loss within 50 iterations.
    """

    width: int
    """Channels of every convolution."""
    blocks_before_pooling: int
    blocks_after_pooling: int
    image_side: int
    """Images are square, of one channel."""
    num_classes: int

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """The shape of each parameter, in the order the module registers them."""
        convolution = [(self.width, self.width, _KERNEL, _KERNEL), (self.width,)]
        stem = [(self.width, 1, _KERNEL, _KERNEL), (self.width,)]
        num_convolutions = 2 * (self.blocks_before_pooling + self.blocks_after_pooling)
        head = [(self.num_classes, self._num_features), (self.num_classes,)]
        return [*stem, *(convolution * num_convolutions), *head]

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of each parameter, in the order in which their gradients become ready: from the last layer to the first, in a
        convolution the weight's before the bias', in the linear layer the other way round."""
        *layers, head_weight, head_bias = self.parameter_shapes()
        convolutions = list(zip(layers[::2], layers[1::2], strict=True))
        return [head_bias, head_weight, *(shape for convolution in reversed(convolutions) for shape in convolution)]

    def parameter_counts(self) -> Sequence[int]:
        """Elements of each."""
        return [prod(shape) for shape in self.parameter_shapes()]

    def layer_multiplications(self) -> Sequence[int]:
        """Of one image's forward pass, in each layer (:func:`transports.torch_backend.ordering.layers_of`)."""
        before = [self.image_side**2] * (1 + 2 * self.blocks_before_pooling)
        after = [(self.image_side // 2) ** 2] * (2 * self.blocks_after_pooling)
        weights = [prod(shape) for shape in self.parameter_shapes() if len(shape) > 1]
        return [count * places for count, places in zip(weights, [*before, *after, 1], strict=True)]

    @property
    def _num_features(self) -> int:
        return self.width * (self.image_side // 2) ** 2

    def build(self) -> "nn.Module":
        """The module, its weights drawn from torch's global generator."""
        from torch import nn

        from testbed.experiment.workloads._residual_block import ResidualBlock

        head = nn.Linear(self._num_features, self.num_classes)
        nn.init.zeros_(head.weight)
        return nn.Sequential(
            nn.Conv2d(1, self.width, _KERNEL, padding=1),
            nn.SiLU(),
            *(ResidualBlock(self.width, _KERNEL) for _ in range(self.blocks_before_pooling)),
            nn.AvgPool2d(2),
            *(ResidualBlock(self.width, _KERNEL) for _ in range(self.blocks_after_pooling)),
            nn.SiLU(),
            nn.Flatten(),
            head,
        )


MODELS: Final = {
    # 4.8 MB of gradients, no parameter above 0.6 MB, about 0.1 s of one core per iteration of 64 images: next
    # to a 100 Mbit/s link the two take times of the same order, so that there is overlap to see.
    "cnn": ResidualNetwork(width=128, blocks_before_pooling=2, blocks_after_pooling=2, image_side=8, num_classes=10),
}
