"""What every program must pass: passes keep the oracle's answer, plans hold, backends agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from random_programs import Case, ragged
from recurra.backend.numpy import NumpyBackend
from recurra.compile import compile_graph
from recurra.cost.target import PLAIN, aimed
from recurra.interp import run
from recurra.ir.graph import Graph
from recurra.ir.text import parse
from recurra.ir.verify import verify
from recurra.memory.validate import validate
from recurra.program.execute import Backend, Execution
from recurra.rewrite.accumulate import accumulate
from recurra.rewrite.granularity import Axes, batch_dims, granularity, loops, restored
from recurra.rewrite.keep import keep
from recurra.rewrite.lift import lift
from recurra.rewrite.pad import pad
from recurra.rewrite.place import place
from recurra.rewrite.simplify import contract, simplify
from recurra.rewrite.single import fewer_dims, single
from recurra.rewrite.split import split
from recurra.rewrite.strip import strip
from recurra.rewrite.tile import tile, tiles
from recurra.rewrite.unshuffle import unshuffle
from recurra.rewrite.wavefront import on_diagonals
from recurra.schedule.levels import schedule
from recurra.schedule.tree import phases

Sizes = Mapping[str, int]
State = tuple[Graph, list[Axes]]  # a graph, and for each output its dims and which axes are dims
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def start(graph: Graph) -> State:
    return graph, [(graph[o].domain.dims, ("",) * len(graph[o].type.shape)) for o in graph.outputs]


def plain(f: Callable[[Graph, Sizes], Graph]) -> Callable[[State, Sizes], State]:
    return lambda s, sizes: (f(s[0], sizes), s[1])


def kept(g: Graph, sizes: Sizes) -> Graph:
    g = place(g, sizes)
    return keep(g, sizes, phases(schedule(g, sizes, frozenset(batch_dims(g)))))[0]


def tiled(g: Graph, sizes: Sizes) -> Graph:
    g = place(g, sizes)
    free = batch_dims(g)
    for t in tiles(g, sizes, phases(schedule(g, sizes, frozenset(free))), loops(g), set(free)):
        g = tile(g, t)
    return g


def batched(last: bool) -> Callable[[State, Sizes], State]:
    def f(state: State, sizes: Sizes) -> State:
        g, axes = state
        new, decided = granularity(g, sizes, batch_dims(g), last)
        out: list[Axes] = []
        for o, (dims, names) in zip(g.outputs, axes, strict=True):
            for d in decided:
                if o in d.members:
                    dims = tuple(x for x in dims if x != d.dim)
                    names = (*names, d.dim) if d.last else (d.dim, *names)
            out.append((dims, names))
        return new, out

    return f


def alone(state: State, sizes: Sizes) -> State:
    """Without dims of one point."""
    g, axes = state
    new, made = single(g, sizes)
    return new, fewer_dims(axes, made)


def skewed(g: Graph, sizes: Sizes) -> Graph:
    return on_diagonals(place(g, sizes), sizes, 0.0)[0]


PASSES: dict[str, Callable[[State, Sizes], State]] = {
    "single": alone,
    "simplify": plain(simplify),
    "unshuffle": plain(unshuffle),
    "wavefront": plain(skewed),
    "lift": plain(lift),
    "split": plain(partial(split, fewest=1)),
    "strip": plain(partial(strip, size=2)),
    "pad": plain(pad),
    "place": plain(place),
    "keep": plain(kept),
    "tile": plain(tiled),
    "first": batched(last=False),
    "last": batched(last=True),
    "contract": plain(contract),
    "accumulate": plain(accumulate),
}
PIPELINE = (
    "single",
    "simplify",
    "unshuffle",
    "lift",
    "split",
    "strip",
    "pad",
    "keep",
    "tile",
    "first",
    "contract",
    "accumulate",
    "contract",
)


def same(
    case: Case,
    got: Sequence[Any],
    want: Sequence[Any],
    what: str,
    exact: bool = False,
    **close: float,
) -> None:
    for o, x, y in zip(case.graph.outputs, got, want, strict=True):
        assert x.shape == y.shape, f"{what}: {o} has shape {x.shape}, wants {y.shape}"
        if exact:
            np.testing.assert_array_equal(x, y, err_msg=f"{what}: {o}")
        else:
            np.testing.assert_allclose(x, y, err_msg=f"{what}: {o}", **(close or CLOSE))


def oracle(case: Case) -> list[Any]:
    found = run(case.graph, case.sizes)
    return [found[o] for o in case.graph.outputs]


def passes(case: Case, names: Sequence[str], want: Sequence[Any], **close: float) -> None:
    """Every pass, one after the other, keeps every output."""
    state = start(case.graph)
    done: list[str] = []
    for name in names:
        if ragged(state[0], case.sizes) and name in ("keep", "tile"):
            continue  # what has no static length has no place in memory
        done.append(name)
        state = PASSES[name](state, case.sizes)
        g, axes = state
        verify(g)
        assert parse(str(g)) == g
        found = run(g, case.sizes)
        got = [
            restored(found[o], case.graph[was].domain.dims, a, np)
            for o, was, a in zip(g.outputs, case.graph.outputs, axes, strict=True)
        ]
        same(case, got, want, " ".join(done), **close)


def compiled(
    case: Case,
    backend: Backend,
    want: Sequence[Any],
    exact: bool = False,
    check: bool = True,
    **options: Any,
) -> list[Any]:
    """The plan is valid, and the program gives what the oracle gives."""
    c = compile_graph(case.graph, case.sizes, **aimed(PLAIN, options))
    if check:
        wrong = validate(c.plan)
        assert not wrong, f"{options}: {wrong[0]}\n{c.schedule}\n{c.plan}"
    steps = Execution(c.program, backend).steps()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            results = end.value
            break
    got = [
        restored(results[c.outputs[o]], case.graph[o].domain.dims, c.axes[o], np)
        for o in case.graph.outputs
    ]
    same(case, got, want, f"{backend.name} {options}", exact)
    return got


def examine(case: Case) -> None:
    """Everything but JAX."""
    want = oracle(case)
    numpy = NumpyBackend()
    for options in ({}, {"axes": False}, {"last": True, "strip": 2, "given": 1}):
        one = compiled(case, numpy, want, chunk=4, **options)
        compiled(case, numpy, one, exact=True, check=False, chunk=2, **options)
        compiled(case, numpy, one, exact=True, check=False, chunk=1, **options)
