"""Layers of mobile networks, for inference: normalization uses stored statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Separable(nn.Module):
    """relu, depthwise convolution k×k, convolution 1×1, normalization; `times` in a row."""

    def __init__(self, channels: int, kernel: int, times: int = 1):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, kernel, 1, kernel // 2, groups=channels, bias=False),
                nn.Conv2d(channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
            )
            for _ in range(times)
        )

    def forward(self, tensor: Tensor) -> Tensor:
        for layer in self.layers:
            tensor = layer(F.relu(tensor))
        return tensor


class Inverted(nn.Module):
    """MobileNet's block: wider by `expand`, depthwise k×k, narrow again, plus the input."""

    def __init__(self, channels: int, kernel: int, expand: int):
        super().__init__()
        wide = channels * expand
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, kernel, padding=kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, tensor: Tensor) -> Tensor:
        return tensor + self.body(tensor)


def image_program(
    make: Callable[[], nn.Module], batch: int, seed: int, size: int = 32
) -> Callable[[], Tensor]:
    """Return a network from a seed, on random images [batch or 1, 3, size, size]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = make().eval()
        images = torch.randn(batch or 1, 3, size, size)

    def run() -> Tensor:
        with torch.no_grad():
            return network(images)

    return run
