"""Well-known networks, layer by layer: the shapes of their parameters and the multiplications of a forward pass.

What an exchange of their gradients costs follows from the shapes, without computing anything; how a device's time is
shared among layers follows from the multiplications (`derived.py`). Names of images' layers are those of torchvision
where it has the network.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal, NamedTuple

from testbed.traces.table import Shape

NetworkName = Literal["alexnet", "bert_base", "googlenet", "gpt2", "mobilenet", "resnet50", "resnet101", "vgg16"]


class NetworkLayer(NamedTuple):
    """A layer, with whatever follows it that has no multiplications of its own (normalisation, activation)."""

    name: str
    shapes: tuple[Shape, ...]
    """Of its parameters: the weight as a matrix, then vectors, such as the bias, or scale and shift of a normalisation;
    none for a layer that uses the parameters of another."""
    num_multiplications: int
    """Of the forward pass of one sample."""

    @property
    def num_parameters(self) -> int:
        """Elements of all its tensors."""
        return sum(map(prod, self.shapes))


@dataclass(slots=True)
class _Images:
    """Layers of a network of images, one after the other; the size of what flows is kept along the way."""

    channels: int = 3
    size: int = 224
    layers: list[NetworkLayer] = field(default_factory=list)

    def convolution(
        self,
        name: str,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        by_channel: bool = False,
        vectors: int = 2,
        inputs: int | None = None,
    ) -> None:
        """With `vectors` of its outputs' length behind it: 2 of a normalisation, 1 of a bias. `inputs` where it starts
        from other channels than those that flowed last; without padding given it keeps the size, but for the stride."""
        inputs = self.channels if inputs is None else inputs
        padding = kernel // 2 if padding is None else padding
        self.size = (self.size + 2 * padding - kernel) // stride + 1
        weight = (outputs, (1 if by_channel else inputs) * kernel**2)
        self.layers.append(NetworkLayer(name, (weight, *[(outputs,)] * vectors), prod(weight) * self.size**2))
        self.channels = outputs

    def pool(self, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False) -> None:
        """Makes what flows smaller."""
        self.size = (self.size + 2 * padding - kernel + (stride - 1 if ceil else 0)) // stride + 1

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        """Add a linear layer with a bias."""
        self.layers.append(_linear(name, inputs, outputs))


def _linear(name: str, inputs: int, outputs: int, *, positions: int = 1) -> NetworkLayer:
    """With a bias; at each of that many positions of a sequence."""
    return NetworkLayer(name, ((outputs, inputs), (outputs,)), inputs * outputs * positions)


def _resnet(blocks: Sequence[int]) -> Iterator[NetworkLayer]:
    """He, Zhang, Ren, Sun 2016, "Deep Residual Learning for Image Recognition" (CVPR), table 1; strides as torchvision
    has them, in the middle convolution of a block."""
    images = _Images()
    images.convolution("conv1", 64, 7, stride=2)
    images.pool(3, 2, padding=1)
    for stage, (width, num_blocks) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), 1):
        for block in range(num_blocks):
            name, inputs, stride = f"layer{stage}.{block}", images.channels, 2 if block == 0 and stage > 1 else 1
            images.convolution(f"{name}.conv1", width, 1)
            images.convolution(f"{name}.conv2", width, 3, stride=stride)
            images.convolution(f"{name}.conv3", 4 * width, 1)
            if block == 0:
                images.convolution(f"{name}.downsample", 4 * width, 1, inputs=inputs)
    images.linear("fc", images.channels, 1000)
    yield from images.layers


def _vgg16() -> Iterator[NetworkLayer]:
    """Simonyan, Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (ICLR), column D,
    with batch normalisation."""
    images = _Images()
    number = 0
    for width, num_convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(num_convolutions):
            images.convolution(f"conv{number}", width, 3, vectors=3)
            number += 1
        images.pool(2, 2)
    images.linear("fc0", 512 * 7 * 7, 4096)
    images.linear("fc1", 4096, 4096)
    images.linear("fc2", 4096, 1000)
    yield from images.layers


def _alexnet() -> Iterator[NetworkLayer]:
    """Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997), as
    torchvision has it."""
    images = _Images()
    images.convolution("conv0", 64, 11, stride=4, padding=2, vectors=1)
    images.pool(3, 2)
    images.convolution("conv1", 192, 5, vectors=1)
    images.pool(3, 2)
    for number, width in enumerate((384, 256, 256), 2):
        images.convolution(f"conv{number}", width, 3, vectors=1)
    images.pool(3, 2)
    images.linear("fc0", 256 * 6 * 6, 4096)
    images.linear("fc1", 4096, 4096)
    images.linear("fc2", 4096, 1000)
    yield from images.layers


_INCEPTIONS: Final[dict[str, tuple[int, int, int, int, int, int]]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of each branch's convolutions."""


