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

from recurra.backend.count import Count
from recurra.cost.thresholds import MAX_BLOCK_DRAWS, MAX_BLOCK_STEPS, MIN_BLOCK_STEPS
from recurra.ir.expr import Sym, lin
from recurra.ir.types import NUMPY_NAME
from recurra.ops.source import Uniform

FIRST = "first step of the block"  # a symbol; no dim has this name


@dataclass(eq=False)
class Draws:
    """f(seed, *times) of a draw; the last time is the one that moves fastest.

    Several threads may call it: what is held is one value, and taken once.
    """

    op: Uniform  # of a block: an axis of `steps` leads
    dims: tuple[str, ...]
    known: Mapping[str, int]
    steps: int
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
        outer = dict(zip(self.dims, at[:-1], strict=False))
        return self.op.run(
            self.xp, {**self.known, **outer, FIRST: at[-1] * self.steps, "seed": seed}
        )


def draws_of(
    op: Uniform, env: Mapping[str, Any], xp: Any
) -> tuple[Draws, list[Count], tuple[int, ...], str] | None:
    """The draws of an op at times that are counted, its times, its shape and its type.

    None where no time is counted, another number is known by data alone, or it is large.
    """
    asked = {d: x for d, x in env.items() if d in op.mentions() - {d for d, *_ in op.bind}}
    dims = tuple(d for d, x in asked.items() if isinstance(x, Count))
    known = {d: x for d, x in asked.items() if isinstance(x, int)}
    if not dims or len(dims) + len(known) < len(asked):
        return None
    shape = op.infer().sizes(env)
    steps = min(MAX_BLOCK_STEPS, MAX_BLOCK_DRAWS // max(1, prod(shape)))
    if steps < MIN_BLOCK_STEPS:
        return None
    moved = op.at({dims[-1]: lin([(Sym(dims[-1]), 1), (Sym(FIRST), 1)])})
    block = moved.batch_symbol(dims[-1], steps, False)
    sizes = {k: x for k, x in env.items() if isinstance(x, int)}
    made = Draws(block, dims, {**sizes, **known}, steps, xp)
    return made, [asked[d] for d in dims], shape, NUMPY_NAME[op.dtype]
