"""A learner whose stores are offloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import recurra as rc
from recurra.frontend.nn.distributions import Categorical
from recurra.runtime.executable import Executable
from recurra.storage.offload import Offload

IMAGE = (3, 8, 8)


SMALL = Offload("disk", least=0)


def learner(
    backend: str = "numpy",
    folder: Path | None = None,
    picture: tuple[int, ...] = IMAGE,
    **options: Any,
) -> Executable:
    """REINFORCE: all pictures are kept until what followed is known."""
    pixels = int(np.prod(picture))

    def world(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pictures that depend on what was done."""
        seen = np.arange(pixels).reshape(picture) * (1 + a[:, None, None, None])
        return seen.astype(np.uint8), (a == 2).astype(np.float32)

    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, iterations), (t, T)):
        net = rc.nn.MLP([pixels, 8, 4], (i,))
        o = rc.like(rc.u8[*picture], domain=(b, i, t), name="o")
        o[b, i, 0] = rc.constant(np.ones(picture, np.uint8))
        pi = Categorical(net(o.cast("f32").reshape((pixels,)) / 255.0))
        a = pi.sample()
        after, r = rc.call(world, (rc.u8[*picture], rc.f32), a, batch=(b,))
        o[b, i, t + 1] = after
        loss = -pi.log_prob(a) * r[b, i, t:T].discounted_sum(0.9)
        loss[0:B, i, 0:T].mean().backward()
        rc.optim.Adam(net.params, lr=1e-2).step()
        if folder is not None:
            net[i % 2 == 0].checkpoint(folder)
        rc.log(loss=loss[0:B, i, 0:T].mean())
    rows = 4 if picture == IMAGE else 128
    return ctx.compile({B: rows, iterations: 5, T: 12}, backend=backend, **options)
