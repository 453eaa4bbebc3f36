"""Packing: everything stays for its life, and has to fit at once; what minimalloc is asked.

Branch and bound over orders in turn, with ever more nodes: where one is stuck, another finds it at
once. The first three orders and the doubling are minimalloc's.
"""

from __future__ import annotations

import numpy as np

from recurra.errors import either
from recurra.mapping.priority_keys import Floats
from recurra.mapping.search import Search, solver
from recurra.mapping.solvers.greedy import place_by_keys
from recurra.mapping.struct_of_arrays import Ints
from recurra.storage.exact_packing import Packed
from recurra.storage.mapping_problem import Placement, ProblemError, Solution

NODES = 2  # per buffer, in the first round
LIFE, AREA, LOAD = range(3)
ORDERS = (  # what is compared first, second, third; is load counted anew?
    ((LIFE, AREA, LOAD), False),
    ((LOAD, AREA, LIFE), False),
    ((LOAD, LIFE, AREA), False),
    ((AREA, LIFE, LOAD), True),
    ((LIFE, AREA, LOAD), True),
)
NOISE = 1.0  # of the logarithm of a rank's key, at most


@solver
def solve(search: Search) -> None:
    """Stops at the first packing; until then the best of simple keys, which place only a part.

    Raises `ProblemError` if something cannot stay for its life, or if there is no packing.
    """
    problem = search.problem
    for i, b in enumerate(problem.buffers):
        if not b.is_output or b.alias_id is not None or b.live_range[1] >= problem.steps:
            raise ProblemError(
                f"{problem.name}: buffer {i} is not one to pack",
                facts="what is packed is made by its step, used no more, and dies in the program",
                hint=either("--solver default", "solver_of('default')"),
            )
    place_by_keys(search)
    nodes, offsets = NODES * len(problem.buffers), None
    columns = _columns(search)
    while offsets is None and search.running():
        for order, by_load in ORDERS:
            ranks = _places(np.lexsort([-columns[k] for k in reversed(order)]))
            offsets = offsets or _tried(search, ranks, by_load, nodes)
        offsets = offsets or _tried(search, _disturbed(search, columns), True, nodes)
        nodes *= 2
    if offsets is not None:
        packed = _solution(search, offsets)
        search.offer(problem.total, lambda: packed)


def _places(order: Ints) -> Ints:
    return np.argsort(order).astype(np.int64)


def _disturbed(search: Search, columns: Floats) -> Ints:
    """Ranks by a random mixture of the three, and noise."""
    weights = search.random.random(3) * (1, 1, 3)
    noise = NOISE * search.random.random() * search.random.standard_normal(columns.shape[1])
    key: Floats = weights @ np.log(columns) + noise
    return _places(np.argsort(-key, kind="stable"))


def _columns(search: Search) -> Floats:
    """[3, N] how long each lives, that times its size, and the load of its fullest step."""
    f = search.flat
    passed = np.concatenate([[0], np.cumsum(np.maximum(1, f.supply))])
    life = passed[f.life_end + 1] - passed[f.at]
    return np.stack([life, life * f.size, _load(search)]).astype(float)


def _load(search: Search) -> Floats:
    """The bytes alive at the fullest step of each item's life."""
    f = search.flat
    load = np.zeros(len(f.supply))
    for t, end, size in zip(f.at, f.life_end, f.size, strict=True):
        load[t : end + 1] += size
    lives = zip(f.at, f.life_end, strict=True)
    return np.array([load[t : end + 1].max() for t, end in lives])


def _tried(search: Search, ranks: Ints, by_load: bool, nodes: int) -> list[int] | None:
    found, offsets = search.engine.pack(search.flat, ranks, by_load, nodes)
    if found == Packed.NO:
        raise ProblemError(
            f"{search.problem.name} cannot be packed",
            facts=f"every order was tried; there are {search.problem.fast_size} B of fast memory",
        )
    return offsets if found == Packed.YES else None


def _solution(search: Search, offsets: list[int]) -> Solution:
    f = search.flat
    lives = zip(offsets, f.at.tolist(), f.life_end.tolist(), strict=True)
    return Solution(tuple(Placement(o, t, end, copied=False) for o, t, end in lives))
