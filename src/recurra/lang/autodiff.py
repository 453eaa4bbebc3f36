"""backward: cotangents along inverted reads.

    y[p] = f(x[φ(p)])  where ψ(p)      gives      ∇x[q] = Σ over p in (φ∩ψ)⁻¹(q) of f'(∇y[p])

Each read is inverted dim by dim. A dim of p that q fixes is substituted; a dim that q leaves free
becomes a range and a sum; what is left of the relation becomes a guard (a merge with zero) or, for
an axis that a slice made, a `pick`. Recurrences need nothing special: ∇x may read ∇x later in time,
which is back-propagation through time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from recurra.errors import RecurraError, here
from recurra.ir.expr import (
    TRUE,
    Expr,
    Sym,
    both,
    compare,
    evaluate,
    mul,
    negate,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.op import Elementwise
from recurra.ir.types import Domain, Range, Tuple, is_float, is_shift
from recurra.lang.dims import wrap
from recurra.lang.tensor import RecurrentTensor, as_tensor, zeros
from recurra.lang.tracer import Tracer, disjoint
from recurra.ops.control import Merge
from recurra.ops.elementwise import Detach
from recurra.ops.indexing import Pick
from recurra.ops.movement import Expand
from recurra.ops.reduction import Sum
from recurra.sets import isl


def backward(loss: RecurrentTensor, wrt: Any, through_updates: bool) -> None:
    """Gives every tensor of `wrt` (default: the program's parameters) a `.grad` of its own shape."""
    tracer = loss.tracer
    leaves = list(tracer.params if wrt is None else wrt if isinstance(wrt, Iterable) else [wrt])
    if loss.shape:
        raise RecurraError(
            "backward() needs a scalar loss",
            facts=f"this one is {loss!r}",
            hint="reduce it: .mean() or .sum()",
            loc=here(),
        )
    names = {p.name for p in leaves}
    graph = _snapshot(tracer)
    stop = set[str]() if through_updates else names
    needed = _between(graph, loss.name, names, stop)
    reached = [p for p in leaves if p.name in needed]
    if not reached:
        raise RecurraError(
            "the loss does not depend on any parameter",
            facts=f"parameters: {', '.join(sorted(names)) or 'none'}",
            hint="a sample, env.step and .detach() stop gradients",
            loc=here(),
        )
    cotangents = _Cotangents(tracer, graph, needed, stop)
    cotangents.seed(loss)
    cotangents.propagate()
    for p in leaves:
        p.grad = cotangents.of(p.name) if p.name in needed else None


def _snapshot(tracer: Tracer) -> Graph:
    """The graph with the branches written so far."""
    nodes = dict(tracer.nodes)
    for name, branches in tracer.branches.items():
        op = Merge(when=disjoint([b.when for b in branches]))
        nodes[name] = replace(nodes[name], op=op, args=tuple(b.value for b in branches))
    return Graph(nodes, ())


def _between(graph: Graph, loss: str, leaves: set[str], stop: set[str]) -> set[str]:
    """The equations on some differentiable path from a leaf to the loss."""
    above: set[str] = set()
    todo = [loss]
    while todo:
        name = todo.pop()
        if name in above or not _differentiable(graph[name]):
            continue
        above.add(name)
        if name not in stop:
            todo += [a.name for a in graph[name].args]
    below = set(leaves) & above
    todo = list(below)
    while todo:
        for reader, _ in graph.readers[todo.pop()]:
            if reader.name in above and reader.name not in below and reader.name not in stop:
                below.add(reader.name)
                todo.append(reader.name)
    return below


def _differentiable(node: Node) -> bool:
    if isinstance(node.type, Tuple) or not node.op.pure or isinstance(node.op, Detach):
        return False
    return is_float(node.type.dtype)


@dataclass
class _Cotangents:
    """∇x for every x in `needed`: declared first, so that equations may refer to each other."""

    tracer: Tracer
    graph: Graph
    needed: set[str]
    stop: set[str]

    def __post_init__(self) -> None:
        self.terms: dict[str, list[RecurrentTensor]] = {n: [] for n in self.needed}
        self.handle: dict[str, RecurrentTensor] = {}
        for name in self.graph.nodes:
            if name in self.needed:
                node = self.graph[name]
                assert not isinstance(node.type, Tuple)
                made = self.tracer.declare(f"d_{name}", node.domain, node.type)
                self.handle[name] = RecurrentTensor(
                    self.tracer, Ref(made.name, node.domain.identity)
                )

    def of(self, name: str) -> RecurrentTensor:
        return self.handle[name]

    def seed(self, loss: RecurrentTensor) -> None:
        node = self.graph[loss.name]
        assert not isinstance(node.type, Tuple)
        one = zeros(node.type)
        ones = self.tracer.emit(replace(one, value=1.0), (), Domain(), "one")
        self.terms[loss.name].append(RecurrentTensor(self.tracer, Ref(ones.name)))

    def propagate(self) -> None:
        for name in list(self.graph.nodes):
            if name in self.needed and name not in self.stop:
                self._through(self.graph[name])
        for name, terms in self.terms.items():
            total = terms[0] if terms else None
            for t in terms[1:]:
                assert total is not None
                total = total + t
            if total is None:
                node = self.graph[name]
                assert not isinstance(node.type, Tuple)
                total = self.handle[name].apply(zeros(node.type))
            self.tracer.define(self.handle[name].name, TRUE, total.ref)

    def _through(self, node: Node) -> None:
        """Adds the cotangents that `node` sends to what it reads."""
        if not any(a.name in self.needed for a in node.args):
            return
        g = self.of(node.name)
        y = RecurrentTensor(self.tracer, self.graph.read(node.name))
        xs = [RecurrentTensor(self.tracer, a, indexed=True) for a in node.args]
        grads = (
            self._elementwise(node, g, y, xs)
            if isinstance(node.op, Elementwise)
            else node.op.vjp(g, y, *xs)
        )
        for k, (a, d) in enumerate(zip(node.args, grads, strict=True)):
            if a.name in self.needed and d is not None:
                pulled = pull(self.tracer, self.graph, node, k, d)
                self.terms[a.name].append(pulled)

    def _elementwise(
        self, node: Node, g: Any, y: Any, xs: list[RecurrentTensor]
    ) -> tuple[Any, ...]:
        """The rule of a pointwise op, on operands copied to the shape of the result."""
        assert isinstance(node.op, Elementwise)
        ins, out = node.op.parts(tuple(len(x.shape) for x in xs))
        sizes = dict(zip(out, y.shape, strict=True))

        def widen(x: RecurrentTensor, axes: str) -> RecurrentTensor:
            if axes == out:
                return x
            new = tuple(sizes[c] for c in out if c not in axes)
            return x.apply(Expand(labels=f"{axes}->{out}", sizes=new), x)

        wide = [widen(x, a) for x, a in zip(xs, ins, strict=True)]
        grads = node.op.vjp(g, y, *wide)
        return tuple(
            None if d is None or a.name not in self.needed else d.reduce_to(out, axes)
            for d, axes, a in zip(grads, ins, node.args, strict=True)
        )


def pull(tracer: Tracer, graph: Graph, node: Node, k: int, d: RecurrentTensor) -> RecurrentTensor:
    """∇x's share from operand `k` of `node`: `d` is the cotangent of the value that was read."""
    ref, source = node.args[k], graph[node.args[k].name].domain
    fixed = _fixed(node.domain, ref, source)
    free = [r for r in node.domain if r.dim not in fixed]
    renamed = {r.dim: _apart(tracer, r, source) for r in free}
    by: dict[str, Expr | int] = {**fixed, **{p: r.sym for p, r in renamed.items()}}
    guards = [g for g in _guards(node, k, ref, source, by, fixed) if not _implied(g, source)]
    value = _view(d, by)
    for e, r in zip(ref.index, source, strict=True):
        if isinstance(e, Slice):
            value = _unslice(value, e.at(by), r, guards)
    value = _guarded(tracer, value, both(*guards), source)
    if not free:
        return value
    return _total(value, [renamed[r.dim] for r in free], source, node, k, ref, by)


def _fixed(domain: Domain, ref: Ref, source: Domain) -> dict[str, Expr | int]:
    """The dims of the reader that the point of the source determines: p = q - c."""
    out: dict[str, Expr | int] = {}
    for e, r in zip(ref.index, source, strict=True):
        if isinstance(e, Slice):
            continue
        for p in domain.dims:
            c = is_shift(e, p)
            if c is not None and p not in out:
                out[p] = r.sym - c
    return out


def _apart(tracer: Tracer, r: Range, source: Domain) -> Range:
    """The range of a free dim, under another name where the source has the same one."""
    if r.dim not in source:
        return r
    name = r.dim + "_"
    while any(x.dim == name and (x.lo, x.hi) != (r.lo, r.hi) for x in tracer.dims):
        name += "_"
    new = Range(name, r.hi, r.lo)
    if new not in tracer.dims:
        tracer.dims.append(new)
    return new


def _guards(
    node: Node, k: int, ref: Ref, source: Domain, by: dict[str, Expr | int], fixed: dict[str, Any]
) -> list[Expr]:
    """What must hold at (q, free dims) for q to be read there."""
    out: list[Expr] = []
    for p, e in fixed.items():
        r = node.domain[p]
        q = next(s for s in source if s.dim in symbols(e))
        shift = evaluate_shift(e, q.dim)
        if _reaches_below(r, q, shift):
            out.append(compare(">=", e, r.lo))
        if _reaches_above(r, q, shift):
            out.append(compare("<", e, r.hi))
    when = merge_condition(node, k)
    if when is not None:
        out.append(substitute(when, by))
    for e, r in zip(ref.index, source, strict=True):
        if not isinstance(e, Slice) and substitute(e, by) != r.sym:
            out.append(compare("==", r.sym, substitute(e, by)))
    return out


def _implied(g: Expr, source: Domain) -> bool:
    """Does the box of the source say so already?"""
    return any(g in (compare(">=", r.sym, r.lo), compare("<", r.sym, r.hi)) for r in source)


def evaluate_shift(e: Expr | int, dim: str) -> int:
    """c of q + c."""
    return evaluate(e, {dim: 0})


def _reaches_below(r: Range, q: Range, shift: int) -> bool:
    gap = _difference(q.lo, r.lo)
    return gap is None or gap + shift < 0


def _reaches_above(r: Range, q: Range, shift: int) -> bool:
    gap = _difference(q.hi, r.hi)
    return gap is None or gap + shift > 0


def _difference(a: Expr | int, b: Expr | int) -> int | None:
    gap: Any = a - b
    return gap if isinstance(gap, int) else None


def _view(d: RecurrentTensor, by: dict[str, Expr | int]) -> RecurrentTensor:
    """`d` with the reader's dims replaced."""
    if all(isinstance(e, Sym) and e.name == p for p, e in by.items()):
        return d
    return RecurrentTensor(d.tracer, d.ref.at(by), indexed=True)


def _unslice(value: RecurrentTensor, s: Slice, r: Range, guards: list[Expr]) -> RecurrentTensor:
    """The element of the leading axis that point q of the source was read into."""
    at: Any = r.sym - s.lo
    if s.step != 1:
        guards.append(compare("==", at % s.step, 0))
        at = at // s.step
    return value.apply(Pick(axis=0, at_=at), value)


def _guarded(tracer: Tracer, value: RecurrentTensor, cond: Expr, source: Domain) -> RecurrentTensor:
    """`value` where `cond` holds, else zero."""
    if cond == TRUE:
        return value
    dims = (symbols(cond) & set(tracer.dim_names())) | set(value.domain.dims)
    ranges = {r.dim: r for r in source}
    node = tracer.declare("guarded", tracer.domain(dims, ranges), value.type)
    zero = value.apply(zeros(value.type))
    tracer.define(node.name, cond, value.ref)
    tracer.define(node.name, negate(cond), zero.ref)
    return RecurrentTensor(tracer, Ref(node.name, node.domain.identity))


def _total(
    value: RecurrentTensor,
    free: list[Range],
    source: Domain,
    node: Node,
    k: int,
    ref: Ref,
    by: dict[str, Expr | int],
) -> RecurrentTensor:
    """Σ over the free dims, each over the tightest interval that the read allows."""
    tracer = value.tracer
    varying = [r for r in free if r.dim in value.domain]
    times: Any = 1
    for r in free:
        if r not in varying:  # the value does not depend on it: count the points
            times = mul(times, r.hi - r.lo)  # pyright: ignore
    index: list[Any] = []
    have = value.domain
    value = _named(value)
    for r in have:
        if r in varying:
            lo, hi = _interval(r, varying, source, node, k, ref, by)
            index.append(Slice(lo, hi))
        else:
            index.append(r.sym)
    if varying:
        read = RecurrentTensor(tracer, Ref(value.name, tuple(index)), indexed=True)
        value = read.apply(Sum(axes=tuple(range(len(varying)))), read)
    return value if times == 1 else value * as_tensor(wrap(times), value.dtype)


def _named(value: RecurrentTensor) -> RecurrentTensor:
    """The value as an equation of its own, read at the identity over its whole domain."""
    if value.graph.is_identity(value.ref):
        return value
    node = value.tracer.declare("pulled", value.domain, value.type)
    value.tracer.define(node.name, TRUE, value.ref)
    return RecurrentTensor(value.tracer, Ref(node.name, node.domain.identity))


def _interval(
    r: Range,
    free: list[Range],
    source: Domain,
    node: Node,
    k: int,
    ref: Ref,
    by: dict[str, Expr | int],
) -> tuple[Expr | int, Expr | int]:
    """lo:hi of a free dim for a given point of the source; all of its range where none is closed."""
    moved = Ref(ref.name, ref.index).at(by)
    points = [f"{isl.text(x.lo)} <= {x.dim} < {isl.text(x.hi)}" for x in (*source, *free)]
    relation = isl.index_constraints(moved.index, source.dims)
    when = merge_condition(node, k)
    chosen = [isl.text(substitute(when, by))] if when is not None else []
    constraints = tuple(points + relation + chosen)
    names = tuple(sorted(isl.mentioned(constraints) - {x.dim for x in free}))
    found = isl.span(r.dim, tuple(x.dim for x in free), constraints, names)
    return found if found is not None else (r.lo, r.hi)
