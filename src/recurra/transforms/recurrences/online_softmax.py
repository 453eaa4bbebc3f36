"""online: sums of exponentials that wait for a maximum are rescaled as the maximum grows.

    m[t] = fold max of part(x[t,j]);  e[t,j] = exp(x[t,j] - m[t]);  y[t] = fold add of p(e[t,j])
 →  m[t,j] = max(m[t,j-1], part(x[t,j]));  e[t,j] = exp(x[t,j] - m[t,j])
    y[t,j] = y[t,j-1] · exp(m[t,j-1] - m[t,j]) + p(e[t,j]);  what is read is the last of them

p must be linear in e, or in what a mask leaves of it. One pass over x instead of two: the online
softmax (Milakov and Gimelshein, 2018). It holds for any c(m) in place of m, since e is then
exp(x - c) at every j.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recurra.ir.expr import Expr
from recurra.ir.graph import Node, Ref
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import Type, is_float
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Fold, Sum
from recurra.transforms.recurrences.scans import Monoid, Way, scan
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, is_const

LOWEST = {"f64": -1.7e308, "f32": -3.4e38, "bf16": -3.3e38, "f16": -6e4}  # finite: no ∞ - ∞
LAW = "a sum of exponentials that waits for a maximum → one that is rescaled"


@dataclass(frozen=True)
class Exponential:
    """e = exp(x - c), c a function of the fold `most`; `sums` fold what is linear in it."""

    most: Node
    shift: Node  # c, which may be `most` itself
    less: Node  # x - c
    e: Node
    sums: tuple[Node, ...]


def online(g: Rewriting, dim: str) -> None:
    """Rewrites folds over `dim`, in place."""
    for m in list(g.nodes.values()):
        if isinstance(m.op, Fold) and m.op.monoid_of == "maximum" and _over(g, m, dim):
            assert isinstance(m.type, Type)
            found = _exponentials(g, m, dim) if is_float(m.type.dtype) else []
            if found and fuel().burn(LAW, m.name):
                _rescale(g, m, found, dim)


def _over(g: Rewriting, fold: Node, dim: str) -> bool:
    (a,) = fold.args
    return dim in g[a.name].domain and dim not in fold.domain


def _exponentials(g: Rewriting, m: Node, dim: str) -> list[Exponential]:
    """What is an exponential of something less m, all of it summed; [] if m holds up more."""
    out: list[Exponential] = []
    shifts = [m]
    for name in sorted(g.readers[m.name]):
        c = g[name]
        if dim not in c.domain and isinstance(c.op, Elementwise) and c.domain == m.domain:
            shifts.append(c)
    for c in shifts:
        for name in sorted(g.readers[c.name]):
            less = g[name]
            if dim in less.domain:
                found = _exponential(g, m, c, less, dim)
                if found is None:
                    return []
                out.append(found)
    return out


def _exponential(g: Rewriting, m: Node, c: Node, less: Node, dim: str) -> Exponential | None:
    if not isinstance(less.op, el.Sub) or less.args[1] != g.read(c.name):
        return None
    if less.args[0].name == c.name or len(g.readers[less.name]) != 1 or less.name in g.outputs:
        return None
    (e,) = (g[x] for x in g.readers[less.name])
    if not isinstance(e.op, el.Exp) or e.args != (g.read(less.name),) or e.name in g.outputs:
        return None
    sums: list[Node] = []
    masked = {n for n in g.readers[e.name] if _masked(g, g[n], e)}
    if masked & set(g.outputs):
        return None
    for x in (e.name, *sorted(masked)):
        for name in sorted(g.readers[x].keys() - masked):
            part = g[name]
            linear = isinstance(part.op, (Sum, Einsum)) and part.args.count(g.read(x)) == 1
            folds = [g[f] for f in g.readers[name]]
            if not linear or len(folds) != 1 or _labels(less, e, x, part) is None:
                return None
            (fold,) = folds
            if not (isinstance(fold.op, Fold) and fold.op.monoid_of == "add"):
                return None
            if not _over(g, fold, dim):
                return None
            sums.append(fold)
    return Exponential(m, c, less, e, tuple(sums)) if sums else None


def _masked(g: Rewriting, n: Node, e: Node) -> bool:
    """Is it e where something holds, else 0?"""
    if not isinstance(n.op, el.Where) or n.args[1] != g.read(e.name) or n.type != e.type:
        return False
    rank = e.type.rank if isinstance(e.type, Type) else 0
    (_, mine, _), out = n.op.parts((rank, rank, rank))
    return mine == out and is_const(g, n.args[2], 0.0) is not None and n.args[0].name != e.name


def _labels(less: Node, e: Node, name: str, part: Node) -> str | None:
    """Labels of c · part, c what is subtracted in `less`; None where part has lost an axis.

    `name`: what part reads of e.
    """
    assert isinstance(less.op, el.Sub)
    assert isinstance(e.type, Type)
    assert isinstance(part.type, Type)
    rank = e.type.rank
    (_, shift), whole = less.op.parts((rank, rank))
    if isinstance(part.op, Einsum):
        ins, out = part.op.parts()
        mine = next(s for s, a in zip(ins, part.args, strict=True) if a.name == name)
        named = dict(zip(whole, mine, strict=True))
    else:
        assert isinstance(part.op, Sum)
        out = "".join(c for k, c in enumerate(whole) if k not in part.op.axes)
        named = {c: c for c in whole}
    below = "".join(named[c] for c in shift)
    return join_labels((below, out), out) if set(below) <= set(out) else None


def _rescale(g: Rewriting, m: Node, found: list[Exponential], dim: str) -> None:
    (peak,) = m.args
    part = g[peak.name]
    assert isinstance(part.type, Type)
    start = LOWEST[part.type.dtype]
    running = _so_far(g, part, Monoid("maximum", start), dim, m.name)
    before = g[running].args[1]
    scales: dict[str, tuple[Ref, Ref]] = {}
    for x in found:
        scales[x.shift.name] = _running(g, x.shift, m, running, before)
    for x in found:
        now, was = scales[x.shift.name]
        grown = g.emit(el.Sub(), (was, now), g[running].domain, f"{x.less.name}_growth")
        factor = g.emit(el.Exp(), (grown,), g[running].domain, f"{x.e.name}_scale")
        g.put(replace(x.less, args=(x.less.args[0], now)))
        for fold in x.sums:
            _sum(g, x, fold, factor, dim)
    _last(g, m, running, dim)


def _running(g: Rewriting, c: Node, m: Node, running: str, before: Ref) -> tuple[Ref, Ref]:
    """c of the maximum up to this tile, and up to the one before."""
    if c.name == m.name:
        return g.read(running), before
    within = g[running].domain

    def at(value: Ref, stem: str) -> Ref:
        args = [value if a.name == m.name else a for a in c.args]
        return g.emit(c.op, args, within, stem)

    return at(g.read(running), f"{c.name}_so_far"), at(before, f"{c.name}_before")


def _sum(g: Rewriting, x: Exponential, fold: Node, factor: Ref, dim: str) -> None:
    (a,) = fold.args
    part = g[a.name]
    mine = {x.e.name, *(n for n in g.readers[x.e.name] if _masked(g, g[n], x.e))}
    read = next(y.name for y in part.args if y.name in mine)
    labels = _labels(x.less, x.e, read, part)
    assert labels is not None

    def rescaled(before: Ref) -> Ref:
        op = el.Mul(labels=labels)
        return g.emit(op, (factor, before), part.domain, f"{fold.name}_rescaled")

    total = _so_far(g, part, Monoid("add", 0.0, rescaled), dim, fold.name)
    _last(g, fold, total, dim)


def _so_far(g: Rewriting, part: Node, by: Monoid, dim: str, stem: str) -> str:
    """Return the name of the scan of a part over tiles."""
    way, name = Way(part.domain[dim], 1), g.fresh(f"{stem}_so_far")
    return scan(part, name, g, by, g.read(part.name), way).name


def _last(g: Rewriting, fold: Node, running: str, dim: str) -> None:
    """What read the fold reads the last running value."""
    r = g[running].domain[dim]
    end: Expr | int = r.hi - 1  # pyright: ignore[reportOperatorIssue]
    g.forward(fold, Ref(running, g[running].domain.point(dim, end)))
