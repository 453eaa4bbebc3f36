"""Programs of one host call a step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import recurra as rc

KINDS = ("first", "carried", "later", "nested")


class World:
    """A host function with state, which keeps the operands that it was given as they were."""

    def __init__(self) -> None:
        self.calls, self.seen, self.copies = 0, list[np.ndarray](), list[np.ndarray]()

    def __call__(self, a: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.seen.append(a)
        self.copies.append(np.array(a))
        return np.sin(a * np.float32(1.5) + np.float32(self.calls))


def program(world: Callable[[np.ndarray], np.ndarray], kind: str = "first") -> rc.Context:
    """o[i,t+1] = world(act(o[i,t])), and learning of each step, or of all when they have passed."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, _), (t, T)):
        w = rc.like(rc.f32, domain=(i,))
        w[0] = 0.5
        o = rc.like(rc.f32, domain=(b, i, t))
        o[b, i, 0] = rc.value(b).cast("f32") * 0.1 + w
        a = (o * w).tanh() + rc.uniform((b, i, t))
        if kind == "nested":
            a = a + o[b, i, rc.max(t - 3, 0) : t + 1].mean()
        r = rc.call(world, rc.f32, a, batch=(b,))
        o[b, i, t + 1] = r
        late = o[b, i, t] * r if kind != "later" else a[b, i, rc.min(t + 2, T - 1)] * r
        if kind == "carried":
            kept = rc.like(rc.f32, domain=(b, i, t))
            kept[b, i, 0] = r
            kept[b, i, t] = 0.5 * kept[b, i, t - 1] + r
            late = late + kept * a
        w[i + 1] = w + 0.01 * late[0:B, i, 0:T].mean()
        seen = a[0:B, i, 0:T].sum() + o[0:B, i, 0:T].max()
        rc.output(o=o, a=a, late=late, w=w, seen=seen)
    return ctx
