"""Sums of exponentials that wait for a maximum are rescaled as the maximum grows.

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
from recurra.transforms.recurrences.scans import Monoid, ScanDirection, scan
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting, is_const

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


def online(graph: Rewriting, dim: str) -> None:
    """Rewrites folds over `dim`, in place."""
    for m in list(graph.nodes.values()):
        if isinstance(m.op, Fold) and m.op.monoid_of == "maximum" and _over(graph, m, dim):
            found = _exponentials(graph, m, dim) if is_float(m.tensor.dtype) else []
            if found and fuel().burn(LAW, m.name):
                _rescale(graph, m, found, dim)


def _over(graph: Rewriting, fold: Node, dim: str) -> bool:
    (a,) = fold.args
    return dim in graph[a.name].domain and dim not in fold.domain


def _exponentials(graph: Rewriting, node: Node, dim: str) -> list[Exponential]:
    """Find the exponentials of something less m that are all summed; none if m holds others up."""
    out: list[Exponential] = []
    shifts = [node]
    for name in sorted(graph.readers[node.name]):
        c = graph[name]
        if dim not in c.domain and isinstance(c.op, Elementwise) and c.domain == node.domain:
            shifts.append(c)
    for c in shifts:
        for name in sorted(graph.readers[c.name]):
            less = graph[name]
            if dim in less.domain:
                found = _exponential(graph, node, c, less, dim)
                if found is None:
                    return []
                out.append(found)
    return out


def _exponential(
    graph: Rewriting, node: Node, shift: Node, less: Node, dim: str
) -> Exponential | None:
    if not isinstance(less.op, el.Sub) or less.args[1] != graph.read(shift.name):
        return None
    if (
        less.args[0].name == shift.name
        or len(graph.readers[less.name]) != 1
        or less.name in graph.outputs
    ):
        return None
    (e,) = (graph[x] for x in graph.readers[less.name])
    if (
        not isinstance(e.op, el.Exp)
        or e.args != (graph.read(less.name),)
        or e.name in graph.outputs
    ):
        return None
    sums: list[Node] = []
    masked = {n for n in graph.readers[e.name] if _masked(graph, graph[n], e)}
    if masked & set(graph.outputs):
        return None
    for x in (e.name, *sorted(masked)):
        for name in sorted(graph.readers[x].keys() - masked):
            part = graph[name]
            linear = isinstance(part.op, (Sum, Einsum)) and part.args.count(graph.read(x)) == 1
            folds = [graph[f] for f in graph.readers[name]]
            if not linear or len(folds) != 1 or _labels(less, e, x, part) is None:
                return None
            (fold,) = folds
            if not (isinstance(fold.op, Fold) and fold.op.monoid_of == "add"):
                return None
            if not _over(graph, fold, dim):
                return None
            sums.append(fold)
    return Exponential(node, shift, less, e, tuple(sums)) if sums else None


def _masked(graph: Rewriting, node: Node, exponential: Node) -> bool:
    """Is it the exponential where something holds, else 0?"""
    if (
        not isinstance(node.op, el.Where)
        or node.args[1] != graph.read(exponential.name)
        or node.type != exponential.type
    ):
        return False
    rank = exponential.type.rank if isinstance(exponential.type, Type) else 0
    (_, mine, _), out = node.op.parts((rank, rank, rank))
    return (
        mine == out
        and is_const(graph, node.args[2], 0.0) is not None
        and node.args[0].name != exponential.name
    )


def _labels(less: Node, node: Node, name: str, part: Node) -> str | None:
    """Labels of c · part, c what is subtracted in `less`; None where part has lost an axis.

    `name`: what part reads of e.
    """
    assert isinstance(less.op, el.Sub)
    rank = node.tensor.rank
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


def _rescale(graph: Rewriting, node: Node, found: list[Exponential], dim: str) -> None:
    (peak,) = node.args
    part = graph[peak.name]
    start = LOWEST[part.tensor.dtype]
    running = _so_far(graph, part, Monoid("maximum", start), dim, node.name)
    before = graph[running].args[1]
    scales: dict[str, tuple[Ref, Ref]] = {}
    for x in found:
        scales[x.shift.name] = _running(graph, x.shift, node, running, before)
    for x in found:
        now, was = scales[x.shift.name]
        grown = graph.emit(el.Sub(), (was, now), graph[running].domain, f"{x.less.name}_growth")
        factor = graph.emit(el.Exp(), (grown,), graph[running].domain, f"{x.e.name}_scale")
        graph.put(replace(x.less, args=(x.less.args[0], now)))
        for fold in x.sums:
            _sum(graph, x, fold, factor, dim)
    _last(graph, node, running, dim)


def _running(
    graph: Rewriting, node: Node, maximum: Node, running: str, before: Ref
) -> tuple[Ref, Ref]:
    """c of the maximum up to this tile, and up to the one before."""
    if node.name == maximum.name:
        return graph.read(running), before
    within = graph[running].domain

    def at(value: Ref, stem: str) -> Ref:
        args = [value if a.name == maximum.name else a for a in node.args]
        return graph.emit(node.op, args, within, stem)

    return at(graph.read(running), f"{node.name}_so_far"), at(before, f"{node.name}_before")


def _sum(graph: Rewriting, exponential: Exponential, fold: Node, factor: Ref, dim: str) -> None:
    (a,) = fold.args
    part = graph[a.name]
    mine = {
        exponential.e.name,
        *(n for n in graph.readers[exponential.e.name] if _masked(graph, graph[n], exponential.e)),
    }
    read = next(y.name for y in part.args if y.name in mine)
    labels = _labels(exponential.less, exponential.e, read, part)
    assert labels is not None

    def rescaled(before: Ref) -> Ref:
        op = el.Mul(labels=labels)
        return graph.emit(op, (factor, before), part.domain, f"{fold.name}_rescaled")

    total = _so_far(graph, part, Monoid("add", 0.0, rescaled), dim, fold.name)
    _last(graph, fold, total, dim)


def _so_far(graph: Rewriting, part: Node, by: Monoid, dim: str, stem: str) -> str:
    """Return the name of the scan of a part over tiles."""
    way, name = ScanDirection(part.domain[dim], 1), graph.fresh(f"{stem}_so_far")
    return scan(part, name, graph, by, graph.read(part.name), way).name


def _last(graph: Rewriting, fold: Node, running: str, dim: str) -> None:
    """Make the readers of a fold read the last running value."""
    r = graph[running].domain[dim]
    end: Expr | int = r.hi - 1  # pyright: ignore[reportOperatorIssue]
    graph.forward(fold, Ref(running, graph[running].domain.point(dim, end)))
