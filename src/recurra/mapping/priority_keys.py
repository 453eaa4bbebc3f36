"""Storages → numbers by which they can be ordered: the larger, the sooner it is placed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.struct_of_arrays import FlatProblem, Ints

Floats = NDArray[np.float64]
FEATURES = 14
LEAST, FLOOR = 1e-6, 0.1  # of a feature's deviation; of its units, as a part of that
UNITS = (0.3, 0.5, 0.7)  # how much what a tensor gains counts in the units of its features


class Summary:
    """Sums and extremes over the buffers of each storage, [S]."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        count = len(flat.grouped)
        self.until = np.concatenate([[0], np.cumsum(flat.supply)]).astype(float)  # [T + 1]
        none = np.iinfo(np.int64).max
        self.size = self._folded(np.maximum, flat.size, 0)
        self.uses = np.bincount(flat.storage, minlength=count).astype(float)
        benefit = np.array([b.benefit for b in flat.problem.buffers], np.int64)
        self.benefit = np.bincount(flat.storage, np.maximum(benefit, 0), count)
        gain = flat.gain * flat.times[flat.at]
        gain = np.where(flat.table_at[flat.at] >= 0, np.maximum(benefit, 0), np.maximum(gain, 0))
        self.gain = np.bincount(flat.storage, gain, count)
        self.first = self._folded(np.minimum, flat.at, none)
        ends = np.where(flat.output == 1, flat.life_end, flat.at)
        self.last = self._folded(np.maximum, ends, 0)
        self.duration = self.until[self.last + 1] - self.until[self.first]
        self.demand = self._folded(np.maximum, flat.demand, 0)
        self.output = self._folded(np.maximum, flat.output, 0)
        self.live_out = self._folded(np.maximum, flat.live_out, 0)
        self.live_in = self._folded(np.maximum, flat.live_in[flat.tensor], 0)
        gap = self.until[flat.next_use] - self.until[np.minimum(flat.at + 1, flat.next_use)]
        self.gap = np.zeros(count)
        np.maximum.at(self.gap, flat.storage, gap)

    def _folded(self, how: np.ufunc, values: Ints, start: int) -> Ints:
        out = np.full(len(self.flat.grouped), start, np.int64)
        how.at(out, self.flat.storage, values)
        return out


def keys(flat: FlatProblem) -> Mapping[str, Floats]:
    """Simple keys, by name."""
    s = Summary(flat)
    worth = (s.benefit + s.gain) / 2
    area = np.maximum(s.size * s.duration, 1.0)
    return {
        "benefit": worth,
        "density": worth / s.size,
        "area": worth / area,
        "boundedness": boundedness(flat, s),
    }


def boundedness(flat: FlatProblem, summary: Summary) -> Floats:
    """XLA's memory-boundedness: benefits of uses at which memory is the limit, over √size.

    A use at which computing is the limit counts negative, and only if no use gains.
    """
    t = flat.at
    traffic, compute = flat.traffic[t], np.maximum(flat.compute[t], 0)
    gain = flat.gain * flat.times[t]
    bound = np.where(traffic > compute, gain, traffic - compute).astype(float)
    gained = np.bincount(flat.storage, np.maximum(bound, 0), len(flat.grouped))
    least = np.full(len(flat.grouped), -np.inf)
    np.maximum.at(least, flat.storage, bound)
    return np.where(gained > 0, gained, least) / np.sqrt(summary.size)


def features(flat: FlatProblem) -> Floats:
    """[S, FEATURES], each of mean 0 and deviation 1: what a priority is a sum of."""
    found, _ = _traits(flat)
    return (found - found.mean(0)) / (found.std(0) + LEAST)


def shared_features(flat: FlatProblem) -> Floats:
    """[S, UNITS * FEATURES]: the same in units that weights for other programs can be in."""
    found, gained = _traits(flat)
    units = _units(found, gained)
    return ((found - found.mean(0))[:, None] / units).reshape(len(found), -1)


def shared_weights(flat: FlatProblem, weights: Floats) -> Floats:
    """[UNITS, UNITS * FEATURES] weights of `features`, in each unit; the order stays the same."""
    found, gained = _traits(flat)
    told = weights * _units(found, gained) / (found.std(0) + LEAST)
    return (np.eye(len(UNITS))[:, :, None] * told).reshape(len(UNITS), -1)


def most_valuable(flat: FlatProblem, part: float) -> Ints:
    """The fewest storages that gain together this part of what all do, in their order."""
    _, gained = _traits(flat)
    most = np.argsort(-gained, kind="stable")
    count = int((np.cumsum(gained[most]) < part * gained.sum()).sum()) + 1
    return np.sort(most[:count]).astype(np.int64)


def _units(found: Floats, gained: Floats) -> Floats:
    """[UNITS, FEATURES] deviations over tensors that count the more the more they gain: in a large
    program most tensors are of no account. None is far below the deviation over all of them."""
    some, least = list[Floats](), LEAST + FLOOR * found.std(0)
    for power in UNITS:
        worth = gained**power
        worth = worth / worth.sum() if worth.any() else np.full(len(found), 1 / len(found))
        some.append(np.maximum(least, np.sqrt(worth @ (found - worth @ found) ** 2)))
    return np.array(some)


def _traits(flat: FlatProblem) -> tuple[Floats, Floats]:
    """[S, FEATURES] as they are; [S] what a tensor gains."""
    s = Summary(flat)
    total, span = max(1, flat.problem.total), max(1.0, s.until[-1])

    def log(values: Floats, least: float) -> Floats:
        return np.log(np.maximum(values, least))

    size, life = log(s.size / max(1, flat.problem.fast_size), 1e-12), log(s.duration / span, 1e-12)
    columns = (
        size,
        log(s.benefit / total, 1e-9),
        log(s.gain / total, 1e-9),
        life,
        log(s.uses, 1.0),
        log(s.gap / span, 1e-6),
        s.output,
        s.live_out,
        flat.grouped,
        s.live_in,
        log(s.demand / span, 1e-9),
        s.first / len(flat.supply),
        size**2 / 10,
        life**2 / 10,
    )
    return np.stack(columns, axis=1).astype(float), (s.benefit + s.gain) / total


def ordered(key: Floats) -> Ints:
    """Storages, largest key first; ties in the order of the program."""
    return np.argsort(-key, kind="stable").astype(np.int64)
