"""Random programs that learn in epochs of shuffled minibatches: parameters over several dims."""

from __future__ import annotations

import random
from typing import Any

import recurra as rc
from random_drawing import Case
from recurra.analysis.bound_values import known_bounds
from recurra.ir.expr import Sym
from recurra.ir.types import Range
from renamed import shuffled


def write(seed: int) -> tuple[rc.Context, dict[Any, int]]:
    """The program of a seed and its bounds: acting over t, learning over epochs and minibatches."""
    pick = random.Random(seed)
    ctx = rc.Context(dims=shuffled("b i e m n t", seed))
    with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
        rows, steps = pick.randint(1, 3), pick.choice([1, 2, 4])
        parts = pick.choice([k for k in (1, 2, 4) if rows * steps % k == 0])
        bounds = {B: rows, T: steps, M: parts, N: rows * steps // parts}
        bounds |= {I: pick.randint(1, 2), E: pick.choice([1, 1, 2])}
        wide = pick.random() < 0.5
        start = rc.constant([0.5, -0.3]) if wide else rc.constant(0.5)
        w = rc.nn.Parameter(start, domain=((i, e, m),), name="w")
        first = w[i, 0, 0]
        shape = (2,) if wide else ()
        # acting: a recurrence, or draws that nothing orders
        x = rc.like(rc.f32[shape], domain=(b, i, t))
        if pick.random() < 0.6:
            x[b, i, 0] = rc.uniform((b, i), shape)
            x[b, i, t + 1] = (x * 0.5 + first * rc.uniform((b, i, t), shape)).tanh()
        else:
            x[b, i, t] = rc.uniform((b, i, t), shape) - 0.4
        target = x.sin() if pick.random() < 0.5 else x[b, i, t:T].sum(axis=0)
        domain = pick.choice([(i, e), (e,), (i,)])
        k = rc.permutation(B * T, at=m * N + n, domain=domain)
        seen = [rc.rl.rows(y.detach(), k, over=(b, t)) for y in (x, target)]
        error = (seen[0] * w - seen[1]).square()
        error = error.sum() if wide else error
        if pick.random() < 0.4:
            error = error * rc.value(m + 1, "f32")
        loss = error[i, e, m, 0:N]
        loss = loss.mean() if pick.random() < 0.5 else loss.sum()
        loss.backward(wrt=[w])
        if pick.random() < 0.7:
            optim: Any = rc.optim.SGD([w], lr=0.1)
        else:
            optim = rc.optim.Adam([w], lr=0.05)
        optim.step()
        shown = {"w": w, "loss": loss, "seen": seen[0], "x": x, "last": w[I - 1, E - 1, M - 1]}
        names = pick.sample(sorted(shown), pick.randint(1, 3))
        rc.output(**{name: shown[name] for name in names})
        if pick.random() < 0.5:
            rc.output(total=loss[i, 0:E, 0:M].sum())
    return ctx, bounds


def case(seed: int) -> Case:
    """The same as a graph, with numbers for the bounds of its dims."""
    ctx, given = write(seed)
    graph = ctx.graph
    sizes = known_bounds(graph, {str(b): n for b, n in given.items()})
    assert all(d.range == Range(d.name, Sym(d.name.upper())) for d in graph.dims)
    return Case(graph, dict(sizes))
