"""Networks with control flow by data: the host reads decisions, and launches accordingly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recurra.window.workloads.layers import Inverted, Separable, image_program


class InstaNas(nn.Module):
    """InstaNAS: a controller chooses the blocks of every layer from the image."""

    def __init__(self, channels: int = 32, layers: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        choices = ((3, 3), (3, 6), (5, 3), (5, 6))
        self.blocks = nn.ModuleList(
            nn.ModuleList(Inverted(channels, k, e) for k, e in choices) for _ in range(layers)
        )
        self.controller = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=4, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, layers * len(choices)),
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, tensor: Tensor) -> Tensor:
        chosen = (self.controller(tensor).mean(0) > 0).view(len(self.blocks), -1)
        h = self.stem(tensor)
        for k, blocks in enumerate(self.blocks):
            h = self._layer(h, blocks, chosen[k])
        return self.head(h.mean((2, 3)))

    def _layer(self, hidden: Tensor, blocks: nn.Module, chosen: Tensor) -> Tensor:
        """Return the mean of the chosen blocks; the layer is skipped if there are none."""
        bits = int((chosen * 2 ** torch.arange(chosen.numel())).sum().item())
        used = [block(hidden) for k, block in enumerate(blocks.children()) if bits >> k & 1]
        return torch.stack(used).mean(0) if used else hidden


class Routing(nn.Module):
    """Dynamic routing: cells on three scales, with gates to finer, equal and coarser scales."""

    def __init__(self, channels: int = 24, layers: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.cells = nn.ModuleList(
            nn.ModuleList(Separable(channels, 3) for _ in range(3)) for _ in range(layers)
        )
        self.gates = nn.ModuleList(
            nn.ModuleList(nn.Linear(channels, 3) for _ in range(3)) for _ in range(layers)
        )
        self.head = nn.Conv2d(channels, 19, 1)

    def forward(self, tensor: Tensor) -> Tensor:
        scales: list[Tensor | None] = [self.stem(tensor), None, None]
        for cells, gates in zip(self.cells, self.gates, strict=True):
            scales = self._layer(scales, list(cells.children()), list(gates.children()))
        open_ = [
            F.interpolate(s, scale_factor=float(2**k))
            for k, s in enumerate(scales)
            if s is not None
        ]
        return self.head(sum(open_[1:], open_[0]))

    def _layer(
        self, scales: list[Tensor | None], cells: list[nn.Module], gates: list[nn.Module]
    ) -> list[Tensor | None]:
        out: list[Tensor | None] = [None, None, None]
        for k, s in enumerate(scales):
            if s is None:
                continue
            gate = gates[k](s.mean((2, 3))).mean(0)
            h = cells[k](s)
            for way in self._open(gate, k):
                moved = F.relu(gate[way]) * _rescaled(h, way - 1)
                there = out[k + way - 1]
                out[k + way - 1] = moved if there is None else there + moved
        return out

    def _open(self, gate: Tensor, scale: int) -> list[int]:
        """Return the open gates: 0 finer, 1 the same, 2 coarser; the same scale if none is open."""
        bits = int(((gate > 0) * 2 ** torch.arange(3)).sum().item())
        ways = [w for w in range(3) if bits >> w & 1 and 0 <= scale + w - 1 < 3]
        return ways or [1]


def _rescaled(tensor: Tensor, coarser: int) -> Tensor:
    if coarser == 0:
        return tensor
    return F.avg_pool2d(tensor, 2) if coarser > 0 else F.interpolate(tensor, scale_factor=2.0)


class Conditional(nn.Module):
    """A convolution whose weight is a mixture of experts' weights, by the image."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1, experts: int = 4):
        super().__init__()
        shape = (experts, outputs, inputs // groups, kernel, kernel)
        self.weight = nn.Parameter(torch.randn(shape) / (inputs // groups * kernel**2) ** 0.5)
        self.route = nn.Linear(inputs, experts)
        self.groups, self.padding = groups, kernel // 2

    def forward(self, tensor: Tensor) -> Tensor:
        share = torch.sigmoid(self.route(tensor.mean((2, 3))))  # [batch, experts]
        images: list[Tensor] = []
        for k in range(tensor.shape[0]):
            weight = (share[k].view(-1, 1, 1, 1, 1) * self.weight).sum(0)
            images.append(
                F.conv2d(tensor[k : k + 1], weight, None, 1, self.padding, 1, self.groups)
            )
        return images[0] if len(images) == 1 else torch.cat(images)


class CondConv(nn.Module):
    """CondConv: EfficientNet's blocks, with squeeze-and-excitation, of conditional convolutions."""

    def __init__(self, channels: int = 32, layers: int = 8):
        super().__init__()
        wide = 3 * channels
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    Conditional(channels, wide, 1),
                    nn.BatchNorm2d(wide),
                    Conditional(wide, wide, 3, groups=wide),
                    nn.BatchNorm2d(wide),
                    nn.Linear(wide, channels // 4),
                    nn.Linear(channels // 4, wide),
                    Conditional(wide, channels, 1),
                    nn.BatchNorm2d(channels),
                ]
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(channels, 10)

    def forward(self, tensor: Tensor) -> Tensor:
        h = self.stem(tensor)
        for layer in self.layers:
            widen, norm1, deep, norm2, squeeze, excite, narrow, norm3 = layer.children()
            y = F.silu(norm2(deep(F.silu(norm1(widen(h))))))
            gate = torch.sigmoid(excite(F.silu(squeeze(y.mean((2, 3))))))
            h = h + norm3(narrow(y * gate[:, :, None, None]))
        return self.head(h.mean((2, 3)))


def make_program(name: str, batch: int, seed: int) -> Callable[[], Tensor]:
    """Return a function that runs one inference."""
    kinds: dict[str, Callable[[], nn.Module]] = {
        "instanas": InstaNas,
        "routing": Routing,
        "condconv": CondConv,
    }
    return image_program(kinds[name], batch, seed, size=64 if name == "routing" else 32)
