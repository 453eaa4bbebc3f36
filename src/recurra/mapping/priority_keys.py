"""Keys and features by which storages are ordered: the larger the key, the sooner it is placed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from recurra.mapping.struct_of_arrays import FlatProblem, Ints

Floats = NDArray[np.float64]
FEATURES = 14
LEAST, FLOOR = 1e-6, 0.1  # the smallest deviation of a feature; of its unit, as a share of that
UNITS = (0.3, 0.5, 0.7)  # in the units of features, a storage counts by these powers of its gain


class Summary:
    """Sums and extremes over the buffers of each storage, [S]."""

    def __init__(self, flat: FlatProblem) -> None:
        self.flat = flat
        count = len(flat.grouped)
        self.until = np.concatenate([[0], np.cumsum(flat.supply)]).astype(float)  # [T + 1]
        largest = np.iinfo(np.int64).max
        self.size = self._reduce(np.maximum, flat.size, 0)
        self.uses = np.bincount(flat.storage, minlength=count).astype(float)
        benefit = np.array([b.benefit for b in flat.problem.buffers], np.int64)
        self.benefit = np.bincount(flat.storage, np.maximum(benefit, 0), count)
        gain = flat.gain * flat.times[flat.at]
        gain = np.where(flat.table_at[flat.at] >= 0, np.maximum(benefit, 0), np.maximum(gain, 0))
        self.gain = np.bincount(flat.storage, gain, count)
        self.first = self._reduce(np.minimum, flat.at, largest)
        ends = np.where(flat.output == 1, flat.life_end, flat.at)
        self.last = self._reduce(np.maximum, ends, 0)
        self.duration = self.until[self.last + 1] - self.until[self.first]
        self.demand = self._reduce(np.maximum, flat.demand, 0)
        self.output = self._reduce(np.maximum, flat.output, 0)
        self.live_out = self._reduce(np.maximum, flat.live_out, 0)
        self.live_in = self._reduce(np.maximum, flat.live_in[flat.tensor], 0)
        gap = self.until[flat.next_use] - self.until[np.minimum(flat.at + 1, flat.next_use)]
        self.gap = np.zeros(count)
        np.maximum.at(self.gap, flat.storage, gap)

    def _reduce(self, operator: np.ufunc, values: Ints, start: int) -> Ints:
        out = np.full(len(self.flat.grouped), start, np.int64)
        operator.at(out, self.flat.storage, values)
        return out


def keys(flat: FlatProblem) -> Mapping[str, Floats]:
    """Return simple keys by name, [S] each."""
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
    """Return XLA's memory-boundedness: the benefits of memory-bound uses, over √size.

    A compute-bound use counts as negative, and only if no use gains.
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
    """Return the features of storages [S, FEATURES], each of mean 0 and deviation 1."""
    raw, _ = _raw_features(flat)
    return (raw - raw.mean(0)) / (raw.std(0) + LEAST)


def shared_features(flat: FlatProblem) -> Floats:
    """Return features [S, UNITS * FEATURES] in units that weights of other programs can use."""
    raw, gain = _raw_features(flat)
    return ((raw - raw.mean(0))[:, None] / _units(raw, gain)).reshape(len(raw), -1)


def shared_weights(flat: FlatProblem, weights: Floats) -> Floats:
    """Convert weights of `features` to [UNITS, UNITS * FEATURES]: each row gives the same order."""
    raw, gain = _raw_features(flat)
    converted = weights * _units(raw, gain) / (raw.std(0) + LEAST)
    return (np.eye(len(UNITS))[:, :, None] * converted).reshape(len(UNITS), -1)


def most_valuable(flat: FlatProblem, part: float) -> Ints:
    """Return the fewest storages with this share of the gain of all, in their order."""
    _, gain = _raw_features(flat)
    most = np.argsort(-gain, kind="stable")
    count = int((np.cumsum(gain[most]) < part * gain.sum()).sum()) + 1
    return np.sort(most[:count]).astype(np.int64)


def _units(raw: Floats, gain: Floats) -> Floats:
    """Return [UNITS, FEATURES]: deviations weighted by gain, since most storages of a large program
    gain little. None is far below the unweighted deviation."""
    units, least = list[Floats](), LEAST + FLOOR * raw.std(0)
    for power in UNITS:
        weight = gain**power
        weight = weight / weight.sum() if weight.any() else np.full(len(raw), 1 / len(raw))
        units.append(np.maximum(least, np.sqrt(weight @ (raw - weight @ raw) ** 2)))
    return np.array(units)


def _raw_features(flat: FlatProblem) -> tuple[Floats, Floats]:
    """Return unscaled features [S, FEATURES], and gains [S]."""
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
    """Return storages with the largest key first, and ties in the order of the program."""
    return np.argsort(-key, kind="stable").astype(np.int64)
