"""What several algorithms do with returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from recurra.ir.expr import compare, mul
from recurra.ir.types import Domain
from recurra.lang.dims import Index, wrap
from recurra.lang.functions import maximum
from recurra.lang.functions import where as choose
from recurra.lang.tensor import RecurrentTensor
from recurra.rl.env import declared
from recurra.rl.space import Tree


def total(x: RecurrentTensor, over: Sequence[Index]) -> RecurrentTensor:
    """Σ x over dims: the sum of x[0:B, i, 0:T] for over=(b, t)."""
    names = {str(d) for d in over}
    index = tuple(slice(None) if r.dim in names else Index(r.sym) for r in x.domain)
    return x[index].sum(axis=tuple(range(len(names & set(x.domain.dims)))))


def normalise(
    x: RecurrentTensor,
    over: Sequence[Index],
    where: RecurrentTensor | None = None,
    eps: float = 1e-8,
) -> RecurrentTensor:
    """(x - mean) / (std + eps), the moments over dims and, with `where`, over live points only."""
    w: Any = 1.0 + x * 0.0 if where is None else where.cast(x.dtype)
    n = total(w, over)
    mean = total(w * x, over) / n
    std = (total(w * (x - mean).square(), over) / n).sqrt()
    return (x - mean) / (std + eps)


def explained_variance(
    predicted: RecurrentTensor,
    target: RecurrentTensor,
    over: Sequence[Index],
    where: RecurrentTensor | None = None,
) -> RecurrentTensor:
    """1 - var(target - predicted) / var(target) over dims; with `where`, over live points only.

    It is 0 where the targets are all alike: there is nothing to explain.
    """
    w: Any = 1.0 + target * 0.0 if where is None else where.cast(target.dtype)
    n = total(w, over)

    def variance(x: RecurrentTensor) -> RecurrentTensor:
        return total(w * (x - total(w * x, over) / n).square(), over) / n

    spread = variance(target)
    varies = spread > 0.0
    ratio = variance(target - predicted) / choose(varies, spread, 1.0)
    return choose(varies, 1.0 - ratio, 0.0)


def rows(x: Any, k: RecurrentTensor, over: Sequence[Index]) -> Any:
    """x at point number k of the dims `over`: for over=(b, t) at b = k // T, t = k % T.

    With k = rc.permutation(B * T, ..) these are the samples of a minibatch. Of a tree of tensors
    it is the tree of theirs.
    """
    if isinstance(x, Tree):
        return x.map(lambda part: rows(part, k, over))
    names = {str(d) for d in over}
    ranges = [r for r in x.domain if r.dim in names]
    index = tuple(slice(None) if r in ranges else Index(r.sym) for r in x.domain)
    count = reduce(mul, (r.hi - r.lo for r in ranges))
    every = x[index]
    return every.reshape(wrap(count), *every.shape[len(ranges) :]).take(k)


def episodic(
    reward: RecurrentTensor, done: RecurrentTensor, over: Sequence[Index]
) -> RecurrentTensor:
    """The mean return of the episodes that end within an iteration; else what it was before.

    reward f32 and done bool over (b, i, t); `over` = (b, t) counts rows and steps. Episodes go on
    from iteration to iteration, along the last of the other dims; any before it, such as one of
    seeds, have episodes of their own.
    """
    rows_, steps = map(str, over)
    *_, i = (r for r in done.domain if r.dim not in (rows_, steps))
    t = done.domain[steps]

    def at(i_: Any, t_: Any = t.sym, domain: Domain = done.domain) -> tuple[Any, ...]:
        by = {**{r.dim: r.sym for r in domain}, i.dim: i_, t.dim: t_}
        return tuple(wrap(by[d]) for d in domain.dims)

    so_far = declared("so_far", done.domain, reward.type)
    kept = choose(done, 0.0, so_far)
    so_far[(Index(compare("==", i.sym, i.lo)), Index(compare("==", t.sym, t.lo)))] = reward
    so_far[at(i.sym, t.lo)] = reward + kept[at(i.sym - 1, t.hi - 1)]
    so_far[at(i.sym, t.sym)] = reward + kept[at(i.sym, t.sym - 1)]
    count = total(done.cast(reward.dtype), over)
    mean = total(choose(done, so_far, 0.0), over) / maximum(count, 1.0)
    out = declared("mean_return", count.domain, mean.type)
    now, before = (at(x, domain=count.domain) for x in (i.sym, i.sym - 1))
    out[at(i.lo, domain=count.domain)] = mean
    out[now] = choose(count > 0.0, mean, out[before])
    return out
