"""backward: reverse-mode differentiation, with cotangents propagated along inverted reads.

    y[p] = f(x[φ(p)])  where ψ(p)      gives      ∇x[q] = Σ over p in (φ∩ψ)⁻¹(q) of f'(∇y[p])

Each read is inverted dim by dim. A dim of p that q determines is substituted; a dim that q leaves
free becomes a range and a sum; the rest of the relation becomes a guard (a merge with zero) or, for
an axis that a slice made, a `pick`. Recurrences need nothing special: ∇x may read ∇x later in time,
which is back-propagation through time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Generic

from recurra.analysis.data_conditions import NOTHING, Decided
from recurra.analysis.graph_builder import GraphBuilder
from recurra.errors import RecurraError, here
from recurra.frontend.gradient_paths import (
    as_defined,
    decided_paths,
    dependence_conditions,
    has_gradient,
    passing,
    paths_between,
    snapshot,
    written_from,
)
from recurra.frontend.index_arguments import wrap
from recurra.frontend.inverse_reads import Inverse, invert
from recurra.frontend.outer_products import is_nonlinear_in_rows, picked, summed
from recurra.frontend.tensor_base import Operand, Read, Tensor
from recurra.frontend.tensor_conversion import convert, pointwise, zeros
from recurra.ir.expr import (
    FALSE,
    TRUE,
    Cmp,
    Expr,
    Sym,
    all_of,
    between,
    compare,
    lin,
    maximum,
    mul,
    negate,
    substitute,
    symbols,
    walk,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import Elementwise
from recurra.ir.types import Domain, Range, Tuple, is_float, is_shift
from recurra.ops.elementwise import Cond
from recurra.ops.indexing import Pick
from recurra.ops.movement import Cut, Expand
from recurra.ops.reduction import Sum
from recurra.polyhedral.dependence import readers


def backward(loss: Operand, wrt: object, through_updates: bool) -> None:
    """Set `.grad` of each of `wrt` (default: the program's parameters), in its own shape."""
    builder = loss.builder
    leaves = builder.params if wrt is None else _leaves(wrt)
    if loss.shape:
        raise RecurraError.at_user_line(
            "backward() needs a scalar loss",
            facts=f"this one is {loss!r}",
            hint="reduce it: .mean() or .sum()",
        )
    _expect_averaged(loss, leaves)
    loss = _named(loss)
    names = {p.name for p in leaves}
    params = {p.name for p in builder.params}
    graph = as_defined(snapshot(builder), names | params)
    passed = passing(graph) - (set() if through_updates else params)
    needed = paths_between(graph, loss.name, names, passed)
    reached = [p for p in leaves if p.name in needed]
    if not reached:
        raise _unreached(graph, loss, names, passed)
    for p in reached if wrt is None else ():
        if p.grad is not None:
            raise RecurraError.at_user_line(
                f"{p.name} has a gradient already",
                facts=f"of {builder.nodes[p.grad.name].loc}; gradients do not add up by themselves",
                hint="(first + second).backward(), or name what each is for: backward(wrt=...)",
            )
    nonzero = dependence_conditions(graph, loss.name, needed & passed)
    by_data = decided_paths(graph, loss.name, needed & passed)
    cotangents = _Cotangents(loss.kind, builder, graph, needed, passed, nonzero, by_data)
    cotangents.seed(loss)
    cotangents.propagate()
    builder.gradients += 1
    _refuse_later_branches(loss, {p: cotangents.handle[p.name] for p in reached}, through_updates)
    for p in reached if wrt is None else leaves:
        p.grad = cotangents.handle[p.name] if p.name in needed else None


def _expect_averaged(loss: Operand, leaves: Sequence[Operand]) -> None:
    """Raise RecurraError for a mean over no axis, whose points backward() would add up instead."""
    own = {d for p in leaves for d in p.domain.dims}
    extra = [r for r in loss.domain if r.dim not in own]
    if not loss.mean_of_nothing or not extra:
        return
    ranges = (f"{r.lo}:{r.hi}" if r in extra else r.dim for r in loss.domain)
    raise RecurraError.at_user_line(
        "the mean of this loss has nothing to average",
        facts=f"it is {loss!r}, one number at each point; backward() adds up the points along "
        f"{', '.join(r.dim for r in extra)}",
        hint=f"read them as an axis first, x[{', '.join(ranges)}].mean(), or leave .mean() out "
        "for the sum",
    )


def _leaves(wrt: object) -> list[Any]:
    """The tensors of `wrt`. Raises RecurraError for a non-tensor or a read of another point."""
    tensors = [wrt] if isinstance(wrt, Read) or not isinstance(wrt, Iterable) else list(wrt)
    for x in tensors:
        if not isinstance(x, Read):
            raise RecurraError.at_user_line(
                f"backward(wrt=...) takes tensors, not {type(x).__name__}",
                facts=f"it was given {x!r}",
                hint="of a module: backward(wrt=net.params)",
            )
        if not x.graph.is_identity(x.ref):
            raise RecurraError.at_user_line(
                f"backward(wrt=...) is given the read {x.ref}",
                facts=f"gradients are of tensors, at every point; {x.name} is over "
                f"{x.graph[x.name].domain}",
                hint=f"ask for all of it, and read the gradient there: backward(wrt=[{x.name}])",
            )
    return tensors


def _unreached(graph: Graph, loss: Operand, leaves: set[str], passed: set[str]) -> RecurraError:
    """The error for a loss from which no gradient reaches a leaf."""
    on_the_way = paths_between(graph, loss.name, leaves, passing(graph)) - leaves
    ends = sorted(on_the_way - passed)
    facts = f"parameters: {', '.join(sorted(leaves)) or 'none'}"
    whole = [f"{n} is {t}" for n in sorted(leaves) if not is_float((t := graph[n].type).dtype)]
    facts += f"; {', '.join(whole)}, and only floats have gradients" if whole else ""
    return RecurraError.at_user_line(
        "the loss does not depend on any parameter",
        facts=f"{facts}; gradients stop at {', '.join(ends)}" if ends else facts,
        hint="backward(.., through_updates=True) follows the values of parameters to where they "
        "come from"
        if ends
        else "a sample, env.step and .detach() stop gradients",
    )


def _refuse_later_branches(
    loss: Tensor, gradients: Mapping[Any, Tensor], through_updates: bool
) -> None:
    """Check, when the program is finished, that no branch on a gradient path was added later."""
    builder, line = loss.builder, here()
    taken = builder.gradients

    def check(_: Graph) -> None:
        later = {
            name: late
            for name, branches in builder.branches.items()
            if (late := [b for b in branches if b.gradients >= taken])
        }
        params = {p.name for p in builder.params}
        if later.keys() <= params:
            return
        graph = snapshot(builder)
        passed = passing(graph) - (params & later.keys() if through_updates else params)
        for p, gradient in gradients.items():  # written by hand: w[i + 1] = w - w.grad * lr
            if p.name in later and gradient.name in written_from(graph, later[p.name], params):
                passed.discard(p.name)
        needed = paths_between(graph, loss.name, {p.name for p in gradients}, passed)
        for name in (n for n in later if n in needed & passed):
            missed = [b for b in later[name] if b.value.name in needed]
            if missed:
                raise RecurraError(
                    f"a branch of {name} comes after the backward() that should go through it",
                    facts=f"the gradients are those of {line}; the loss there depends on {name}",
                    hint=f"write all of {name} before backward(), or {name}.detach() in the loss",
                    loc=missed[0].loc,
                )

    builder.checks.append(check)


@dataclass
class _Cotangents(Generic[Tensor]):
    """The cotangents ∇x of all x in `needed`, declared first because they may be recursive."""

    kind: type[Tensor]
    builder: GraphBuilder
    graph: Graph
    needed: set[str]
    passed: set[str]
    nonzero: Mapping[str, Expr]  # conditions outside which a cotangent is 0, even times infinity
    decided: Mapping[str, Decided]  # the same, for conditions on data

    def __post_init__(self) -> None:
        here = [n for n in self.graph.nodes if n in self.needed]
        self.terms: dict[str, list[Tensor]] = {n: [] for n in here}
        self.handle: dict[str, Tensor] = {}
        for name in here:
            node = self.graph[name]
            assert not isinstance(node.type, Tuple)
            declared = self.builder.declare_choice(f"d_{name}", node.domain, node.type)
            self.handle[name] = self.kind(self.builder, Ref(declared.name, node.domain.identity))

    def seed(self, loss: Tensor) -> None:
        op = replace(zeros(loss.type), value=1.0)
        ones = self.builder.emit(op, (), Domain(), "one")
        self.terms[loss.name].append(self.kind(self.builder, Ref(ones.name)))

    def propagate(self) -> None:
        through = self.needed & self.passed
        for name in list(self.graph.nodes):
            if name in through:
                self.builder.line = self.graph[name].loc
                try:
                    self._through(self.graph[name])
                finally:
                    self.builder.line = None
        for name, terms in self.terms.items():
            own = self.handle[name]
            total = reduce(add, terms) if terms else own.apply(zeros(own.type))
            self.builder.define(own.name, TRUE, total.ref)

    def _through(self, node: Node) -> None:
        """Add the cotangents that `node` contributes to its operands."""
        if not any(a.name in self.needed for a in node.args):
            return
        g = self.handle[node.name]
        y = self.kind(self.builder, self.graph.read(node.name))
        xs = [self.kind(self.builder, a, indexed=True) for a in node.args]
        grads = (
            self._elementwise(node, g, y, xs)
            if isinstance(node.op, Elementwise)
            else node.op.vjp(g, y, *xs)
        )
        for k, (a, d) in enumerate(zip(node.args, grads, strict=True)):
            if a.name in self.needed and d is not None:
                nonzero = self.nonzero.get(node.name, TRUE)
                when = nonzero if has_gradient(d, g, [y, *xs]) else TRUE
                d = self._where_decided(node, a, d)
                pulled = pull(self.builder, self.graph, node, k, d, when, nonzero)
                if pulled is not None:
                    self.terms[a.name].append(pulled)

    def _where_decided(self, node: Node, ref: Ref, gradient: Tensor) -> Tensor:
        """Zero the cotangent of an operand where conditions on data skip its reader.

        It need not be computed there either. Conditions that the operand shares are left to it.
        """
        decided = self.decided.get(node.name, NOTHING) - self.decided.get(ref.name, NOTHING)
        for c in sorted(decided, key=str):
            zero, truth = (
                gradient.apply(zeros(gradient.type)),
                self.kind(self.builder, c.ref, indexed=True),
            )
            sides = (gradient, zero) if c.holds else (zero, gradient)
            gradient = pointwise(self.kind, Cond, truth, *sides)
        return gradient

    def _elementwise(
        self, node: Node, gradient: Tensor, result: Tensor, xs: list[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The cotangents of an elementwise op, computed on operands expanded to its result."""
        assert isinstance(node.op, Elementwise)
        ins, out = node.op.parts(tuple(len(x.shape) for x in xs))
        sizes = dict(zip(out, result.shape, strict=True))

        def widen(tensor: Tensor, axes: str) -> Tensor:
            if axes == out:
                return tensor
            new = tuple(sizes[c] for c in out if c not in axes)
            return tensor.apply(Expand(labels=f"{axes}->{out}", sizes=new), tensor)

        wide = [widen(x, a) for x, a in zip(xs, ins, strict=True)]
        grads = node.op.vjp(gradient, result, *wide)
        return tuple(
            None if d is None or a.name not in self.needed else d.reduce_to(out, axes)
            for d, axes, a in zip(grads, ins, node.args, strict=True)
        )


def pull(
    builder: GraphBuilder,
    graph: Graph,
    node: Node,
    index: int,
    gradient: Tensor,
    when: Expr,
    nonzero: Expr,
) -> Tensor | None:
    """The contribution to ∇x of operand `index` of `node`, from the cotangent of the value read.

    Args:
        when: the condition at the reader's point under which it contributes.
        nonzero: the condition outside which `gradient` is 0, so that sums may omit those points.
    """
    inverses = invert(builder, graph, node, index, when)
    bends = bool(node.args[index].slices) and is_nonlinear_in_rows(graph, node)
    # without free dims there is no sum that could become a recurrence: products may be split
    terms = [_term(gradient, node, inv, nonzero, bends or not inv.free) for inv in inverses]
    found = [x for x in terms if x is not None]
    return reduce(add, found) if found else None


def _term(gradient: Tensor, node: Node, inv: Inverse, nonzero: Expr, split: bool) -> Tensor | None:
    """The contribution of one inverse of a read; `split` applies sums to factors of products."""
    edges = [*_edges(node.domain, inv), inv.inside]
    edges = [g for g in edges if g != TRUE and not _implied(g, inv.source)]
    guards = [g for g in _guards(inv) if not _implied(g, inv.source)]
    value = _view(gradient, inv.by)
    if inv.ref.slices and not all(_implied(g, value.domain) for g in edges):
        # picking an element reads the value even where there is no reader
        value = _view(_ended(gradient), inv.by)
        value, edges = _guarded(gradient.builder, value, all_of(*edges), inv), []
    for e, r in zip(inv.ref.index, inv.source, strict=True):
        if isinstance(e, Slice):
            value = _unslice(value, e, r, guards, split)
    cond = all_of(*edges, *guards)
    if cond == FALSE:
        return None
    nonzero = substitute(nonzero, inv.by)
    if _is_box(nonzero, value.domain):
        nonzero = TRUE  # sums over all of a dim cost little more, and keep their order free
    return _total(_guarded(gradient.builder, value, cond, inv), inv, nonzero, split)


def _is_box(condition: Expr, domain: Domain) -> bool:
    """Does no comparison of a condition relate two dims?"""
    dims = set(domain.dims)
    compared = (e for e in walk(condition) if isinstance(e, Cmp))
    return not any(len(symbols(e) & dims) > 1 for e in compared)


def _edges(domain: Domain, inv: Inverse) -> list[Expr]:
    """The conditions on q under which the point determined by it lies in the reader's domain."""
    out: list[Expr] = []
    for p, e in inv.fixed.items():
        r = domain[p]
        q = next(s for s in inv.source if s.dim in symbols(e))
        c = is_shift(e, q.dim) or 0
        starts, ends = between(e, r.lo, r.hi)
        out += [starts] if _less(lin([(q.lo, 1), (c, 1)]), r.lo) else []
        out += [ends] if _less(r.hi, lin([(q.hi, 1), (c, 1)])) else []
    return out


def _guards(inv: Inverse) -> list[Expr]:
    """The remaining conditions on (q, free dims) under which q is read there."""
    pairs = zip(inv.ref.index, inv.source, strict=True)
    points = (compare("==", r.sym, e) for e, r in pairs if not isinstance(e, Slice) and e != r.sym)
    return [inv.when, *points]


def _implied(expr: Expr, source: Domain) -> bool:
    """Is the condition one of the bounds of the source's domain?"""
    return any(expr in r.edges for r in source)


def _less(left: Expr | int, right: Expr | int) -> bool:
    """Can `left` be less than `right`?"""
    gap = lin([(right, 1), (left, -1)])
    return gap > 0 if isinstance(gap, int) else True


def _view(gradient: Tensor, by: dict[str, Expr | int]) -> Tensor:
    """Substitute the reader's dims in the read of `gradient`."""
    if all(isinstance(e, Sym) and e.name == p for p, e in by.items()):
        return gradient
    return gradient.kind(gradient.builder, gradient.ref.at(by), indexed=True)


def _unslice(
    value: Tensor, slice_: Slice, extent: Range, guards: list[Expr], split: bool
) -> Tensor:
    """The element of the leading axis that holds point q of the source.

    Conditions under which there is one are appended to `guards`.
    """
    at = extent.sym - slice_.lo
    if slice_.step != 1:
        guards.append(compare("==", at % slice_.step, 0))
        at = at // slice_.step
    if slice_.pad is not None:
        guards.append(compare("<", extent.sym, slice_.hi))
    product = picked(value, at) if split else None
    return value.apply(Pick(axis=0, at_=at, zero=True), value) if product is None else product


def _ended(value: Tensor) -> Tensor:
    """Clamp axis lengths at 0 where `value` is not defined: f32[B-t] becomes f32[max(B-t,0)]."""
    dims = set(value.builder.dim_names())
    for k, n in enumerate(value.type.shape):
        if symbols(n) & dims and (size := maximum(n, 0)) != n:
            value = value.apply(Cut(axis=k, start=0, size=size), value)
    return value


def _guarded(builder: GraphBuilder, value: Tensor, cond: Expr, inv: Inverse) -> Tensor:
    """`value` where `cond` holds, else zero, over the whole box of the inverse."""
    have = value.domain
    if cond == TRUE and all(r == inv.ranges[r.dim] for r in have):
        return value
    dims = (symbols(cond) & set(builder.dim_names())) | set(have.dims)
    node = builder.declare_choice("guarded", builder.domain(dims, inv.ranges), value.type)
    builder.define(node.name, cond, value.ref)
    if cond != TRUE:
        builder.define(node.name, negate(cond), value.apply(zeros(value.type)).ref)
    return value.kind(builder, node.ref)


def _total(value: Tensor, inv: Inverse, nonzero: Expr, split: bool) -> Tensor:
    """Σ over the free dims, each over the tightest interval outside of which the value is 0."""
    have, when = value.domain, all_of(inv.when, nonzero)
    varying = [r for r in inv.free if r.dim in have]
    others = (lin([(r.hi, 1), (r.lo, -1)]) for r in inv.free if r not in varying)
    count = reduce(mul, others, 1)  # of points on which the value does not depend
    if varying:
        index = tuple(
            _interval(*readers(r, inv.free, inv.source, inv.ref.index, when))
            if r in varying
            else r.sym
            for r in have
        )
        value = _summed(value, index, split)
    return value if count == 1 else value * convert(value.kind, wrap(count), value.dtype)


def _summed(value: Tensor, index: tuple[Index, ...], split: bool) -> Tensor:
    """The sum over the ranges of an index; with `split`, a product becomes a contraction."""
    product = summed(value, index) if split else None
    if product is not None:
        return product
    value = value.kind(value.builder, Ref(_named(value).name, index), indexed=True)
    axes = tuple(range(len(value.ref.slices)))
    return value.apply(Sum(axes=axes), value) if axes else value


def _interval(lo: Expr | int, hi: Expr | int) -> Index:
    """The index lo:hi, or just lo if that is its only point."""
    return lo if lin([(hi, 1), (lo, -1)]) == 1 else Slice(lo, hi)


def _named(value: Tensor) -> Tensor:
    """Return a read of an equation at the identity, adding an equation for any other read."""
    if value.graph.is_identity(value.ref):
        return value
    node = value.builder.declare_choice("pulled", value.domain, value.type)
    value.builder.define(node.name, TRUE, value.ref)
    return value.kind(value.builder, node.ref)
