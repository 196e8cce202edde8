"""Parameters of well-known networks, as shapes: what an exchange of their gradients costs, without computing them.

Layer by layer, the first one first; a layer is the shape of its weight as a matrix, with the lengths of the vectors
that come after it: biases, and scale and shift of the normalisation.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Literal

NetworkName = Literal["resnet50", "vgg16", "mobilenet"]
Shape = tuple[int, ...]


def _convolution(inputs: int, outputs: int, kernel: int, *, bias: bool = False) -> list[Shape]:
    """With batch normalisation behind it."""
    return [(outputs, inputs * kernel**2), *[(outputs,)] * (3 if bias else 2)]


def _linear(inputs: int, outputs: int) -> list[Shape]:
    return [(outputs, inputs), (outputs,)]


def _resnet50() -> Iterator[list[Shape]]:
    """He, Zhang, Ren, Sun 2016, "Deep Residual Learning for Image Recognition" (CVPR), table 1."""
    yield _convolution(3, 64, 7)
    inputs = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            yield _convolution(inputs, width, 1)
            yield _convolution(width, width, 3)
            yield _convolution(width, 4 * width, 1)
            if block == 0:
                yield _convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    yield _linear(inputs, 1000)


def _vgg16() -> Iterator[list[Shape]]:
    """Simonyan, Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (ICLR), column D,
    with batch normalisation."""
    inputs = 3
    for width, num_convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(num_convolutions):
            yield _convolution(inputs, width, 3, bias=True)
            inputs = width
    yield _linear(512 * 7 * 7, 4096)
    yield _linear(4096, 4096)
    yield _linear(4096, 1000)


def _mobilenet() -> Iterator[list[Shape]]:
    """Howard et al. 2017, "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications"."""
    yield _convolution(3, 32, 3)
    inputs = 32
    for width in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        yield _convolution(1, inputs, 3)  # of each channel by itself
        yield _convolution(inputs, width, 1)
        inputs = width
    yield _linear(inputs, 1000)


NETWORKS: Final[dict[NetworkName, Sequence[Shape]]] = {
    "resnet50": tuple(chain(*_resnet50())),
    "vgg16": tuple(chain(*_vgg16())),
    "mobilenet": tuple(chain(*_mobilenet())),
}


def shrunk(shape: Shape, scale: float) -> Shape:
    """With that share of its rows, at least one."""
    return (max(1, round(shape[0] * scale)), *shape[1:])