def _googlenet() -> Iterator[NetworkLayer]:
    """Szegedy et al. 2015, "Going Deeper with Convolutions" (CVPR), table 1, as torchvision has it: normalised, kernels
    of 3 in place of 5, without the auxiliary classifiers."""
    images = _Images()
    images.convolution("conv1", 64, 7, stride=2)
    images.pool(3, 2, ceil=True)
    images.convolution("conv2", 64, 1)
    images.convolution("conv3", 192, 3)
    images.pool(3, 2, ceil=True)
    for name, (whole, before_three, three, before_five, five, pooled) in _INCEPTIONS.items():
        inputs = images.channels
        images.convolution(f"inception{name}.branch1", whole, 1, inputs=inputs)
        images.convolution(f"inception{name}.branch2.0", before_three, 1, inputs=inputs)
        images.convolution(f"inception{name}.branch2.1", three, 3)
        images.convolution(f"inception{name}.branch3.0", before_five, 1, inputs=inputs)
        images.convolution(f"inception{name}.branch3.1", five, 3)
        images.convolution(f"inception{name}.branch4", pooled, 1, inputs=inputs)
        images.channels = whole + three + five + pooled
        if name == "3b":
            images.pool(3, 2, ceil=True)
        if name == "4e":
            images.pool(2, 2, ceil=True)
    images.linear("fc", images.channels, 1000)
    yield from images.layers


def _mobilenet() -> Iterator[NetworkLayer]:
    """Howard et al. 2017, "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", table
    1."""
    images = _Images()
    images.convolution("conv0", 32, 3, stride=2)
    widths = (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    for number, (width, stride) in enumerate(zip(widths, strides, strict=True), 1):
        images.convolution(f"conv{number}.depthwise", images.channels, 3, stride=stride, by_channel=True)
        images.convolution(f"conv{number}.pointwise", width, 1)
    images.linear("fc", images.channels, 1000)
    yield from images.layers


def _transformer_block(name: str, width: int, positions: int) -> Iterator[NetworkLayer]:
    """Attention and two linear layers, each normalised."""
    norm = ((width,), (width,))
    yield _linear(f"{name}.attention.query_key_value", width, 3 * width, positions=positions)
    yield NetworkLayer(f"{name}.attention.scores", (), 2 * positions**2 * width)
    projection = _linear(f"{name}.attention.projection", width, width, positions=positions)
    yield projection._replace(shapes=(*projection.shapes, *norm))
    yield _linear(f"{name}.mlp.up", width, 4 * width, positions=positions)
    down = _linear(f"{name}.mlp.down", 4 * width, width, positions=positions)
    yield down._replace(shapes=(*down.shapes, *norm))


_BERT_POSITIONS: Final = 128
_GPT2_POSITIONS: Final = 1024


def _bert_base() -> Iterator[NetworkLayer]:
    """Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (NAACL),
    base and uncased, with its pooler; sequences of 128 tokens, as most of its pre-training has them."""
    width = 768
    yield NetworkLayer("embeddings", ((30522, width), (512, width), (2, width), (width,), (width,)), 0)
    for block in range(12):
        yield from _transformer_block(f"layer{block}", width, _BERT_POSITIONS)
    yield _linear("pooler", width, width)


def _gpt2() -> Iterator[NetworkLayer]:
    """Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", the smallest; sequences of 1024
    tokens. The last layer multiplies with the embedding's weights, whose gradients are complete with the first
    layer."""
    width, vocabulary = 768, 50257
    yield NetworkLayer("wte", ((vocabulary, width),), 0)
    yield NetworkLayer("wpe", ((_GPT2_POSITIONS, width),), 0)
    for block in range(12):
        yield from _transformer_block(f"h{block}", width, _GPT2_POSITIONS)
    yield NetworkLayer("ln_f", ((width,), (width,)), 0)
    yield NetworkLayer("lm_head", (), vocabulary * width * _GPT2_POSITIONS)


_NETWORKS: Final[dict[NetworkName, Callable[[], Iterator[NetworkLayer]]]] = {
    "alexnet": _alexnet,
    "bert_base": _bert_base,
    "googlenet": _googlenet,
    "gpt2": _gpt2,
    "mobilenet": _mobilenet,
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "vgg16": _vgg16,
}


def network(name: NetworkName) -> tuple[NetworkLayer, ...]:
    """The layers of the network of that name, in the order of the forward pass."""
    return tuple(_NETWORKS[name]())


def parameter_shapes(name: NetworkName) -> tuple[Shape, ...]:
    """The shapes of all the network's parameters, in the order of the forward pass."""
    return tuple(shape for layer in network(name) for shape in layer.shapes)
