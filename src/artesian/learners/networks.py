"""The papers' networks by name. Importing this needs no torch; calling one of them does.

Pooling stands before ReLU: the same result for less work. Parameter counts are those of the sizes in the docstrings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from artesian.errors import MissingExtra

if TYPE_CHECKING:
    from torch import nn


def cnn(channels: int = 1, classes: int = 10, size: int = 28, padding: int = 0, hidden: int = 512) -> nn.Module:
    """Two 5x5 convolutions (32, 64), each halved by pooling, dense 512: 582,026 parameters for 1x28x28, 10 classes."""
    _check_sizes(channels=channels, classes=classes, size=size, hidden=hidden)
    nn = _nn()
    side = ((size + 2 * padding - 4) // 2 + 2 * padding - 4) // 2
    if side < 1:
        raise ValueError(f"size = {size} is too small: two 5x5 convolutions leave nothing")
    return _chain(
        conv1=nn.Conv2d(channels, 32, 5, padding=padding),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(32, 64, 5, padding=padding),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(inplace=True),
        flat=nn.Flatten(),
        dense=nn.Linear(64 * side * side, hidden),
        relu3=nn.ReLU(inplace=True),
        output=nn.Linear(hidden, classes),
    )


def cnn_padded(channels: int = 1, classes: int = 10, size: int = 28) -> nn.Module:
    """The same with padding 2, only pooling shrinks the image: 1,663,370 parameters, 1,671,578 for 26 letters."""
    return cnn(channels, classes, size, padding=2)


def cnn_wide(channels: int = 1, classes: int = 10, size: int = 28) -> nn.Module:
    """FlexCFL's for FashionMNIST, padded, dense 1024: 3,274,634 parameters."""
    return cnn(channels, classes, size, padding=2, hidden=1024)


def cnn_small(channels: int = 1, classes: int = 10, size: int = 28, dropout: float = 0.5) -> nn.Module:
    """FlexCFL's for MNIST, two padded 3x3 convolutions (32, 64) and no hidden dense layer: 50,186 parameters."""
    _check_sizes(channels=channels, classes=classes, size=size)
    nn = _nn()
    if size < 4:
        raise ValueError(f"size = {size} is too small: it is halved twice")
    return _chain(
        conv1=nn.Conv2d(channels, 32, 3, padding=1),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(32, 64, 3, padding=1),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(inplace=True),
        dropout=nn.Dropout(dropout),
        flat=nn.Flatten(),
        output=nn.Linear(64 * (size // 4) ** 2, classes),
    )


def cnn_casa(
    channels: int = 1,
    classes: int = 10,
    size: int = 28,
    widths: Sequence[int] = (64, 64),
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.5,
) -> nn.Module:
    """CASA's for MNIST, two 5x5 convolutions (64, 64), dense 128 and 64: 244,234 parameters."""
    (first, second), (one, two) = _pair("widths", widths), _pair("hidden", hidden)
    _check_sizes(channels=channels, classes=classes, size=size)
    nn = _nn()
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"size = {size} is too small: two 5x5 convolutions leave nothing")
    return _chain(
        conv1=nn.Conv2d(channels, first, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(first, second, 5),
        dropout=nn.Dropout2d(dropout),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(inplace=True),
        flat=nn.Flatten(),
        dense1=nn.Linear(second * side * side, one),
        relu3=nn.ReLU(inplace=True),
        dense2=nn.Linear(one, two),
        relu4=nn.ReLU(inplace=True),
        output=nn.Linear(two, classes),
    )


def cnn_casa_cifar(channels: int = 3, classes: int = 10, size: int = 32) -> nn.Module:
    """CASA's for CIFAR-10, dense 120 and 64, without dropout: 307,842 parameters."""
    return cnn_casa(channels, classes, size, hidden=(120, 64), dropout=0.0)


def cnn_casa_letters(channels: int = 1, classes: int = 62, size: int = 28) -> nn.Module:
    """CASA's for FEMNIST, convolutions of 4 and 12, dense 120 and 100: 42,838 parameters."""
    return cnn_casa(channels, classes, size, widths=(4, 12), hidden=(120, 100), dropout=0.0)


def resnet18(channels: int = 3, classes: int = 10) -> nn.Module:
    """ResNet-18 in CIFAR's form, a 3x3 stem without pooling: 11,173,962 parameters for 3 channels, 10 classes."""
    _check_sizes(channels=channels, classes=classes)
    nn = _nn()
    from artesian.learners.residual import Block

    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b, stride=2 if b > a else 1) for a, b in pairwise(widths)]
    return _chain(
        conv=nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        blocks=nn.Sequential(*blocks),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        output=nn.Linear(512, classes),
    )


def mlp(features: int = 784, classes: int = 10, hidden: Sequence[int] = (200,)) -> nn.Module:
    """Dense layers with ReLU between them: 159,010 parameters for 784-200-10."""
    widths = [features, *([hidden] if isinstance(hidden, int) else hidden)]
    _check_sizes(features=features, classes=classes, **{f"hidden[{i}]": w for i, w in enumerate(widths[1:])})
    nn = _nn()
    layers: dict[str, Any] = {"flat": nn.Flatten()}
    for i, (inputs, outputs) in enumerate(pairwise(widths), 1):
        layers |= {f"dense{i}": nn.Linear(inputs, outputs), f"relu{i}": nn.ReLU(inplace=True)}
    return _chain(**layers, output=nn.Linear(widths[-1], classes))


def mclr(features: int = 784, classes: int = 10) -> nn.Module:
    """Multinomial logistic regression: 7,850 parameters for 784 features and 10 classes."""
    _check_sizes(features=features, classes=classes)
    return _chain(flat=_nn().Flatten(), dense=_nn().Linear(features, classes))


def linear(features: int = 10, bias: bool = True) -> nn.Module:
    """Linear regression: one number for each sample."""
    _check_sizes(features=features)
    return _chain(flat=_nn().Flatten(), dense=_nn().Linear(features, 1, bias=bias))


def har(features: int = 900, classes: int = 5, hidden: int = 300) -> nn.Module:
    """Human activities, dense 900-300-C with ReLU: 271,805 parameters for 5 classes, 271,203 for 3."""
    return mlp(features, classes, (hidden,))


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "cnn": cnn,
    "cnn-casa": cnn_casa,
    "cnn-casa-cifar": cnn_casa_cifar,
    "cnn-casa-letters": cnn_casa_letters,
    "cnn-padded": cnn_padded,
    "cnn-small": cnn_small,
    "cnn-wide": cnn_wide,
    "har": har,
    "linear": linear,
    "mclr": mclr,
    "mlp": mlp,
    "resnet18": resnet18,
}
REGRESSIONS = ("linear",)  # the others classify


def _nn() -> Any:
    try:
        from torch import nn
    except ModuleNotFoundError:
        raise MissingExtra("torch", "torch") from None
    return nn


def _chain(**layers: Any) -> nn.Module:
    network: nn.Module = _nn().Sequential(OrderedDict(layers))
    return network


def _pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    if isinstance(sizes, int) or len(sizes) != 2:
        raise ValueError(f"{name} are two whole numbers, not {sizes!r}")
    _check_sizes(**{f"{name}[{i}]": size for i, size in enumerate(sizes)})
    return sizes[0], sizes[1]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} is a whole number from 1 on, not {size!r}")
