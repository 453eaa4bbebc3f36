"""Kinds of PyTorch programs that touch memory in ways of their own: equal to eager, to the bit."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from random_torch import bits
from recurra.window import concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore"),
]
Program = Callable[[Path], list[torch.Tensor]]
SLOW = ("line_searches", "functions_of_functions")  # their imports take seconds
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(size: int = 40) -> torch.Tensor:
    """A tensor that is in flight."""
    return normal(size, size) @ normal(size, size, seed=1)


@program
def complex_views(_: Path) -> list[torch.Tensor]:
    x = torch.complex(product(), product())
    torch.view_as_real(x)[..., 0].mul_(2)
    y = x @ x.conj().T
    x.imag.add_(1)
    return [x, y, y.angle(), x.conj().resolve_conj(), x.conj().imag.resolve_neg()]


@program
def transforms_of_fourier(_: Path) -> list[torch.Tensor]:
    f = torch.fft.rfft(product(64))
    y = torch.fft.irfft(f * f.conj())
    window = torch.hann_window(16)
    s = torch.stft(y[0], 16, return_complex=True, window=window)
    return [y, s, torch.istft(s, 16, window=window)]


@program
def sparse(_: Path) -> list[torch.Tensor]:
    x = product()
    s = (x * (x > 1)).to_sparse()
    y, z = torch.sparse.mm(s, x), s.to_sparse_csr() @ x
    s.coalesce().values().mul_(2)
    x.add_(s)
    return [x, y, z, s.to_dense()]


@program
def quantized(_: Path) -> list[torch.Tensor]:
    q = torch.quantize_per_tensor(product(), 0.1, 10, torch.quint8)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4))
    small = torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8)
    return [q.dequantize(), q.int_repr(), small(product())]


@program
def lists_of_tensors(_: Path) -> list[torch.Tensor]:
    a = [product(30 + k) for k in range(4)]
    b = list(torch._foreach_mul(a, 2.0))
    torch._foreach_add_(b, a, alpha=3)
    norms = list(torch._foreach_norm(b))
    torch._foreach_copy_(a, torch._foreach_addcmul(a, b, b, 0.5))
    torch._foreach_zero_(b[:2])
    return [*a, *b, *norms]


@program
def line_searches(_: Path) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 1))
    optimizer = torch.optim.LBFGS(layers.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        with torch.enable_grad():
            optimizer.zero_grad()
            found = layers(normal(16, 20)).square().mean()
            found.backward()
            return found

    for _step in range(3):
        optimizer.step(loss)
    return list(layers.parameters())


@program
def checkpoints_that_draw(_: Path) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers, x = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5)), normal(9, 20).requires_grad_()
    with torch.enable_grad():
        y = checkpoint(layers, x, use_reentrant=False)
        z = checkpoint(layers, y, use_reentrant=True)
        z.sum().backward()
    return [y.detach(), z.detach(), x.grad, *(p.grad for p in layers.parameters())]


@program
def hooks(_: Path) -> list[torch.Tensor]:
    got: list[torch.Tensor] = []
    x = normal(20, 20).requires_grad_()
    x.register_post_accumulate_grad_hook(lambda p: got.append(p.grad * 2))

    def kept(t: torch.Tensor) -> Any:
        return t.numpy(force=True).copy()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(kept, torch.from_numpy):
        y = x @ x
        y.register_hook(lambda g: got.append(g.clone()) or g * 3)
        y.tanh().sum().backward()
    return [*got, x.grad]


@program
def pickles(_: Path) -> list[torch.Tensor]:
    x, file = product(), io.BytesIO()
    y = x @ x
    torch.save({"y": y, "rows": y[3:7]}, file)
    file.seek(0)
    read = torch.load(file)
    read["rows"].zero_()
    return [pickle.loads(pickle.dumps(x @ y)), read["y"], y]


@program
def one_storage(_: Path) -> list[torch.Tensor]:
    x = torch.zeros(100)
    a = torch.tensor([]).set_(x.untyped_storage(), 10, (20,), (2,))
    a.add_(normal(20))
    b = torch.as_strided(x, (10, 10), (10, 1))
    c = b @ b
    b.t_()
    b.copy_(c)
    y = x.view(torch.int32) + 1
    x.view(torch.uint8)[:40].fill_(7)
    return [x, a, b, c, y]


@program
def one_file(folder: Path) -> list[torch.Tensor]:
    path = str(folder / "numbers")
    np.arange(400, dtype=np.float32).tofile(path)
    one, other = (torch.from_file(path, shared=True, size=400) for _ in range(2))
    third = torch.from_numpy(np.memmap(path, np.float32, "r+"))
    one.mul_(2)
    y = other + 1
    third.add_(3)
    z = one.view(20, 20) @ other.view(20, 20)
    other[:4] = 0
    return [one, other, third, y, z]


@program
def given_places(_: Path) -> list[torch.Tensor]:
    a, o, e = product(), torch.empty(40, 40), torch.empty(0)
    torch.mm(a, a, out=o)
    v = torch.empty(40, 80)[:, ::2]
    torch.add(o, 1, out=v)
    best = torch.empty(40, 1), torch.empty(40, 1, dtype=torch.long)
    torch.topk(o, 1, out=best)
    torch.cumsum(o, 0, out=o)
    torch.cat([a, o], out=e)
    wide = torch.empty(40, 40, dtype=torch.float64)
    torch.add(a, o, out=wide)
    return [o, v, e, *best, wide]


@program
def threads(_: Path) -> list[torch.Tensor]:
    x, found = product(), list[torch.Tensor]()

    def work() -> None:
        with torch.no_grad():
            found.append(torch.tanh(x @ x) @ x)

    some = [threading.Thread(target=work) for _ in range(3)]
    for thread in some:
        thread.start()
    y = x @ x
    for thread in some:
        thread.join()
    return [*found, y]


@program
def indexed_writes(_: Path) -> list[torch.Tensor]:
    x = product()
    x[x > 0] = 0
    x[:, [3, 1]] += 2
    x.index_add_(0, torch.tensor([1, 1]), normal(2, 40))
    x.scatter_(1, torch.zeros(40, 1, dtype=torch.long), 5.0)
    at = (torch.tensor([0, 0]), torch.tensor([1, 1]))
    x.index_put_(at, torch.tensor([1.0, 2.0]), accumulate=True)
    return [x, x[x > 1], x.nonzero()]


@program
def functions_of_functions(_: Path) -> list[torch.Tensor]:
    from torch.func import functionalize, grad, jacfwd, jvp, vmap

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).tanh().sum()

    x = product(8)
    with torch.enable_grad():
        return [
            grad(f)(x).detach(),
            jacfwd(lambda x: x.sin() @ x)(x).detach(),
            jvp(f, (x,), (x,))[1].detach(),
            vmap(grad(f))(normal(3, 5, 5)).detach(),
            functionalize(lambda x: x.clone().add_(1).view(-1).mul_(2))(x),
        ]


@pytest.mark.parametrize("policy", ["always", "learn"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in PROGRAMS],
)
def test_it_is_equal_to_eager_mode(name: str, policy: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        expected = bits(PROGRAMS[name](tmp_path))
    for _ in range(3):
        with torch.no_grad(), concurrent(2, policy=policy):
            found = PROGRAMS[name](tmp_path)
        assert bits(found) == expected
