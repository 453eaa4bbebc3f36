"""Static networks with irregular cells, found by search or drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recurra.window.workloads.layers import Separable, image_program

# A cell is pairs of (operation, input): 0 and 1 are the last two cells' results, 2.. the pairs'.
Pair = tuple[tuple[str, int], tuple[str, int]]
NASNET_A: tuple[Pair, ...] = (
    (("sep3", 1), ("skip", 1)),
    (("sep3", 0), ("sep5", 1)),
    (("avg", 1), ("skip", 0)),
    (("avg", 0), ("avg", 0)),
    (("sep5", 0), ("sep3", 0)),
)
AMOEBANET_A: tuple[Pair, ...] = (
    (("avg", 1), ("max", 1)),
    (("skip", 0), ("avg", 0)),
    (("sep5", 1), ("sep3", 2)),
    (("sep3", 1), ("skip", 4)),
    (("sep3", 1), ("skip", 0)),
)


def operation(name: str, channels: int) -> nn.Module:
    """Return an operation by its name in a cell."""
    if name.startswith("sep"):
        return Separable(channels, int(name[3:]), times=2)
    return {
        "skip": nn.Identity(),
        "avg": nn.AvgPool2d(3, 1, 1),
        "max": nn.MaxPool2d(3, 1, 1),
    }[name]


class NasCell(nn.Module):
    """A cell of pairs of operations, whose sums are concatenated unless another pair reads them."""

    def __init__(self, pairs: Sequence[Pair], channels: int):
        super().__init__()
        self.pairs = pairs
        read = {k for pair in pairs for _, k in pair}
        self.free = [k for k in range(2, 2 + len(pairs)) if k not in read]
        self.enter = nn.ModuleList(nn.Conv2d(channels, channels, 1, bias=False) for _ in range(2))
        self.sides = nn.ModuleList(
            nn.ModuleList(operation(name, channels) for name, _ in pair) for pair in pairs
        )
        self.join = nn.Conv2d(len(self.free) * channels, channels, 1, bias=False)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        h = [enter(F.relu(x)) for enter, x in zip(self.enter, (before, last), strict=True)]
        for pair, sides in zip(self.pairs, self.sides, strict=True):
            left, right = sides.children()
            h.append(left(h[pair[0][1]]) + right(h[pair[1][1]]))
        return self.join(torch.cat([h[k] for k in self.free], 1))


class Cells(nn.Module):
    """A stem, cells that read the last two, a head."""

    def __init__(self, pairs: Sequence[Pair], channels: int = 32, cells: int = 6):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.cells = nn.ModuleList(NasCell(pairs, channels) for _ in range(cells))
        self.head = nn.Linear(channels, 10)

    def forward(self, tensor: Tensor) -> Tensor:
        before = last = self.stem(tensor)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last.mean((2, 3)))


class Fire(nn.Module):
    """SqueezeNet: 1×1 to few channels, then 1×1 and 3×3 side by side."""

    def __init__(self, channels: int, few: int):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, few, 1)
        self.small = nn.Conv2d(few, channels // 2, 1)
        self.large = nn.Conv2d(few, channels // 2, 3, padding=1)

    def forward(self, tensor: Tensor) -> Tensor:
        s = F.relu(self.squeeze(tensor))
        return torch.cat([F.relu(self.small(s)), F.relu(self.large(s))], 1)


class Squeeze(nn.Module):
    """Eight fire modules."""

    def __init__(self, channels: int = 64):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.body = nn.Sequential(*[Fire(channels, 16) for _ in range(8)])
        self.head = nn.Conv2d(channels, 10, 1)

    def forward(self, tensor: Tensor) -> Tensor:
        return self.head(self.body(F.relu(self.stem(tensor)))).mean((2, 3))


class RandomWire(nn.Module):
    """Separable convolutions on a Watts-Strogatz graph, its edges directed from low to high."""

    def __init__(self, nodes: int = 32, channels: int = 32, near: int = 4, rewired: float = 0.75):
        super().__init__()
        rng = random.Random(0)
        edges: set[tuple[int, int]] = set()
        for a in range(nodes):
            for step in range(1, near // 2 + 1):
                b = rng.randrange(nodes) if rng.random() < rewired else (a + step) % nodes
                if a != b:
                    edges.add((min(a, b), max(a, b)))
        self.inputs = [[a for a, b in sorted(edges) if b == k] for k in range(nodes)]
        self.last = [k for k in range(nodes) if all(a != k for a, _ in edges)]
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.nodes = nn.ModuleList(Separable(channels, 3) for _ in range(nodes))
        self.head = nn.Linear(channels, 10)

    def forward(self, tensor: Tensor) -> Tensor:
        stem = self.stem(tensor)
        h: list[Tensor] = []
        for inputs, node in zip(self.inputs, self.nodes, strict=True):
            h.append(node(_sum([h[k] for k in inputs]) if inputs else stem))
        return self.head((_sum([h[k] for k in self.last]) / len(self.last)).mean((2, 3)))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


def make_program(name: str, batch: int, seed: int) -> Callable[[], Tensor]:
    """Return a function that runs one inference."""
    kinds: dict[str, Callable[[], nn.Module]] = {
        "nasnet": lambda: Cells(NASNET_A),
        "amoebanet": lambda: Cells(AMOEBANET_A),
        "squeezenet": Squeeze,
        "randomwire": RandomWire,
    }
    return image_program(kinds[name], batch, seed)
