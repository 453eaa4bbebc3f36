"""Random legal programs: recurrences up and down over one to three dims, and all that reads them.

Legal by construction: an equation reads older ones anywhere inside their domain; what depends on a
recurrence that is still open is read only at or behind the current point of its dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from random_drawing import Case, Program, disjoint, ragged
from recurra.ir.dims import Dim
from recurra.ir.expr import (
    TRUE,
    Sym,
    evaluate,
    mod,
    symbols,
)
from recurra.ir.graph import Graph, Ref
from recurra.ir.op import Op, join_labels
from recurra.ir.types import Domain, Range, Type
from recurra.ir.verify import verify
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.indexing import OneHot, Pick, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Pad, Transpose
from recurra.ops.random import Uniform
from recurra.ops.reduction import Max, Min, Sum
from recurra.ops.scan import CumSum, DiscountedSum
from recurra.ops.softmax import LogSoftmax, Softmax
from recurra.ops.source import Value
from recurra.ops.window import Overlap, Windows, spans
from renamed import AWKWARD, BOUNDS

__all__ = ["Case", "programs", "ragged"]


def unary(p: Program, domain: Domain) -> None:
    op = p.pick((el.HyperbolicTangent, el.Sin, el.Neg, el.Abs, el.Logistic))()
    p.put(op, (p.operand(domain, ragged=20),), domain)


def _labels(p: Program, a: Type, b: Type) -> tuple[str, str, dict[str, Any]]:
    """Labels of two operands: axes of equal size may be one."""
    first = "abcd"[: a.rank]
    sizes = dict(zip(first, a.shape, strict=True))
    second = ""
    for n in b.shape:
        shared = [c for c in first if sizes[c] == n and c not in second]
        if shared and p.chance(75):
            second += p.pick(shared)
        else:
            second += "efgh"[sum(c in "efgh" for c in second)]
            sizes[second[-1]] = n
    return first, second, sizes


def binary(p: Program, domain: Domain) -> None:
    x, y = p.operand(domain, 2, ragged=20), p.operand(domain, 2, ragged=20)
    first, second, sizes = _labels(p, p.type(x), p.type(y))
    out = "".join(p.draw(st.permutations(sorted(sizes))))
    kind = p.pick((el.Add, el.Sub, el.Mul, el.Maximum, el.Minimum))
    if len(out) > 3:
        return einsum(p, domain)
    p.put(kind(labels=join_labels((first, second), out)), (x, y), domain)
    return None


def einsum(p: Program, domain: Domain) -> None:
    x, y = p.operand(domain, 2), p.operand(domain, 2)
    first, second, sizes = _labels(p, p.type(x), p.type(y))
    out = [c for c in sizes if p.chance(60)][:3]
    out = p.draw(st.permutations(out))
    name = p.put(Einsum(labels=f"{first},{second}->{''.join(out)}"), (x, y), domain)
    own = p.nodes[name].domain
    p.add(el.HyperbolicTangent(), (Ref(name, own.identity),), own)


def _filled(p: Program, ref: Ref, axes: Sequence[int], domain: Domain) -> bool:
    """Do these axes have an element at every point?"""
    for a in axes:
        n: Any = p.type(ref).shape[a]
        for env in p.points(domain, symbols(n), TRUE, p.sizes):
            if evaluate(n, env) < 1:
                return False
    return True


def reduction(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=75, ragged=40)
    rank = p.type(ref).rank
    axes = tuple(k for k in range(rank) if p.chance(65))
    kind = p.pick((Sum, Sum, Max, Min))
    if kind is not Sum and not _filled(p, ref, axes, domain):
        kind = Sum
    name = p.put(kind(axes=axes), (ref,), domain)
    if p.chance(30):
        own = p.nodes[name].domain
        p.add(el.HyperbolicTangent(), (Ref(name, own.identity),), own)


def total(p: Program, domain: Domain) -> None:
    """A reduction over the whole range of some dims of an equation: what a fold streams."""
    names = [n for n, x in p.nodes.items() if len(x.domain) and x.type.dtype == "f64"]
    ref = p.read(p.pick(names), domain, slices=60) if names else None
    if ref is None or p.type(ref).rank > 3:
        return reduction(p, domain)
    axes = range(p.type(ref).rank)
    kind = p.pick((Sum, Sum, Max)) if _filled(p, ref, axes, domain) and not p.ragged(ref) else Sum
    slices = len(ref.slices)
    kept = {k for k in axes if k >= slices and p.chance(40)}
    p.put(kind(axes=tuple(k for k in axes if k not in kept)), (ref,), domain)
    return None


def along(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=60, ragged=30)
    rank = p.type(ref).rank
    if not rank:
        return unary(p, domain)
    axis = p.draw(st.integers(0, rank - 1))
    kinds: list[Callable[..., Op]] = [Softmax, LogSoftmax, CumSum, Flip]
    if not _filled(p, ref, [axis], domain):
        kinds = kinds[2:]
    kinds.append(lambda axis: DiscountedSum(gamma=0.5, axis=axis))
    p.put(p.pick(kinds)(axis=axis), (ref,), domain)
    return None


def moves(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2)
    t = p.type(ref)
    if not t.rank or p.chance(30):
        n = p.pick([1, 2, 3, *(r.hi for r in p.dims)])
        out = p.pick(["ab"[: t.rank] + "z", "z" + "ab"[: t.rank]])
        p.put(Expand(labels=f"{'ab'[: t.rank]}->{out}", sizes=(n,)), (ref,), domain)
        return
    axis = p.draw(st.integers(0, t.rank - 1))
    n = t.shape[axis]
    kinds: list[Op] = [
        Transpose(order=tuple(range(t.rank))[::-1]),
        Pad(axis=axis, before=1, after=0),
    ]
    if isinstance(n, int) and n > 1:
        kinds.append(Cut(axis=axis, start=1, size=n - 1))
    op = p.pick(kinds)
    if p.chance(20):
        p.put(Concat(axis=axis), (ref, ref), domain)
    else:
        p.put(op, (ref,), domain)


def pick(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=50)
    if not p.type(ref).rank:
        return unary(p, domain)
    axis = p.draw(st.integers(0, p.type(ref).rank - 1))
    n: Any = p.type(ref).shape[axis]
    dims = [r.sym for r in domain]
    options: list[Any] = [0, 1, *dims, *dims, *(x - 1 for x in dims), *(x % 2 for x in dims)]
    inside = [at for at in options if _on_axis(p, at, n, domain)]
    if not inside:
        return unary(p, domain)
    p.put(Pick(axis=axis, at_=p.pick(inside)), (ref,), domain)
    return None


def _on_axis(p: Program, at: Any, n: Any, domain: Domain) -> bool:
    every = p.points(domain, symbols(at) | symbols(n), TRUE, p.sizes)
    return all(0 <= evaluate(at, env) < evaluate(n, env) for env in every)


def take(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2)
    if not p.type(ref).rank or not isinstance(p.type(ref).shape[0], int):
        return unary(p, domain)
    at: Any = p.pick([r.sym for r in domain] or [1])
    n = p.type(ref).shape[0]
    if not n:
        return unary(p, domain)
    expr = mod(at + p.draw(st.integers(0, 3)), n)
    value = Value(expr=expr)
    small = p.within(domain, (), value)
    i = Ref(p.add(value, (), small), small.identity)
    if p.chance(30):
        hot = p.add(OneHot(size=n, axis=0, to="f64"), (i,), small)
        rest = "bc"[: p.type(ref).rank - 1]
        p.put(Einsum(labels=f"a,a{rest}->{rest}"), (Ref(hot, small.identity), ref), domain)
    else:
        rest = "bc"[: p.type(ref).rank - 1]
        p.put(Take(labels=f"a{rest},->{rest}", axis="a"), (ref, i), domain)
    return None


def uniform(p: Program, domain: Domain, shape: tuple[int, ...] | None = None) -> str:
    p.draws += 1
    dims = [r.sym for r in domain]
    if shape is None:
        shape = p.pick(p.shapes) if p.chance(50) else ()
    room = 1 if shape else 2
    op = Uniform(
        id=p.draws, key=tuple(dims[:-room]), counter=tuple(dims[-room:]), shape=shape, dtype="f64"
    )
    return p.put(op, (), domain)


def convolution(p: Program, domain: Domain) -> None:
    """A kernel along some axes, with strides and gaps; sometimes turned, as its gradient is."""
    ref = p.operand(domain, 2, slices=50, ragged=10)
    rank = p.type(ref).rank
    if not rank:
        return unary(p, domain)
    axis = p.draw(st.integers(0, rank - 1))
    count = p.draw(st.integers(1, rank - axis))
    for k in range(axis, axis + count):
        if p.chance(60):
            name = p.put(Pad(axis=k, before=p.pick((0, 1)), after=1), (ref,), domain)
            ref = Ref(name, p.nodes[name].domain.identity)
    lengths = p.type(ref).shape[axis : axis + count]
    sizes = tuple(p.pick((1, 2, 2, 3)) for _ in range(count))
    gaps = tuple(p.pick((1, 1, 2)) for _ in range(count)) if p.chance(40) else ()
    for n, span in zip(lengths, spans(sizes, gaps), strict=True):
        if not _on_axis(p, span - 1, n, domain):
            return moves(p, domain)
    strides = tuple(p.pick((1, 1, 2, 3)) for _ in range(count))
    how: dict[str, Any] = {"axis": axis, "sizes": sizes, "strides": strides, "gaps": gaps}
    seen = p.put(Windows(**how), (ref,), domain)
    axes, inner = "abcdef"[: rank + count], "abcdef"[axis : axis + count]
    kernel = uniform(p, domain, sizes)
    out = axes if p.chance(40) else "".join(c for c in axes if c not in inner)
    args = [Ref(name, p.nodes[name].domain.identity) for name in (seen, kernel)]
    name = p.put(Einsum(labels=f"{axes},{inner}->{out}"), args, domain)
    if out == axes:
        made = Ref(name, p.nodes[name].domain.identity)
        p.put(Overlap(**how, lengths=lengths), (made,), domain)
    return None


def value(p: Program, domain: Domain) -> None:
    names = [r.sym for r in domain] + [Sym(n) for n in p.sizes]
    x, y = p.pick(names), p.pick(names)
    p.put(Value(expr=p.pick([x, x + y, x * 2 + 1, x - y, x % 3]), dtype="f64"), (), domain)


def where(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2, ragged=10)
    axes = "ab"[: p.type(ref).rank]
    own = p.within(domain, (ref,), Merge(when=()))
    zero = Ref(p.constant(()), ())
    flat = f"{axes},->{axes}" if axes else ""
    test = Ref(p.add(el.Less(labels=flat), (ref, zero), own), own.identity)
    p.put(el.Where(labels=f"{axes},,{axes}->{axes}" if axes else ""), (test, zero, ref), own)


def merge(p: Program, domain: Domain) -> None:
    """A choice by the point, no recurrence."""
    if not len(domain):
        return unary(p, domain)
    r = p.pick(domain.ranges)
    conditions = disjoint(p.conditions(r, p.pick((1, -1))))
    types = {x.type for x in p.nodes.values() if x.type.dtype == "f64" and not _loose(p, x.type)}
    type_ = p.pick(sorted(types, key=str))
    names = [n for n, x in p.nodes.items() if x.type == type_]
    args: list[Ref] = []
    for c in conditions:
        ref = p.read(p.pick(names), domain, c, slices=0)
        args.append(Ref(p.constant(type_.shape), ()) if ref is None else ref)
    p.add(Merge(when=conditions), args, domain)
    return None


def _loose(p: Program, t: Type) -> bool:
    return any(symbols(s) - p.sizes.keys() for s in t.shape)


KINDS = (
    unary, binary, binary, binary, einsum, reduction, reduction, total, total, total, along,
    moves, pick, take, uniform, uniform, value, where, merge, merge, convolution, convolution,
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, ragged: bool = True) -> Case:
    """A legal program of 4 to 25 equations and its sizes."""
    dims = tuple(Range(d, Sym(n)) for d, n in draw(st.one_of(PLAIN, STRANGE)))
    small = st.integers(1, 4)
    sizes = {str(r.hi): draw(small) for r in dims}
    m, n = draw(small), draw(small)
    p = Program(draw, sizes, dims, [(), (), (m,), (n,), (m, n)], kinds=KINDS)
    uniform(p, p.domain(set()))
    for _ in range(draw(st.integers(3, 14))):
        action = draw(st.integers(0, 9))
        if action <= 1 and len(p.open) < 3:
            p.begin()
        elif action == 2 and p.open:
            p.close()
        else:
            p.equation()
    while p.open:
        p.close()
    names = [n for n, x in p.nodes.items() if not _loose(p, x.type)]
    outputs = draw(st.lists(st.sampled_from(names), min_size=0, max_size=3))
    graph = Graph(p.nodes, (*outputs, names[-1]), tuple(map(Dim, dims))).live()
    return Case(verify(graph), sizes)


PLAIN = st.sampled_from(("t", "t", "it", "it", "ti", "bit", "itb", "tbi")).map(
    lambda order: [(d, d.upper()) for d in order]
)
STRANGE = st.builds(  # dims and bounds that are called as passes call theirs
    lambda dims, bounds, n: list(zip(dims, bounds, strict=False))[:n],
    st.permutations(AWKWARD),
    st.permutations(BOUNDS),
    st.integers(1, 3),
)
