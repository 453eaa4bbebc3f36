"""Packing: everything stays for its life, and has to fit at once; what minimalloc is asked.

Branch and bound, first by load, life and size in each order of the three, then again and again with
mixed, disturbed ranks and Luby's numbers of nodes: where one is stuck, another finds it at once.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from recurra.mapping.flat import Ints
from recurra.mapping.keys import Floats
from recurra.mapping.pack import Packed
from recurra.mapping.search import Search, solver
from recurra.mapping.solvers.greedy import place_by_keys
from recurra.memory.problem import Placement, ProblemError, Solution

NODES = 200  # of the shortest trial
ORDERS = tuple(permutations(range(3)))
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
                hint="--solver default",
            )
    place_by_keys(search)
    trial, offsets = 0, None
    while offsets is None and search.running():
        trial += 1
        nodes = NODES * (luby(trial - len(ORDERS)) if trial > len(ORDERS) else 10)
        offsets = _tried(search, _ranks(search, trial), nodes)
    if offsets is not None:
        packed = _solution(search, offsets)
        search.offer(problem.total, lambda: packed)


def luby(k: int) -> int:
    """1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..: the k-th, from 1 (Luby, Sinclair and Zuckerman 1993)."""
    power = 1
    while power * 2 - 1 < k:
        power *= 2
    return power if power * 2 - 1 == k else luby(k - power + 1)


def _ranks(search: Search, trial: int) -> Ints:
    f = search.flat
    life = (f.life_end - f.at + 1).astype(float)
    columns = np.stack([_load(search), life, f.size.astype(float)])
    if trial <= len(ORDERS):
        first, second, third = ORDERS[trial - 1]
        order = np.lexsort((-columns[third], -columns[second], -columns[first]))
        return np.argsort(order).astype(np.int64)
    weights = search.random.random(3) * (3, 1, 1)
    noise = NOISE * search.random.random() * search.random.standard_normal(len(f.size))
    key: Floats = weights @ np.log(columns) + noise
    return np.argsort(np.argsort(-key, kind="stable")).astype(np.int64)


def _load(search: Search) -> Floats:
    """What is alive at the fullest step of each item's life."""
    f = search.flat
    load = np.zeros(len(f.supply))
    for t, end, size in zip(f.at, f.life_end, f.size, strict=True):
        load[t : end + 1] += size
    lives = zip(f.at, f.life_end, strict=True)
    return np.array([load[t : end + 1].max() for t, end in lives])


def _tried(search: Search, ranks: Ints, nodes: int) -> list[int] | None:
    found, offsets = search.engine.pack(search.flat, ranks, nodes)
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
