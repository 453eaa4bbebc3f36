"""Traits of storages in units that are the same for all programs: for priorities that are learned.

Sizes are parts of the fast memory, times and gains parts of the program's. Beside what a storage
is, they tell how crowded its life is, and what its room would cost, at prices of each step at which
what is worth them about fills the fast memory.
"""

from __future__ import annotations

import numpy as np

from recurra.mapping.flat import Flat, Ints
from recurra.mapping.keys import Floats, Summary

TRAITS = 18
EMPTY = 0.1  # of the fast memory: what is alive counts as so much at least
ROUNDS, EAGER, SHARP, CROWDED = 10, 0.5, 4.0, 2.0  # of finding prices


def traits(flat: Flat) -> Floats:
    """[S, TRAITS], each of mean 0."""
    s = Summary(flat)
    total, span = max(1, flat.problem.total), max(1.0, float(s.until[-1]))
    room = s.size / max(1, flat.problem.fast_size)
    size, life = _log(room, 1e-12), _log(s.duration / span, 1e-12)
    mean, most = crowd(s, room)
    stays, lives = costs(flat, s)
    columns = (
        size / 2,
        _log(s.benefit / total, 1e-9) / 3,
        _log(s.gain / total, 1e-9) / 3,
        life / 2,
        2 * _log(s.uses, 1.0),
        _log(s.gap / span, 1e-6) / 3,
        2 * s.output,
        2 * s.wanted,
        2 * flat.grouped,
        2 * s.exists,
        _log(s.demand / span, 1e-9) / 2,
        3 * s.first / len(flat.supply),
        size**2 / 20,
        life**2 / 20,
        mean,
        most,
        _log(stays / total, 1e-9) / 3,
        _log(lives / total, 1e-9) / 3,
    )
    found = np.stack(columns, axis=1).astype(float)
    return found - found.mean(0)


def first_traits() -> Floats:
    """The weights [TRAITS] of what gains, over what takes room for long."""
    weights = np.zeros(TRAITS)
    weights[:4] = -2, 1.5, 1.5, -2
    return weights


def crowd(s: Summary, room: Floats) -> tuple[Floats, Floats]:
    """Of what is alive in each step of a storage's life, as a logarithm: the mean, the most."""
    steps = len(s.flat.supply)
    change = np.bincount(s.first, room, steps + 1) - np.bincount(s.last + 1, room, steps + 1)
    alive = _log(np.cumsum(change)[:steps], EMPTY)
    until = np.concatenate([[0], np.cumsum(alive)])
    mean = (until[s.last + 1] - until[s.first]) / (s.last + 1 - s.first)
    return mean, highest(alive, s.first, s.last)


def highest(values: Floats, first: Ints, last: Ints) -> Floats:
    """The largest of values[first..last], for each pair."""
    wide = np.frexp(last - first + 1)[1] - 1  # 2^wide values, from either side, are all of them
    found, level = np.empty(len(first)), values
    for k in range(int(wide.max(initial=0)) + 1):
        here = wide == k
        found[here] = np.maximum(level[first[here]], level[last[here] - (1 << k) + 1])
        level = np.maximum(level[: -(1 << k)], level[1 << k :])
    return found


def costs(flat: Flat, s: Summary) -> tuple[Floats, Floats]:
    """What a storage's room costs, from each use to the next, and for its whole life."""
    size = flat.size / max(1, flat.problem.fast_size)
    since = _since(flat)
    until = _prices(flat, size, since, s.gains)
    each = size * (until[flat.at + 1] - until[since])
    room = s.size / max(1, flat.problem.fast_size)
    whole = room * (until[s.last + 1] - until[s.first])
    paid = np.bincount(flat.storage, each, len(room)).astype(float)
    return paid, whole


def _since(flat: Flat) -> Ints:
    """The step of the tensor's use before each buffer, or its own."""
    order = np.argsort(flat.tensor, kind="stable")
    same = flat.tensor[order][1:] == flat.tensor[order][:-1]
    found = flat.at.copy()
    found[order[1:][same]] = flat.at[order[:-1][same]]
    return found


def _prices(flat: Flat, size: Floats, since: Ints, gain: Floats | Ints) -> Floats:
    """The price of the whole fast memory until each step, [T + 1].

    A use that gains more than its room costs wants it; where more is wanted than there is, room
    gets dearer.
    """
    steps, end = len(flat.supply), flat.at + 1
    dense = gain[gain > 0] / np.maximum(size * (end - since), 1e-12)[gain > 0]
    price = np.full(steps, float(np.median(dense)) if len(dense) else 1.0)
    for _ in range(ROUNDS):
        until = np.concatenate([[0], np.cumsum(price)])
        worth = _log(gain, 1e-9) - _log(size * (until[end] - until[since]), 1e-30)
        wanted = size / (1 + np.exp(np.clip(-SHARP * worth, -30, 30)))
        change = np.bincount(since, wanted, steps + 1) - np.bincount(end, wanted, steps + 1)
        price *= np.exp(EAGER * (np.minimum(np.cumsum(change)[:steps], CROWDED) - 1))
        price = np.maximum(price, 1e-12 * price.max())
    return np.concatenate([[0], np.cumsum(price)])


def _log(x: Floats | Ints, least: float) -> Floats:
    return np.log(np.maximum(x, least))
