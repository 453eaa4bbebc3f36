"""Training in a window: values, gradients and what is learned are eager ones to the last bit."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from built import FOLDER
from recurra.window import Executor, KernelError, WindowError
from recurra.window.torch.block import Block
from recurra.window.torch.concurrent import concurrent
from recurra.window.torch.training import backend
from recurra.window.workloads.cells import NASNET_A, NasCell

pytestmark = [pytest.mark.needs_compiler, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module", autouse=True)
def compiled(pytorch_built: None) -> Iterator[None]:
    yield
    torch.compiler.reset()


def through(f: Any, threads: int = 3, block: Block | None = None, **options: Any) -> Any:
    torch.compiler.reset()
    options = {"policy": "always", "folder": FOLDER, "block": block, **options}
    return torch.compile(f, backend=backend(threads, **options))


class Images(nn.Module):
    """Branches, statistics that are learned, draws, an operator in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.last, self.drop = nn.Linear(8 * 64, 10), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x)), inplace=True)
        h = torch.tanh(self.left(h)) + torch.sigmoid(self.right(h))
        return self.last(self.drop(h.flatten(1)))


class Words(nn.Module):
    """Attention, an embedding, a normalization; the same weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(16, 24), nn.LayerNorm(24)
        self.qkv, self.up = nn.Linear(24, 72), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table((x[:, 0, :, 0] * 100).long().abs() % 16)
        for _ in range(2):
            q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
            h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.up(h.mean(1))


class Cells(nn.Module):
    """Two cells of NASNet."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cells = (
            nn.Conv2d(3, 8, 1),
            nn.ModuleList(NasCell(NASNET_A, 8) for _ in "ab"),
        )
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        before = last = self.enter(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.last(last.mean((2, 3)))


def grads(leaves: Iterable[Tensor]) -> list[Tensor]:
    return [x.grad.clone() for x in leaves if x.grad is not None]


def trained(model: nn.Module, f: Callable[[Tensor], Tensor], steps: int = 4) -> list[Tensor]:
    """Every loss and gradient of some steps, and what is left in the model."""
    torch.manual_seed(1)
    x, y = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    seen: list[Tensor] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(f(x), y)
        loss.backward()
        seen += [loss.detach().clone(), *grads(model.parameters())]
        optimizer.step()
    return [*seen, *model.state_dict().values()]


def same(found: list[Tensor], want: list[Tensor]) -> None:
    assert len(found) == len(want)
    for k, (a, b) in enumerate(zip(found, want, strict=True)):
        assert torch.equal(a, b), f"tensor {k}: {(a - b).abs().max()}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Images, Words, Cells])
def test_gradients_are_equal_to_the_last_bit(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    plain, again, block = copy.deepcopy(model), copy.deepcopy(model), Block()
    want, f = trained(plain, plain), through(again, 4, block)
    for _ in range(5):  # where workers had another number of OpenMP threads, one in three failed
        again.load_state_dict(model.state_dict())
        same(trained(again, f), want)
    assert block.counts["deferred"] > 100
    assert block.counts["by workers"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_interpolation_is_traced_whole(mode: str, dynamic: bool) -> None:
    """PyTorch has forms of it in Python, for tracing, which round otherwise than its kernels."""

    def f(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.7, mode=mode)

    compiled = torch.compile(f, backend=backend(2, folder=FOLDER), dynamic=dynamic)
    forms = dict(torch.ops.aten.upsample_bilinear2d.default.py_kernels)
    for size in (5, 8):
        made: list[list[Tensor]] = []
        for g in (compiled, f):
            x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size))
            x.requires_grad_()
            y = g(x)
            y.square().sum().backward()
            made.append([y.detach(), *grads([x])])
        same(*made)
    assert torch.ops.aten.upsample_bilinear2d.default.py_kernels == forms  # as others find it


UNARY = (torch.tanh, torch.sigmoid, torch.sin, F.softplus, F.relu, torch.square)


def step(kind: int, x: Tensor, y: Tensor) -> Tensor:
    """Products, sums, views, joins, operators in place on copies, of tensors [6, 6]."""
    match kind:
        case 0:
            return x @ y / 6
        case 1:
            return x * y.t() + x[0]
        case 2:
            return torch.cat([x[:3], y[3:]])
        case 3:
            made = x.clone()
            made[1:4] += y[:3].detach()
            return made.mul_(0.5)
        case 4:
            return x - x.mean(0, keepdim=True)
        case 5:
            return torch.where(x > 0, x, y.reshape(36)[:6])
        case _:
            return UNARY[kind - 6](x)


def random_function(seed: int) -> Callable[..., Tensor]:
    """Fourteen random steps, each of what is there by then."""
    draw = random.Random(seed)
    steps = [(draw.randrange(12), draw.randrange(3 + k), draw.randrange(3 + k)) for k in range(14)]

    def f(*given: Tensor) -> Tensor:
        found = list(given)
        for kind, x, y in steps:
            found.append(step(kind, found[x], found[y]))
        return torch.stack(found[-3:]).logsumexp((1, 2)).sum()

    return f


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_functions(seed: int) -> None:
    start = [torch.randn(6, 6, generator=torch.Generator().manual_seed(k)) for k in range(3)]

    def gradients(f: Callable[..., Tensor]) -> list[Tensor]:
        given = [x.clone().requires_grad_() for x in start]
        out: list[Tensor] = []
        for _ in range(3):  # gradients add up
            value = f(*given)
            value.backward()
            out += [value.detach(), *grads(given)]
        return out

    f, draw, block = random_function(seed), random.Random(seed), Block()
    g = through(f, draw.randint(1, 4), block, slots=draw.choice((1, 4, 32, 64)))
    same(gradients(g), gradients(f))
    assert block.counts["deferred"] > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.compile looks at it
def test_shapes_branches_on_data_and_no_gradients() -> None:
    """What is traced anew, what is not traced, and graphs that have no backward."""
    w = torch.randn(5, 5)

    def f(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        if h.sum() > 0:  # torch.compile goes on behind it
            h = h * 2
        return (h @ w).sum()

    g = through(f)
    for rows in (3, 4, 7, 3):
        for sign in (1, -1):
            x = sign * torch.ones(rows, 5)
            a, b = w.clone().requires_grad_(), w.clone().requires_grad_()
            one, other = f(x, a), g(x, b)
            one.backward()
            other.backward()
            same([other.detach(), *grads([b])], [one.detach(), *grads([a])])
            with torch.no_grad():
                assert torch.equal(g(x, w), f(x, w))


def test_an_operator_that_fails_is_told() -> None:
    table = torch.randn(4, 3, requires_grad=True)
    g = through(lambda t, k: F.embedding(k, t).sum())
    for _ in range(2):
        g(table, torch.tensor([1, 2])).backward()
    with pytest.raises(KernelError, match="operator aten::embedding failed: index out of range"):
        g(table, torch.tensor([1, 9]))
    g(table, torch.tensor([1, 2])).backward()  # and on it goes
    want = torch.zeros(4, 3)
    want[1:3] = 3
    same(grads([table]), [want])


def test_workers_of_executors_count_threads_as_the_caller_does() -> None:
    """Else a product, or a gradient of a convolution, has other last bits there."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*s, generator=generator) for s in ((10, 4), (4, 512)))
    x, w = (torch.randn(*s, generator=generator) for s in ((4, 8, 16, 16), (8, 8, 3, 3)))

    def work(into: list[Tensor]) -> None:
        leaf = w.clone().requires_grad_()
        F.conv2d(x, leaf, padding=1).sum().backward()
        into += [a @ b, *grads([leaf])]

    want: list[Tensor] = []
    work(want)
    for _ in range(10):
        started, found = threading.Event(), list[Tensor]()

        def by_a_worker(into: list[Tensor] = found, go: threading.Event = started) -> None:
            work(into)
            go.set()

        with Executor(2, policy="always") as run:
            run.launch(by_a_worker)
            assert started.wait(20)  # without helping
        assert run.counts.by_workers == 1
        same(found, want)


def test_what_cannot_be() -> None:
    with pytest.raises(WindowError, match="100000000000000000000 threads and 32 slots"):
        backend(10**20)
    with pytest.raises(WindowError, match="0 threads and 32 slots"):
        backend(0)
    with (
        pytest.raises(WindowError, match=r"backend=window\.backend\(\)"),
        concurrent(folder=FOLDER),
    ):
        pass
