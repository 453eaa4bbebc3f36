"""A small program that acts forwards, computes returns backwards and learns."""

from __future__ import annotations

import recurra as rc
from recurra.runtime.executable import Executable

SIZES = {"B": 4, "I": 9, "T": 6}


def learner(backend: str, **options: object) -> Executable:
    """Acting forwards, returns backwards, one step of learning."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, _), (t, T)):
        net = rc.nn.MLP([2, 5, 1], (i,))
        x = rc.input(rc.f32[2], (b,), "x")
        h = rc.like(rc.f32[2], domain=(b, i, t))
        h[b, i, 0] = x
        y = net(h)
        h[b, i, t + 1] = (h * 0.9 + y).tanh()
        back = rc.like(rc.f32[1], domain=(b, i, t))
        back[b, i, T - 1] = y
        back[b, i, t] = y + 0.9 * back[b, i, t + 1]
        loss = back.square()[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.Adam(net.params, lr=1e-2).step()
        rc.log(loss=loss)
    return ctx.compile(SIZES, backend=backend, **options)
