"""Five networks as people write them: values, gradients and two steps are eager ones to the bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from built import FOLDER
from recurra.window.torch.concurrent import concurrent
from recurra.window.torch.training import backend

pytestmark = [pytest.mark.needs_compiler, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
WAYS: dict[str, Any] = {
    "always": {"policy": "always"},
    "learn": {"policy": "learn"},
    "check": {"check": True},
}


@pytest.fixture(scope="module", autouse=True)
def compiled(pytorch_built: None) -> Iterator[None]:
    yield
    torch.compiler.reset()


class ResNet(nn.Module):
    """Two residual blocks with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(8, 8, 3, padding=1, bias=False),
                    nn.BatchNorm2d(8),
                    nn.Conv2d(8, 8, 3, padding=1, bias=False),
                    nn.BatchNorm2d(8),
                ]
            )
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for first, norm, second, again in self.blocks:  # pyright: ignore
            x = F.relu(x + again(second(F.relu(norm(first(x))))))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)


class Transformer(nn.Module):
    """A layer as PyTorch has it, with dropout, over rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.1, batch_first=True)
        self.last = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        rows = x.permute(0, 2, 1, 3).flatten(2)
        return self.last(self.layer(rows, src_mask=mask, is_causal=True).mean(1))


class Recurrent(nn.Module):
    """An LSTM of cells, whose state goes on, and a GRU of PyTorch's over its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.rest = nn.LSTMCell(24, 16), nn.GRU(16, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        state, made = None, list[Tensor]()
        for row in x.permute(2, 0, 1, 3).flatten(2):
            state = self.cell(row, state)
            made.append(state[0])
        return self.rest(torch.stack(made, 1))[0][:, -1]


class Experts(nn.Module):
    """The best two of four experts for each row, chosen by data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(192, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(192, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        weights, chosen = self.gate(rows).softmax(-1).topk(2, -1)
        out = rows.new_zeros(len(rows), 8)
        for k, expert in enumerate(self.experts):
            where, place = (chosen == k).nonzero(as_tuple=True)
            out = out.index_add(0, where, weights[where, place, None] * expert(rows[where]))
        return out


class UNet(nn.Module):
    """Down, up and across: pooling, transposed convolutions, concatenations."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(12, 6, 2, 2), nn.Conv2d(12, 8, 1)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        across = F.silu(self.norm(self.down(x)))
        deep = F.silu(self.deep(F.max_pool2d(across, 2)))
        joined = torch.cat([across, self.up(deep)], 1)
        return F.interpolate(self.last(joined), scale_factor=0.5, mode="nearest").mean((2, 3))


NETWORKS: tuple[type[nn.Module], ...] = (ResNet, Transformer, Recurrent, Experts, UNet)


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def images(step: int) -> Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def trained(model: nn.Module, f: Any) -> list[Tensor]:
    """Losses, gradients and weights of three steps."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen: list[Tensor] = []
    for step in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(f(images(step)), torch.arange(6))
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return [*seen, *(x.clone() for x in model.state_dict().values())]


def expect_same(found: list[Tensor], want: list[Tensor]) -> None:
    assert len(found) == len(want)
    for k, (a, b) in enumerate(zip(found, want, strict=True)):
        assert torch.equal(a, b), f"tensor {k}: {(a - b).abs().max()}"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_training_is_eager_training(kind: type[nn.Module], way: str) -> None:
    model = made(kind)
    twin = copy.deepcopy(model)
    torch.compiler.reset()
    f = torch.compile(model, backend=backend(2, folder=FOLDER, **WAYS[way]))
    found, want = trained(model, f), trained(twin, twin)
    assert want[0] != want[-1].sum()
    expect_same(found, want)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_values_are_eager_values(kind: type[nn.Module], mode: str, way: str) -> None:
    """In a block of its own for each request; statistics are learned in order."""
    model = made(kind).train(mode == "train")
    twin = copy.deepcopy(model)
    deferred = 0.0

    def answers(model: nn.Module, **options: Any) -> list[Tensor]:
        nonlocal deferred
        torch.manual_seed(2)
        seen: list[Tensor] = []
        for step in range(4):
            if not options:
                seen.append(model(images(step)))
                continue
            with concurrent(2, folder=FOLDER, **options) as block:
                seen.append(model(images(step)))
            deferred += block.counts.get("deferred", 0)
        return [*seen, *model.state_dict().values()]

    with torch.no_grad():
        expect_same(answers(model, **WAYS[way]), answers(twin))
    assert way == "learn" or deferred > 0
