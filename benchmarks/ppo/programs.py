"""The hand-written JAX programs of one device as contestants: regions, a Python loop of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from benchmarks.harness import Contestant
from benchmarks.ppo.kernels import BATCH_FIRST, BATCH_LAST, Arrays, unpacked
from benchmarks.ppo.regions import (
    LAUNCH,
    Carried,
    Form,
    Part,
    act,
    adam,
    begin,
    learn,
    region,
    stores,
)
from benchmarks.ppo.workload import SAMPLE, SEED, Work, answers
from benchmarks.threefry import uniform

FIRST_KEPT, FIRST = Form(BATCH_FIRST, keep=True), Form(BATCH_FIRST, keep=False)
LAST_KEPT, LAST = Form(BATCH_LAST, keep=True), Form(BATCH_LAST, keep=False)
LATE = Form(BATCH_LAST, keep=True, late=True)
LOOP = Form(BATCH_FIRST, keep=True)


class State(NamedTuple):
    """A program between two iterations; `stores` is its workspace."""

    carried: Carried
    stores: Arrays
    i: int


Advance = Callable[[State, int], tuple[State, NDArray[Any]]]


def contestant(
    name: str, work: Work, start: Callable[[], State], advance: Advance, same_draws: bool = True
) -> Contestant:
    """A program given by its first state and by `advance(state, k)` → (state, metrics [2, k])."""
    state: State | None = None

    def run(index: int) -> NDArray[Any]:
        nonlocal state
        state, metrics = advance(state or start(), index)
        jax.block_until_ready(state.carried)
        return metrics[0]

    def answer() -> Mapping[str, NDArray[Any]]:
        after, metrics = advance(start(), 1)
        reward, norm = metrics[:, 0]
        theta, m, *_ = after.carried
        return answers(work, reward, norm, m, theta)

    return Contestant(name, run, answer, same_draws)


def in_launches(call: Callable[..., Any], seed: int) -> Advance:
    """Iterations in launches of at most LAUNCH."""
    key = jnp.uint32(seed)

    def advance(state: State, index: int) -> tuple[State, NDArray[Any]]:
        c, ws, i = state
        metrics: list[NDArray[Any]] = []
        for done in range(0, index, LAUNCH):
            trip = min(LAUNCH, index - done)
            c, ws, found = call(c, ws, key, jnp.int32(i + done), jnp.int32(trip))
            metrics.append(np.asarray(found)[:, :trip])
        return State(c, ws, i + index), np.concatenate(metrics, 1)

    return advance


def region_of(
    name: str, form: Form, work: Work, seed: int = SEED, dtype: DTypeLike = jnp.float32
) -> Contestant:
    """The region on one device."""

    def start() -> State:
        return State(begin(form, work, seed, dtype), stores(form, work, dtype), 0)

    return contestant(name, work, start, in_launches(region(form, work), seed))


def batch_first(work: Work) -> Contestant:
    """[rows, features]; the learner computes activations again."""
    return region_of("region, batch first", FIRST, work)


def batch_first_kept(work: Work) -> Contestant:
    """[rows, features]; acting stores activations."""
    return region_of("region, batch first, kept", FIRST_KEPT, work)


def batch_last(work: Work) -> Contestant:
    """[features, columns]; the learner computes activations again."""
    return region_of("region, batch last", LAST, work)


def batch_last_kept(work: Work) -> Contestant:
    """[features, columns]; acting stores activations."""
    return region_of("region, batch last, kept", LAST_KEPT, work)


def batch_last_late(work: Work) -> Contestant:
    """[features, columns]; the critic runs in the loop of advantages, the actor's are stored."""
    return region_of("region, batch last, late critic", LATE, work)


def python_loop(
    work: Work, seed: int = SEED, dtype: DTypeLike = jnp.float32, form: Form = LOOP
) -> Contestant:
    """TEMPO's scheme (section 6): the host drives t, one launch a step, an arena is donated on."""
    part, b = Part(work.B * work.T), jnp.arange(work.B)

    @partial(jax.jit, donate_argnums=(1, 2))
    def step(th: Arrays, state: Any, ws: Arrays, seed: Any, i: Any, t: Any) -> Any:
        return act(form, work, th, ws, state, uniform(seed, SAMPLE, i, b, t, dtype), t)

    @partial(jax.jit, donate_argnums=(0,))
    def update(carried: Carried, ws: Arrays, i: Any) -> Any:
        found = unpacked(learn(form, work, carried.theta, ws, carried.state.x, part))
        carried, norm = adam(carried, found, i)
        return carried, jnp.stack([ws["r"].sum() / part.n, norm])

    key, times = jnp.uint32(seed), [jnp.int32(t) for t in range(work.T)]

    def advance(state: State, index: int) -> tuple[State, NDArray[Any]]:
        (c, ws, first), metrics = state, []
        for i in map(jnp.int32, range(first, first + index)):
            moved = c.state
            for t in times:
                moved, ws = step(c.theta, moved, ws, key, i, t)
            c, found = update(c._replace(state=moved), ws, i)
            metrics.append(found)
        return State(c, ws, first + index), np.stack([np.asarray(x) for x in metrics], 1)

    def start() -> State:
        return State(begin(form, work, seed, dtype), stores(form, work, dtype), 0)

    return contestant("Python loop of launches", work, start, advance)
