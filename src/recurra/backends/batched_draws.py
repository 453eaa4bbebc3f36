"""Draws of one step that the host counts, made for many steps at once: a step takes its row.

    u = uniform(id=3, counter=(t,))      →      u = draws(seed, t)

A draw is a pure function of the seed, its id and its counters (Threefry-2x32): some hundred small
operations, which take as long for a block of steps as for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from recurra.backends.bounded_int import Count
from recurra.cost.thresholds import MAX_BLOCK_DRAWS, MAX_BLOCK_STEPS, MIN_BLOCK_STEPS
from recurra.ir.expr import SEED, Sym, lin
from recurra.ops.random import Uniform


@dataclass(eq=False)
class Draws:
    """f(seed, *times) of a draw, at the times of `dims`; the last is the one that moves fastest.

    Several threads may call it: what is held is one value, and taken once.
    """

    op: Uniform
    dims: tuple[str, ...]
    known: Mapping[str, int]  # the other numbers that it mentions, and its sizes
    steps: int  # of a block
    xp: Any
    held: tuple[Any, tuple[int, ...], Any] | None = None  # seed, block and draws

    def __call__(self, seed: Any, *times: int) -> Any:
        *outer, time = times
        number, row = divmod(time, self.steps)
        at, held = (*outer, number), self.held
        if held is None or held[0] is not seed or held[1] != at:
            self.held = held = (seed, at, self.block(seed, at))
        return self.xp.asarray(held[2][row], copy=True)

    def block(self, seed: Any, at: tuple[int, ...]) -> Any:
        """The draws of a block of steps [steps, *shape], the last of `at` its number."""
        *outer, number = at
        dim, first = self.dims[-1], number * self.steps
        moved = self.op.at({dim: lin([(Sym(dim), 1), (first, 1)])})
        env = {**self.known, **dict(zip(self.dims[:-1], outer, strict=True)), SEED: seed}
        return moved.batch_symbol(dim, self.steps, False).run(self.xp, env)


def draws_of(op: Uniform, env: Mapping[str, Any], xp: Any) -> Draws | None:
    """The draws of an op whose times are counted, the one that moves fastest last in `env`.

    None where no time is counted, another number is known by data alone, or it is large.
    """
    asked = {d: x for d, x in env.items() if d in op.mentions() - {d for d, *_ in op.bind}}
    dims = tuple(d for d, x in asked.items() if isinstance(x, Count))
    known = {d: x for d, x in env.items() if isinstance(x, int)}
    if not dims or asked.keys() - known.keys() - {*dims}:
        return None
    steps = min(MAX_BLOCK_STEPS, MAX_BLOCK_DRAWS // max(1, prod(op.infer().sizes(env))))
    return Draws(op, dims, known, steps, xp) if steps >= MIN_BLOCK_STEPS else None
