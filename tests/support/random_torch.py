"""Random PyTorch programs: views, in-place, out=, aliases, draws, shapes and branches from data."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recurra.window.torch.concurrent import concurrent

N = 4  # every tensor of the pool is [N, N] of floats
STEPS = 24
Step = Callable[[random.Random, list[Tensor]], Any]


def pick(rng: random.Random, pool: list[Tensor]) -> Tensor:
    return rng.choice(pool)


def binary(rng: random.Random, pool: list[Tensor]) -> Tensor:
    f = rng.choice([torch.add, torch.sub, torch.mul, torch.maximum, torch.matmul, torch.mm])
    return f(pick(rng, pool), pick(rng, pool))


def unary(rng: random.Random, pool: list[Tensor]) -> Tensor:
    f = rng.choice([torch.tanh, torch.relu, torch.neg, torch.sigmoid, torch.clone, torch.floor])
    return f(pick(rng, pool))


def scalars(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x = pick(rng, pool)
    return rng.choice([lambda: x + 1, lambda: 0.5 * x, lambda: x**2, lambda: 1 / (x.abs() + 1)])()


def types(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x, y = pick(rng, pool), pick(rng, pool)
    whole = (10 * torch.tanh(x)).to(torch.int64)
    return rng.choice(
        [
            lambda: (whole + 1).float(),
            lambda: whole * y,
            lambda: (x > y).float() + whole % 3,
            lambda: x.double().mul(3).float(),
            lambda: torch.complex(x, y).conj().mul(2j).real.clone(),
            lambda: x.to(torch.float16).add(1).float(),
        ]
    )()


def views(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x = pick(rng, pool)
    return rng.choice(
        [
            lambda: x.t(),
            lambda: x.reshape(2, 8).view(N, N) if x.is_contiguous() else x.reshape(N, N),
            lambda: x[[0, 2, 1, 3]],
            lambda: x.flip(0),
            lambda: x.unsqueeze(0).squeeze(0),
            lambda: x.contiguous(),
            lambda: x.detach(),
            lambda: torch.cat([x[:2], x[2:]]),
            lambda: torch.stack(x.unbind(1), 0),
            lambda: torch.cat(x.chunk(2, 1), 1),
            lambda: x[1].expand(N, N).clone(),
            lambda: x.as_strided((N, N), (0, 1)).clone(),
        ]
    )()


def in_place(rng: random.Random, pool: list[Tensor]) -> None:
    x, y = pick(rng, pool), pick(rng, pool)
    part = rng.choice(
        [lambda: x, lambda: x[::2], lambda: x.t()[1], lambda: x[0, 1:3], lambda: x.diagonal()]
    )()
    other = y.clone()[: part.shape[0]] if part.dim() == 2 else y.clone()[0, : part.shape[0]]
    rng.choice(
        [
            lambda: part.add_(1),
            lambda: part.mul_(0.5),
            lambda: part.copy_(other),
            lambda: part.sub_(other),
            lambda: part.zero_(),
            lambda: part.clamp_(-1, 1),
            lambda: part.fill_(2),
            lambda: torch.relu_(part),
            lambda: part.masked_fill_(other > 0, 3.0),
        ]
    )()


def assign(rng: random.Random, pool: list[Tensor]) -> None:
    x, y = pick(rng, pool), pick(rng, pool)
    value = y.clone()
    kind = rng.randrange(4)
    if kind == 0:
        x[1:3] = value[:2]
    elif kind == 1:
        x[:, 0] = 5.0
    elif kind == 2:
        x[x > value] = -1.0
    else:
        x[torch.tensor([0, 3])] = value[1:3]


def out(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x, y, z = (pick(rng, pool) for _ in range(3))
    given = rng.choice([lambda: torch.zeros(N, N), lambda: torch.empty(0), lambda: z.clone().t()])()
    return rng.choice([torch.add, torch.mul, torch.matmul])(x.clone(), y.clone(), out=given)


def shapes_in_place(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x = pick(rng, pool).clone()
    y = x + 1  # in flight while x changes its shape
    x.transpose_(0, 1)
    x.unsqueeze_(0).squeeze_(0)
    if rng.random() < 0.3:
        x.resize_(N, N)
    return x * y


def reductions(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x = pick(rng, pool)
    return rng.choice(
        [
            lambda: x.sum(1, keepdim=True) + x,
            lambda: x - x.mean(0),
            lambda: x.softmax(-1),
            lambda: x.max(1, keepdim=True).values * x,
            lambda: x.sort(0).values,
            lambda: x.topk(2).indices.float().repeat(1, 2),
            lambda: x.cumsum(0),
            lambda: x / x.norm(),
            lambda: torch.einsum("ij,kj->ik", x, x),
            lambda: x.var(0).sqrt() + x,
        ]
    )()


def layers(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x, w = pick(rng, pool), pick(rng, pool)
    image = x.reshape(1, 1, N, N)
    mean, var = torch.zeros(N), torch.ones(N)
    return rng.choice(
        [
            lambda: F.linear(x, w, w[0]),
            lambda: F.conv2d(image, w[:3, :3].reshape(1, 1, 3, 3), padding=1).view(N, N),
            lambda: F.layer_norm(x, (N,), w[0], w[1]),
            lambda: F.batch_norm(x, mean, var, w[0], w[1]),
            lambda: F.batch_norm(x, mean, var, training=True) + mean + var,
            lambda: F.avg_pool2d(image, 3, 1, 1).view(N, N),
            lambda: F.scaled_dot_product_attention(x[None], w[None], w[None])[0],
            lambda: F.gelu(x),
        ]
    )()


def indices(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x, y = pick(rng, pool), pick(rng, pool)
    at = (y.abs() * 7).nan_to_num(0, 0, 0).long() % N
    return rng.choice(
        [
            lambda: x.gather(1, at),
            lambda: x.index_select(0, at[0]),
            lambda: x[at[0], at[1]].expand(N, N).clone(),
            lambda: torch.zeros(N, N).scatter_add_(0, at, x),
            lambda: torch.zeros(N, N).index_add_(0, at[0], x),
            lambda: torch.where(x > y, x, y),
            lambda: F.embedding(at[0], x),
        ]
    )()


def from_data(rng: random.Random, pool: list[Tensor]) -> Tensor:
    """Shapes and branches that only values decide."""
    x = pick(rng, pool)
    kind = rng.randrange(5)
    if kind == 0:
        return x * (2.0 if float(x.nan_to_num(0).sum()) > 0 else -1.0)
    if kind == 1:
        chosen = x[x > 0]
        return x + chosen.numel() + chosen.nan_to_num(0).sum()
    if kind == 2:
        return x + float(x.nonzero().shape[0])
    if kind == 3:
        return x + len(x.unique())
    return x if torch.equal(x, x.clone()) else -x


def draws(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x = pick(rng, pool)
    return rng.choice(
        [
            lambda: x + torch.rand_like(x),
            lambda: F.dropout(x, 0.5),
            lambda: x.clone().normal_(),
            lambda: x * torch.bernoulli(torch.full((N, N), 0.5)),
            lambda: x[torch.randperm(N)],
        ]
    )()


def outside(rng: random.Random, pool: list[Tensor]) -> Tensor:
    """NumPy looks at, and changes, the same memory."""
    kind = rng.randrange(4)
    if kind == 0:
        array = np.arange(N * N, dtype=np.float32).reshape(N, N)
        shared = torch.from_numpy(array)
        y = shared + 1
        array[1] = 9
        return shared * y
    x = pick(rng, pool).clone()
    if kind == 1:
        array = x.numpy()
        y = x * 2
        array[0] = 7
        x.add_(1)
        array[1] += float(array[0, 0])
        return x + y
    if kind == 2:
        return torch.tensor(x.tolist()) + x
    return torch.from_numpy(np.asarray(x) + 1)


def lists(rng: random.Random, pool: list[Tensor]) -> Tensor:
    x, y = pick(rng, pool).clone(), pick(rng, pool).clone()
    torch._foreach_add_([x, y], 1.0)
    a, b = torch._foreach_mul([x, y], 2.0)
    kind = rng.randrange(3)
    if kind == 0:
        x.data = a  # the name gets other memory
    elif kind == 1:
        x.set_(b)
        x.add_(1)
    return x + y + a + b


def forget(rng: random.Random, pool: list[Tensor]) -> None:
    if len(pool) > 3:
        pool.pop(rng.randrange(len(pool)))


STEPS_OF: tuple[Step, ...] = (
    *(binary, unary, scalars, views, in_place) * 3,
    *(assign, out, reductions, layers, indices, forget) * 2,
    *(types, shapes_in_place, from_data, draws, outside, lists),
)


def run(seed: int, start: list[Tensor]) -> list[Tensor]:
    """The program of a seed on copies of some tensors; what is in the pool at the end."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pool = [x.clone() for x in start]
    for _ in range(STEPS):
        result = rng.choice(STEPS_OF)(rng, pool)
        if result is not None:
            assert result.shape == (N, N), result.shape
            pool.append(result)
        if len(pool) > 8:
            pool.pop(0)
    return pool


def bits(tensors: list[Tensor]) -> list[bytes]:
    """To compare NaNs as well."""
    return [str(x.dtype).encode() + x.contiguous().numpy().tobytes() for x in tensors]


def expect_bits_of_eager(program: Callable[[], list[Tensor]]) -> None:
    """In its second run in a window, in which operators are known, a program gives the same."""
    expected = program()
    with concurrent(2, policy="always"):
        program()
        found = program()
    assert bits(found) == bits(expected)


def inputs() -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(N, N, generator=rng) for _ in range(3)]
