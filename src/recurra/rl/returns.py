"""Returns and their statistics, normalization, and samples of minibatches."""

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
    """(x - mean) / (std + eps), with moments over dims and, with `where`, over live points only.

    The standard deviation is NumPy's, over n points; torch's divides by n - 1.
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

    It is 0 if all targets are equal: there is nothing to explain.
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

    With k = rc.permutation(B * T, ..) these are the samples of a minibatch. A tree of tensors
    gives a tree. A tensor that is larger than the parts it is assembled from, such as stacked
    frames, is assembled from samples of the parts, so that every frame is stored once.
    """
    if isinstance(x, Tree):
        return x.map(lambda part: rows(part, k, over))
    ranges = [r for r in x.domain if r.dim in {str(d) for d in over}]
    if _is_assembled(x, ranges) and sum(_parts(x, ranges).values()) < _nbytes(x):
        return _assemble_samples(x, k, over)
    index = tuple(slice(None) if r in ranges else Index(r.sym) for r in x.domain)
    count = reduce(mul, (r.hi - r.lo for r in ranges))
    every = x[index]
    return every.reshape(wrap(count), *every.shape[len(ranges) :]).take(k)


# Ops that assemble or move numbers, without computing any.
MOVES = (Concat, Cut, Expand, Reshape, Transpose, Where, Detach, Cast)


def _is_assembled(x: RecurrentTensor, ranges: Sequence[Range]) -> bool:
    """Tell whether an op moves single points, which differ only along some dims."""
    node, along = x.graph[x.name], {r.dim for r in ranges}

    def is_point(ref: Ref) -> bool:
        pairs = zip(x.graph[ref.name].domain, ref.index, strict=True)
        return all(not isinstance(e, Slice) and (r.dim in along or e == r.sym) for r, e in pairs)

    return isinstance(node.op, MOVES) and all(map(is_point, (x.ref, *node.args)))


def _assemble_samples(
    x: RecurrentTensor, k: RecurrentTensor, over: Sequence[Index]
) -> RecurrentTensor:
    """The samples of an assembled tensor, from samples of its parts."""
    ranges = [r for r in x.domain if r.dim in {str(d) for d in over}]
    node = x.graph[x.name]
    if not ranges:
        return x
    if (at := _point_number(x, ranges)) is not None:
        own = RecurrentTensor(x.builder, x.graph.read(x.name))
        return _assemble_samples(own, rows(at, k, over), over)
    if not _is_assembled(x, ranges):
        return rows(x, k, over)
    args = [_assemble_samples(RecurrentTensor(x.builder, a), k, over) for a in node.args]
    return args[0].apply(node.op, *args)


def _point_number(x: RecurrentTensor, ranges: Sequence[Range]) -> RecurrentTensor | None:
    """The number, along some dims, of the point of x that is read; None if it is its own."""
    pairs = list(zip(x.graph[x.name].domain, x.ref.index, strict=True))
    dims = {r.dim for r in ranges}
    own = [(r, e) for r, e in pairs if r.dim in dims]
    if all(e == r.sym and r in ranges for r, e in own):
        return None
    at: Expr | int = 0
    for r, e in own:
        assert not isinstance(e, Slice)
        at = at * (r.hi - r.lo) + (e - r.lo)
    return value(Index(at), "i32")


def _parts(x: RecurrentTensor, ranges: Sequence[Range]) -> dict[str, float]:
    """The parts of a tensor that vary along some dims, with the bytes of one point."""
    node, along = x.graph[x.name], {r.dim for r in ranges}
    if not _is_assembled(x, ranges):
        return {x.name: _nbytes(x)} if along & set(node.domain.dims) else {}
    operands = (RecurrentTensor(x.builder, a) for a in node.args)
    return {name: n for y in operands for name, n in _parts(y, ranges).items()}


def _nbytes(x: RecurrentTensor) -> float:
    """Bytes of one point; infinite for shapes that vary."""
    type_ = x.graph[x.name].type
    known = [n for n in type_.shape if isinstance(n, int)]
    return WIDTH[type_.dtype] * prod(known) if len(known) == len(type_.shape) else inf


def episode_returns(
    reward: RecurrentTensor, done: RecurrentTensor, over: Sequence[Index]
) -> RecurrentTensor:
    """The mean return of the episodes that end within an iteration; without any, the last one.

    reward f32 and done bool over (b, i, t); `over` = (b, t) are the dims of rows and steps.
    Episodes continue from iteration to iteration, along the last of the other dims; each point of
    earlier dims, such as seeds, has episodes of its own.
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
