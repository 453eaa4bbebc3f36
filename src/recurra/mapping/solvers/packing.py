"""Packing: every buffer stays for its life, and all have to fit, as in minimalloc.

Branch and bound tries several orders in turn, with twice as many nodes in each round: where one
order is stuck, another may succeed at once. The first three orders and the doubling are
minimalloc's.
"""

from __future__ import annotations

import numpy as np

from recurra.errors import either
from recurra.mapping.priority_keys import Floats, ordered
from recurra.mapping.search import Search
from recurra.mapping.solvers.one_pass import place_by_keys
from recurra.mapping.struct_of_arrays import Ints
from recurra.storage.exact_packing import Packed
from recurra.storage.mapping_problem import Placement, ProblemError, Solution

NODES = 2  # per buffer, in the first round
LIFE, AREA, LOAD = range(3)
ORDERS = (  # the columns to sort by, and whether the load is updated during the search
    ((LIFE, AREA, LOAD), False),
    ((LOAD, AREA, LIFE), False),
    ((LOAD, LIFE, AREA), False),
    ((AREA, LIFE, LOAD), True),
    ((LIFE, AREA, LOAD), True),
)
NOISE = 1.0  # the largest scale of noise on the logarithm of a key


def pack(search: Search) -> None:
    """Search for a packing; until then the answer is the best of the simple keys, a part.

    Raises `ProblemError` if a buffer cannot stay for its life, or if there is no packing.
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
            order_of_buffers = np.lexsort([-columns[k] for k in reversed(order)])
            offsets = offsets or _try_order(search, order_of_buffers, by_load, nodes)
        offsets = offsets or _try_order(search, _random_order(search, columns), True, nodes)
        nodes *= 2
    if offsets is not None:
        f = search.flat
        lives = zip(offsets, f.at.tolist(), f.life_end.tolist(), strict=True)
        placements = tuple(Placement(o, t, end, copied=False) for o, t, end in lives)
        search.offer(problem.total, lambda: Solution(placements))


def _random_order(search: Search, columns: Floats) -> Ints:
    """Order buffers by a random mixture of the three columns, and noise."""
    weights = search.random.random(3) * (1, 1, 3)
    noise = NOISE * search.random.random() * search.random.standard_normal(columns.shape[1])
    key: Floats = weights @ np.log(columns) + noise
    return ordered(key)


def _columns(search: Search) -> Floats:
    """Return [3, N]: the life of each buffer, life × size, and the load of its fullest step."""
    f = search.flat
    passed = np.concatenate([[0], np.cumsum(np.maximum(1, f.supply))])
    life = passed[f.life_end + 1] - passed[f.at]
    load = np.zeros(len(f.supply))
    for t, end, size in zip(f.at, f.life_end, f.size, strict=True):
        load[t : end + 1] += size
    lives = zip(f.at, f.life_end, strict=True)
    fullest = np.array([load[t : end + 1].max() for t, end in lives])
    return np.stack([life, life * f.size, fullest]).astype(float)


def _try_order(search: Search, order: Ints, by_load: bool, nodes: int) -> list[int] | None:
    ranks = np.argsort(order).astype(np.int64)
    result, offsets = search.engine.pack(search.flat, ranks, by_load, nodes)
    if result == Packed.NO:
        raise ProblemError(
            f"{search.problem.name} cannot be packed",
            facts=f"every order was tried; there are {search.problem.fast_size} B of fast memory",
        )
    return offsets if result == Packed.YES else None
