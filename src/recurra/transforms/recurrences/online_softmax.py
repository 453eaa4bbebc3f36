"""Online softmax: rescale sums of exponentials as their maximum grows, in one pass over tiles.

    m[t] = fold max of part(x[t,j]);  e[t,j] = exp(x[t,j] - m[t]);  y[t] = fold add of p(e[t,j])
 →  m[t,j] = max(m[t,j-1], part(x[t,j]));  e[t,j] = exp(x[t,j] - m[t,j])
    y[t,j] = y[t,j-1] · exp(m[t,j-1] - m[t,j]) + p(e[t,j]);  readers get the last of them

p must be linear in e, or in e under a mask (Milakov and Gimelshein, 2018). Every function c(m) may
stand in place of m, since e is exp(x - c) at every j then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recurra.ir.expr import Expr
from recurra.ir.graph import Node, Ref
from recurra.ir.op import Elementwise, join_labels
from recurra.ir.types import is_float
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
    """e = exp(x - c), c a function of a fold that takes a maximum, or the fold itself.

    `sums` fold what is linear in e.
    """

    shift: Node  # c
    less: Node  # x - c
    e: Node
    sums: tuple[Node, ...]


def online(graph: Rewriting, dim: str) -> None:
    """Rewrite the folds over `dim`, in place."""
    for m in list(graph.nodes.values()):
        if _is_fold(graph, m, "maximum", dim):
            found = _exponentials(graph, m, dim) if is_float(m.tensor.dtype) else []
            if found and fuel().burn(LAW, m.name):
                _rescale(graph, m, found, dim)


def _is_fold(graph: Rewriting, node: Node, monoid: str, dim: str) -> bool:
    """Tell whether an equation is a fold over `dim`."""
    if not isinstance(node.op, Fold) or node.op.monoid_of != monoid:
        return False
    return dim in graph[node.args[0].name].domain and dim not in node.domain


def _exponentials(graph: Rewriting, node: Node, dim: str) -> list[Exponential]:
    """The exponentials of x minus a fold, which are all summed; [] if others over `dim` read it."""
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
                found = _exponential(graph, c, less, dim)
                if found is None:
                    return []
                out.append(found)
    return out


def _exponential(graph: Rewriting, shift: Node, less: Node, dim: str) -> Exponential | None:
    """The exponential of `less`, if that is x - c and only sums over `dim` read its exponential."""
    if not isinstance(less.op, el.Sub) or less.args[1] != graph.read(shift.name):
        return None
    if less.args[0].name == shift.name or len(graph.readers[less.name]) != 1:
        return None
    (e,) = (graph[x] for x in graph.readers[less.name])
    if not isinstance(e.op, el.Exp) or e.args != (graph.read(less.name),):
        return None
    masked = _masked(graph, e)
    if {less.name, e.name, *masked} & set(graph.outputs):
        return None
    sums: list[Node] = []
    for x in (e.name, *sorted(masked)):
        for name in sorted(graph.readers[x].keys() - masked):
            part = graph[name]
            linear = isinstance(part.op, (Sum, Einsum)) and part.args.count(graph.read(x)) == 1
            folds = [graph[f] for f in graph.readers[name]]
            if not linear or len(folds) != 1 or _labels(less, e, x, part) is None:
                return None
            if not _is_fold(graph, folds[0], "add", dim):
                return None
            sums += folds
    return Exponential(shift, less, e, tuple(sums)) if sums else None


def _masked(graph: Rewriting, e: Node) -> set[str]:
    """The equations that are e where a condition holds, else 0."""
    out = set[str]()
    for n in map(graph.__getitem__, graph.readers[e.name]):
        if not isinstance(n.op, el.Where) or n.type != e.type or n.args[0].name == e.name:
            continue
        (_, mine, _), labels = n.op.parts((e.tensor.rank,) * 3)
        zero = is_const(graph, n.args[2], 0.0) is not None
        if n.args[1] == graph.read(e.name) and mine == labels and zero:
            out.add(n.name)
    return out


def _labels(less: Node, node: Node, name: str, part: Node) -> str | None:
    """The labels of c · part, c being subtracted in `less`; None if part has lost an axis of c.

    `name` is the equation, e or e under a mask, that part reads.
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


def _rescale(graph: Rewriting, maximum: Node, found: list[Exponential], dim: str) -> None:
    """Make a maximum, and the sums of exponentials that depend on it, running ones."""
    part = graph[maximum.args[0].name]
    start = LOWEST[part.tensor.dtype]
    running = _scan(graph, part, Monoid("maximum", start), dim, maximum.name)
    before, within = graph[running].args[1], graph[running].domain

    def shift_at(c: Node, value: Ref, suffix: str) -> Ref:
        if c.name == maximum.name:
            return value
        args = [value if a.name == maximum.name else a for a in c.args]
        return graph.emit(c.op, args, within, f"{c.name}_{suffix}")

    shifts = {
        c.name: (shift_at(c, graph.read(running), "so_far"), shift_at(c, before, "before"))
        for c in (x.shift for x in found)
    }
    for x in found:
        now, was = shifts[x.shift.name]
        growth = graph.emit(el.Sub(), (was, now), within, f"{x.less.name}_growth")
        factor = graph.emit(el.Exp(), (growth,), within, f"{x.e.name}_scale")
        graph.put(replace(x.less, args=(x.less.args[0], now)))
        for fold in x.sums:
            _rescale_sum(graph, x, fold, factor, dim)
    _read_last(graph, maximum, running, dim)


def _rescale_sum(graph: Rewriting, x: Exponential, fold: Node, factor: Ref, dim: str) -> None:
    """Make a sum of exponentials a running one, which a factor rescales at each tile."""
    part, mine = graph[fold.args[0].name], {x.e.name, *_masked(graph, x.e)}
    read = next(y.name for y in part.args if y.name in mine)
    labels = _labels(x.less, x.e, read, part)
    assert labels is not None

    def rescaled(before: Ref) -> Ref:
        op = el.Mul(labels=labels)
        return graph.emit(op, (factor, before), part.domain, f"{fold.name}_rescaled")

    total = _scan(graph, part, Monoid("add", 0.0, rescaled), dim, fold.name)
    _read_last(graph, fold, total, dim)


def _scan(graph: Rewriting, part: Node, by: Monoid, dim: str, stem: str) -> str:
    """Add the scan of a part over tiles, and return its name."""
    way, name = ScanDirection(part.domain[dim], 1), graph.fresh(f"{stem}_so_far")
    return scan(part, name, graph, by, graph.read(part.name), way).name


def _read_last(graph: Rewriting, fold: Node, running: str, dim: str) -> None:
    """Make the readers of a fold read the last running value."""
    domain = graph[running].domain
    end: Expr | int = domain[dim].hi - 1  # pyright: ignore[reportOperatorIssue]
    graph.forward(fold, Ref(running, domain.point(dim, end)))
