"""Returns, and what several algorithms do with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import inf, prod
from typing import TypeVar

from recurra.frontend.dims import Index, wrap
from recurra.frontend.functions import maximum, value
from recurra.frontend.functions import where as choose
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.expr import Expr, compare, mul
from recurra.ir.graph import Ref, Slice
from recurra.ir.types import WIDTH, Domain, Range
from recurra.ops.elementwise import Cast, Detach, Where
from recurra.ops.movement import Concat, Cut, Expand, Reshape, Transpose
from recurra.rl.space import Tree
from recurra.rl.transitions import declared


def total(x: RecurrentTensor, over: Sequence[Index]) -> RecurrentTensor:
    """Σ x over dims: the sum of x[0:B, i, 0:T] for over=(b, t)."""
    names = {str(d) for d in over}
    index = tuple(slice(None) if r.dim in names else Index(r.sym) for r in x.domain)
    return x[index].sum(axis=tuple(range(len(names & set(x.domain.dims)))))


def normalize(
    x: RecurrentTensor,
    over: Sequence[Index] | Index,
    where: RecurrentTensor | None = None,
    eps: float = 1e-8,
) -> RecurrentTensor:
    """(x - mean) / (std + eps), the moments over dims and, with `where`, over live points only.

    The deviation is that of NumPy, over n points; torch's divides by n - 1.
    """
    over = (over,) if isinstance(over, Index) else over
    w = 1.0 + x * 0.0 if where is None else where.cast(x.dtype)
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
    w = 1.0 + target * 0.0 if where is None else where.cast(target.dtype)
    n = total(w, over)

    def variance(tensor: RecurrentTensor) -> RecurrentTensor:
        return total(w * (tensor - total(w * tensor, over) / n).square(), over) / n

    spread = variance(target)
    varies = spread > 0.0
    ratio = variance(target - predicted) / choose(varies, spread, 1.0)
    return choose(varies, 1.0 - ratio, 0.0)


Sampled = TypeVar("Sampled", RecurrentTensor, Tree)


def rows(x: Sampled, k: RecurrentTensor, over: Sequence[Index]) -> Sampled:
    """x at point number k of the dims `over`: for over=(b, t) at b = k // T, t = k % T.

    With k = rc.permutation(B * T, ..) these are the samples of a minibatch. Of a tree of tensors
    it is the tree of theirs. What is larger than what it is put together of, as stacked frames
    are, is put together of samples, so that every frame is stored once.
    """
    if isinstance(x, Tree):
        return x.map(lambda part: rows(part, k, over))
    ranges = [r for r in x.domain if r.dim in {str(d) for d in over}]
    if is_put_together(x, ranges) and sum(parts(x, ranges).values()) < size(x):
        return put_together(x, k, over)
    index = tuple(slice(None) if r in ranges else Index(r.sym) for r in x.domain)
    count = reduce(mul, (r.hi - r.lo for r in ranges))
    every = x[index]
    return every.reshape(wrap(count), *every.shape[len(ranges) :]).take(k)


# What puts together or moves numbers, and computes none.
MOVES = (Concat, Cut, Expand, Reshape, Transpose, Where, Detach, Cast)


def is_put_together(x: RecurrentTensor, ranges: Sequence[Range]) -> bool:
    """Is it made of single points, of the same point of all dims but some?"""
    node, along = x.graph[x.name], {r.dim for r in ranges}

    def is_point(ref: Ref) -> bool:
        pairs = zip(x.graph[ref.name].domain, ref.index, strict=True)
        return all(not isinstance(e, Slice) and (r.dim in along or e == r.sym) for r, e in pairs)

    return isinstance(node.op, MOVES) and all(map(is_point, (x.ref, *node.args)))


def put_together(x: RecurrentTensor, k: RecurrentTensor, over: Sequence[Index]) -> RecurrentTensor:
    """The samples of what is put together, of samples of its parts."""
    ranges = [r for r in x.domain if r.dim in {str(d) for d in over}]
    node, whole = x.graph[x.name], RecurrentTensor(x.tracer, x.graph.read(x.name))
    if not ranges:
        return x
    if (at := place(x, ranges)) is not None:
        return put_together(whole, rows(at, k, over), over)
    if not is_put_together(x, ranges):
        return rows(x, k, over)
    args = [put_together(RecurrentTensor(x.tracer, a), k, over) for a in node.args]
    return args[0].apply(node.op, *args)


def place(x: RecurrentTensor, ranges: Sequence[Range]) -> RecurrentTensor | None:
    """The number of the point that is read of x, among those of some dims; None: its own."""
    pairs = list(zip(x.graph[x.name].domain, x.ref.index, strict=True))
    dims = {r.dim for r in ranges}
    mine = [(r, e) for r, e in pairs if r.dim in dims]
    if all(e == r.sym and r in ranges for r, e in mine):
        return None
    at: Expr | int = 0
    for r, e in mine:
        assert not isinstance(e, Slice)
        at = at * (r.hi - r.lo) + (e - r.lo)
    return value(Index(at), "i32")


def parts(x: RecurrentTensor, ranges: Sequence[Range]) -> dict[str, float]:
    """Map the parts of a tensor that vary along some dims to their bytes at one point."""
    node, along = x.graph[x.name], {r.dim for r in ranges}
    if not is_put_together(x, ranges):
        return {x.name: size(x)} if along & set(node.domain.dims) else {}
    read = (RecurrentTensor(x.tracer, a) for a in node.args)
    return {name: n for y in read for name, n in parts(y, ranges).items()}


def size(x: RecurrentTensor) -> float:
    """Bytes of one point; of shapes that vary, as much as there may be."""
    type_ = x.graph[x.name].type
    known = [n for n in type_.shape if isinstance(n, int)]
    return WIDTH[type_.dtype] * prod(known) if len(known) == len(type_.shape) else inf


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

    def at(
        i_: Expr | int, t_: Expr | int = t.sym, domain: Domain = done.domain
    ) -> tuple[Index | int, ...]:
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
