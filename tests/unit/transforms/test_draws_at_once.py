"""Draws of a step that are made for many steps at once: the same numbers, in any order of steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import recurra as rc
from recurra.backends.batched_draws import Draws, draws_of
from recurra.backends.bounded_int import ANY, Count
from recurra.backends.torch.array_namespace import TorchNamespace
from recurra.ir.expr import SEED, Sym, mul
from recurra.ops.random import Uniform


def counted(name: str) -> Count:
    return Count(name, ANY, lambda c: c)


def of(shape: tuple[int, ...], xp: Any = np) -> tuple[Uniform, Draws]:
    op = Uniform(id=7, key=(Sym("i"),), counter=(mul(Sym("t"), 3) + Sym("B"),), shape=shape)
    draws = draws_of(op, {"B": 5, SEED: None, "i": counted("i"), "t": counted("t - 1")}, xp)
    assert draws is not None
    assert draws.dims == ("i", "t")
    return op, draws


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
@pytest.mark.parametrize("order", ["up", "down", "anyhow"])
def test_each_is_the_draw_of_its_step(shape: tuple[int, ...], order: str) -> None:
    op, draws = of(shape)
    steps = [(i, t) for i in range(2) for t in range(-3, 150)]
    if order == "down":
        steps.reverse()
    elif order == "anyhow":
        np.random.default_rng(1).shuffle(steps)
    for seed in (np.uint32(1), np.uint32(2)):
        for i, t in steps:
            with np.errstate(over="ignore"):
                want = op.run(np, {"B": 5, SEED: seed, "i": int(i), "t": int(t)})
                got = draws(seed, int(i), int(t))
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_array_equal(got, want)


def test_who_changes_a_draw_changes_no_other() -> None:
    _, draws = of((3,))
    first = draws(np.uint32(1), 0, 0)
    kept = first.copy()
    first[:] = 9.0
    np.testing.assert_array_equal(draws(np.uint32(1), 0, 0), kept)


def test_on_torch_they_have_the_same_bits() -> None:
    _, here = of((3,))
    _, there = of((3,), TorchNamespace("cpu"))
    seed, bits = np.uint32(11), torch.tensor(11, dtype=torch.int32)
    with np.errstate(over="ignore"):
        for t in range(70):
            np.testing.assert_array_equal(there(bits, 0, t).numpy(), here(seed, 0, t))


def test_few_blocks_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    block = Draws.block
    monkeypatch.setattr(Draws, "block", lambda self, *at: made.append(at) or block(self, *at))
    ctx = rc.Context(dims="i t")
    with ctx as ((i, I), (t, T)):
        x = rc.like(rc.f32[2], domain=(i, t))
        x[i, 0] = 0.0
        noise = rc.uniform((i, t), (2,))
        x[i, t + 1] = rc.call(lambda y, z: y * 0.5 + z, rc.f32[2], x, noise)
        rc.log(m=x[i, 0:T].sum())
    program = ctx.compile({I: 3, T: 100}, backend="numpy")
    want = ctx.run({I: 3, T: 100}, seed=4, backend="jax")["m"]
    np.testing.assert_allclose(program.run(seed=4)["m"], want, rtol=1e-6)
    assert 0 < len(made) <= 3 * 3
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: program.run(seed=seed)["m"], [4, 5] * 6))
    for m in found[::2]:
        np.testing.assert_allclose(m, want, rtol=1e-6)
    np.testing.assert_array_equal(found[1], found[3])


def test_what_data_choose_or_is_large_is_drawn_by_itself() -> None:
    op = Uniform(id=7, counter=(Sym("t"),), shape=(1000,))
    assert draws_of(op, {"t": counted("t")}, np) is None
    small = Uniform(id=7, counter=(Sym("t"),))
    assert draws_of(small, {"t": np.int32(3)}, np) is None
    assert draws_of(small, {"t": 3}, np) is None
