"""A region as one jitted function: the walk of its schedule, traced once; everything large is donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from recurra.memory.plan import Plan
from recurra.program.region import Region
from recurra.program.walk import State, Walk


class JaxMachine:
    """Loops are fori_loops; stores are updated by dynamic slices, which XLA does in place."""

    xp: Any = jnp

    def loop(self, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        return lax.fori_loop(lo, hi, body, carry)

    def read(self, store: Any, starts: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
        return lax.dynamic_slice(store, [jnp.asarray(s, jnp.int32) for s in starts], sizes)

    def gather(self, store: Any, axis: int, at: Any) -> Any:
        return jnp.take(store, at, axis=axis, mode="clip")

    def write(self, store: Any, starts: tuple[Any, ...], value: Any) -> Any:
        return lax.dynamic_update_slice(store, value, [jnp.asarray(s, jnp.int32) for s in starts])


def function(plan: Plan, r: Region) -> Callable[..., Any]:
    """f(seed, *ints, *held, *carried, *stores) -> (*gives, *stores), untraced."""
    walk = Walk(plan, JaxMachine())
    ints = 2 if r.chunk is not None else len(r.around)

    def run(seed: Any, *given: Any) -> tuple[Any, ...]:
        times, arrays = given[:ints], given[ints:]
        names = (*r.held, *r.carried)
        vals = dict(zip(names, arrays[: len(names)], strict=True))
        stores = dict(zip(r.stores, arrays[len(names) :], strict=True))
        state = State(vals, stores, {"seed": seed})
        if r.chunk is not None:
            walk.run(r.chunk, *times, r.active, state)
        else:
            state.clocks = tuple(zip(r.around, times, strict=True))
            if not r.around:
                walk.begin(0, state, r.active)
            walk.items(r.items, state, r.active)
        return (*(state.vals[v] for v in r.gives), *(state.stores[s] for s in r.stores))

    run.__name__ = r.name
    return run


def compiled(plan: Plan, r: Region) -> Any:
    """The jitted region; carried variables and stores are donated."""
    ints = 2 if r.chunk is not None else len(r.around)
    first = 1 + ints + len(r.held)
    donated = tuple(range(first, first + len(r.carried) + len(r.stores)))
    return jax.jit(function(plan, r), donate_argnums=donated)
