"""A network of your own, with BatchNorm and dropout: simulated, and the same bits through the server."""

import torch
from torch import nn

import artesian


class Small(nn.Module):
    """One convolution for the 8x8 digits; `classes` is filled in from the data when a TOML file names this class."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)
        self.output = nn.Linear(width * 4 * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norm(self.conv(x)), 2).relu()
        return self.output(self.drop(x.flatten(1)))


def small() -> nn.Module:
    return Small(classes=10)


if __name__ == "__main__":
    model = artesian.TorchModel(small, shape=(1, 8, 8))
    print(
        model.layout.trainable, "numbers are trained,", model.layout.size - model.layout.trainable, "travel with them"
    )
    simulated = artesian.simulate("digits-2", model=model, uploads=60)
    served = artesian.simulate("digits-2", model=model, uploads=60, transport=artesian.InProcess)
    print(simulated.table())
    same = all(simulated.params[k].tobytes() == served.params[k].tobytes() for k in simulated.params)
    print("the same bits over HTTP:", same)
