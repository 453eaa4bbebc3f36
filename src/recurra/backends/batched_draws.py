"""Random draws of many loop steps, computed in one batch; each step takes its row.

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
    """The draws f(seed, *times) of an op; `times` are the values of `dims`, the fastest last.

    Safe to call from several threads: the cached block is one value, which is read once.
    """

    op: Uniform
    dims: tuple[str, ...]
    known: Mapping[str, int]  # the other numbers that the op mentions, and its sizes
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
        """The draws of a block of steps [steps, *shape]; the last number of `at` is the block's."""
        *outer, number = at
        dim, first = self.dims[-1], number * self.steps
        moved = self.op.at({dim: lin([(Sym(dim), 1), (first, 1)])})
        env = {**self.known, **dict(zip(self.dims[:-1], outer, strict=True)), SEED: seed}
        return moved.batch_symbol(dim, self.steps, False).run(self.xp, env)


def draws_of(op: Uniform, env: Mapping[str, Any], xp: Any) -> Draws | None:
    """Return the batched draws of an op; the counted dim that moves fastest is last in `env`.

    Return None if no time is counted, another number is known by data alone, or a step draws many.
    """
    used = {d: x for d, x in env.items() if d in op.mentions() - {d for d, *_ in op.bind}}
    dims = tuple(d for d, x in used.items() if isinstance(x, Count))
    known = {d: x for d, x in env.items() if isinstance(x, int)}
    if not dims or used.keys() - known.keys() - {*dims}:
        return None
    steps = min(MAX_BLOCK_STEPS, MAX_BLOCK_DRAWS // max(1, prod(op.infer().sizes(env))))
    return Draws(op, dims, known, steps, xp) if steps >= MIN_BLOCK_STEPS else None
