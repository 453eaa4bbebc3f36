"""Programs whose rows are split over workers."""

from __future__ import annotations

from typing import Any

import numpy as np

import ppo_program
import recurra as rc


def ppo(B: int, **options: Any) -> Any:
    """Traceable rows that go on from iteration to iteration, minibatches, gradients clipped."""
    return ppo_program.program(B, 3, 1, 1, 4, **options)


def hosted(B: int, **options: Any) -> Any:
    """Rows of Gymnasium."""
    from recurra.rl.recipes import Reinforce

    ctx, bounds = Reinforce(iterations=2, rows=B, steps=6).program()
    return ctx.compile(bounds, **options)


def saved(B: int, **options: Any) -> Any:
    """Learning that is saved."""
    ctx = rc.Context(dims="b i")
    with ctx as ((b, B_), (i, I)):
        layer = rc.nn.Linear(1, 1, domain=(i,))
        assert layer.bias is not None
        layer(rc.uniform((b, i), (1,))).sum()[0:B_, i].mean().backward()
        rc.optim.SGD(layer.params, lr=0.1).step()
        layer[i % 2 == 0].checkpoint("never")
        rc.log(w=layer.weight.sum() + layer.bias.sum())
    return ctx.compile({B_: B, I: 3}, **options)


def lengths(**options: Any) -> dict[str, np.ndarray]:
    """Rows that the data end, and a sum over them that the next iteration reads."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        x = rc.uniform((b, i, t))
        g = x[b, i, t:T].discounted_sum(0.9)
        w = rc.like(rc.f32, domain=(i,), name="w")
        w[0] = rc.constant(0.0)
        w[i + 1] = w + g[0:B, i, 0].sum()
        rc.output(w=w, n=rc.value(T))
        sizes = {B: 4, I: 3, T: rc.until(x > 0.8, max=12)}
    return ctx.compile(sizes, **options).run(seed=2)
