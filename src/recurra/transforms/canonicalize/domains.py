"""Laws of domains: drop dims that nothing mentions, and those of which one point is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from recurra.cost.thresholds import MAX_GUARD_DEPTH
from recurra.ir.expr import FALSE, TRUE, Expr, Sym, evaluate, fixed_value, symbols
from recurra.ir.graph import Index, Node, Ref, Slice, merge_condition
from recurra.ir.op import LETTERS, Op
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Item, Merge
from recurra.ops.elementwise import Going, Where
from recurra.ops.movement import Expand
from recurra.ops.reduction import REDUCTION, Fold, Sum
from recurra.ops.source import Const, Input
from recurra.polyhedral.boxes import bounding_domain, fold_condition
from recurra.polyhedral.dependence import holds_where_read
from recurra.polyhedral.extent import varies
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting, compose, mentioned_symbols, shape_of


@rule(Op)
def without_points(node: Node, graph: Rewriting) -> Node | None:
    """x over a dim without points → 0, which reads nothing

    It has no values, and without its reads fewer points of others are demanded.
    """
    if not node.op.pure or isinstance(node.op, (Input, Const)) or isinstance(node.type, Tuple):
        return None
    if all(varies(r, graph.sizes) or r.size(graph.sizes) for r in node.domain):
        return None
    zero = Const(value=0, dtype=node.type.dtype, shape=node.type.shape)
    return replace(node, op=zero, args=(), locs=())


@rule(Const)
def constant_everywhere(node: Node, graph: Rewriting) -> Ref | None:
    """a constant over a domain → the same constant over the dims of its shape"""
    if not set(node.domain.dims) - set(node.domain.of(node.op.mentions()).dims):
        return None
    return graph.emit(node.op, (), node.domain, node.name)


@rule(Op)
def reduce_domain(node: Node, graph: Rewriting) -> Ref | None:
    """x over dims that nothing in it mentions → x without them"""
    if not node.op.pure or not len(node.domain) or isinstance(node.op, Input):
        return None
    used = mentioned_symbols(node).union(*map(symbols, shape_of(node.type)))
    idle = set(node.domain.dims) - set(node.domain.of(used).dims)
    if not idle or node.name in graph.outputs or graph.on_cycle(node.name):
        return None  # on a cycle a dim may give the equation its order
    domain = node.domain.without(*idle)
    small = Node(graph.fresh(node.name), node.op, node.args, domain, node.type, node.loc)
    graph.put(small)
    return graph.read(small.name)


@rule(Op)
def copies_read(node: Node, graph: Rewriting) -> Node | None:
    """f(x[0:B]), where nothing in x varies with b → f(expand(x))"""
    if isinstance(node.op, Merge):
        return None
    for k, a in enumerate(node.args):
        x = graph[a.name]
        if a.slices and isinstance(x.type, Type) and x.op.pure and not isinstance(x.op, Input):
            new = _expanded(node, a, x, graph)
            if new is not None:
                op = node.op
                if isinstance(op, Fold):  # there is no range to stream any more
                    op = REDUCTION[op.monoid_of](axes=tuple(range(op.rank)))
                return replace(node.with_operand(k, new), op=op)
    return None


def _expanded(node: Node, ref: Ref, source: Node, graph: Rewriting) -> Ref | None:
    """The read `ref` of `source` as copies along its leading axes, all of them or none."""
    _, slices = ref.parts(source.domain)
    idle = slices.keys() - mentioned_symbols(source) - source.type.mentions()
    padded = any(s.pad is not None for s in ref.slices)
    if padded or slices.keys() - idle or graph.on_cycle(source.name):
        return None
    index = tuple(e for r, e in zip(source.domain, ref.index, strict=True) if r.dim not in idle)
    domain = replace(source.domain, ranges=tuple(r for r in source.domain if r.dim not in idle))
    small = graph.emit(source.op, source.args, domain, source.name, whole=True)
    axes = LETTERS[: len(slices) + source.tensor.rank]
    op = Expand(labels=f"{axes[len(slices) :]}->{axes}", sizes=tuple(s.count for s in ref.slices))
    return graph.emit(op, (Ref(small.name, index),), node.domain, "copies")


@rule(Op)
def at_one_point(node: Node, graph: Rewriting) -> Node | Ref | None:
    """x over t, read nowhere but at t = T-1 → x at T-1, without t"""
    fixed = isinstance(node.op, Input) or node.name in graph.outputs
    if not node.op.pure or fixed or not len(node.domain):
        return None
    if isinstance(node.op, Item) and not graph[node.args[0].name].op.pure:
        return None  # the results of a call are taken where it is made: no store has all of them
    for r in node.domain:
        at = _only_point(node, r.dim, graph)
        if at is None or any(r.dim in x.mentions() for x in node.domain):
            continue
        by, others = {r.dim: at}, node.domain.without(r.dim)
        if not _is_point(node, by, graph) or graph.on_cycle(node.name, others.dims):
            continue
        own = [e == r.sym for _, _, e in _indices(node, r.dim, graph)]
        if all(own) or (any(own) and r.is_point):
            continue  # it stays in the loop of a reader of its own point; see `where_read`
        name, op, args = graph.fresh(node.name), node.op.at(by), tuple(a.at(by) for a in node.args)
        graph.put(Node(name, op, args, others, node.type.at(by), node.loc, node.locs))
        return graph.read(name)
    return None


@rule(Op)
def where_read(node: Node, graph: Rewriting) -> Node | None:
    """x over t, read nowhere but at lo <= t < hi → x over these, if that decides a branch

    Or if at most half of the points are left. A loop in which one equation has fewer points than
    the others is cut in two, which costs more than a few points.
    """
    if not node.op.pure or isinstance(node.op, Input) or node.name in graph.outputs:
        return None
    read = [(r, _range_read(node, r, graph)) for r in node.domain]
    ranges = tuple(
        new if new != r and _is_profitable(node, r, new, graph) else r for r, new in read
    )
    if ranges == node.domain.ranges:
        return None
    for a in node.args:  # which may now be read there only, too
        graph.push(a.name)
    return replace(node, domain=Domain(ranges))


def _is_profitable(node: Node, extent: Range, new: Range, graph: Rewriting) -> bool:
    """Tell whether at most half of the points are left, or a merge that it reads is decided."""
    if 2 * new.size(graph.sizes) <= extent.size(graph.sizes):
        return True
    todo, seen = [node], {node.name}
    while todo:
        for a in todo.pop().args:
            x = graph[a.name]
            if extent.dim not in x.domain or a.index[x.domain.dims.index(extent.dim)] != extent.sym:
                continue
            if isinstance(x.op, Merge):
                here = x.domain.with_range(new)
                if any(fold_condition(here, when, graph.sizes) == TRUE for when in x.op.when):
                    return True
            elif x.name not in seen and graph.readers[x.name].keys() <= seen:
                seen.add(x.name)
                todo.append(x)
    return False


def _range_read(node: Node, extent: Range, graph: Rewriting) -> Range:
    """The range from the first to the last point that is read, if all readers read their own."""
    dim, sizes, ends = extent.dim, graph.sizes, list[Range]()
    for reader, k, e in _indices(node, dim, graph):
        if e != extent.sym or dim not in reader.domain or varies(reader.domain[dim], sizes):
            return extent
        when = merge_condition(reader, k) or TRUE
        if when == TRUE and reader.domain[dim] == extent:
            return extent
        found = bounding_domain(reader.domain.of(symbols(when) | {dim}), when, sizes)[dim]
        if found == extent or varies(found, sizes):
            return extent
        ends += [found] if found.size(sizes) > 0 else []
    if not ends or varies(extent, sizes) or any(dim in x.mentions() for x in node.domain):
        return extent
    lo = min((x.lo for x in ends), key=lambda e: evaluate(e, sizes))
    hi = max((x.hi for x in ends), key=lambda e: evaluate(e, sizes))
    lo = extent.lo if evaluate(lo, sizes) <= evaluate(extent.lo, sizes) else lo
    hi = extent.hi if evaluate(hi, sizes) >= evaluate(extent.hi, sizes) else hi
    return Range(dim, hi, lo)


def _only_point(node: Node, dim: str, graph: Rewriting) -> Expr | int | None:
    """The one point of `dim` at which every reader reads `node`, if bounds alone name it."""
    found: set[Expr | int] = set()
    for reader, k, e in _indices(node, dim, graph):
        if isinstance(e, Sym) and e.name in reader.domain:
            if isinstance(node.type, Type) and dim in node.type.mentions():
                return None  # so does its reader's type, whose axes have the same length
            r = reader.domain[e.name]
            once = r.is_point and not node.domain[dim].is_point
            e = r.lo if once else fixed_value(merge_condition(reader, k), e.name)
        if e is None or isinstance(e, Slice) or symbols(e) - set(graph.sizes):
            return None
        found.add(e)
    return found.pop() if len(found) == 1 else None


def _indices(node: Node, dim: str, graph: Rewriting) -> Iterator[tuple[Node, int, Index]]:
    """Yield the readers of an equation, the operand each has it as, and its index along a dim."""
    place = node.domain.dims.index(dim)
    for reader in map(graph.__getitem__, graph.readers[node.name]):
        for k, a in enumerate(reader.args):
            if a.name == node.name:
                yield reader, k, a.index[place]


@rule(Op)
def first_branch(node: Node, graph: Rewriting) -> Node | None:
    """f(x[i,0]), on which x[i,m+1] depends → f(first[i]), first the branches of x at m = 0"""
    for k, a in enumerate(node.args):
        x = graph[a.name]
        if not isinstance(x.op, Merge) or isinstance(x.type, Tuple) or _keeps(x, graph):
            continue
        points, _ = a.parts(x.domain)
        at = {d: e for d, e in points.items() if not symbols(e) - set(graph.sizes)}
        if not at or not _is_point(x, at, graph):
            continue
        op = x.op.at(at)
        kept = [j for j, c in enumerate(op.when) if c != FALSE]
        shared = [d for d in node.domain.dims if d in x.domain]
        if len(kept) == len(x.args) or not graph.reaches(x.name, node.name, shared):
            continue
        args = [x.args[j].at(at) for j in kept]
        domain = x.domain.without(*at)
        here = replace(op, when=tuple(op.when[j] for j in kept))
        first = graph.emit(here, args, domain, f"{x.name}_first", whole=True)
        index = tuple(e for r, e in zip(x.domain, a.index, strict=True) if r.dim not in at)
        return node.with_operand(k, Ref(first.name, index))
    return None


@rule(Op)
def known_branch(node: Node, graph: Rewriting) -> Node | None:
    """f(x[t]) over t >= 1 → f(y[t]), where x[t] = merge(.., y[t], when=(.., t >= 1))"""
    for k, a in enumerate(node.args):
        x = graph[a.name]
        if not isinstance(x.op, Merge) or _keeps(x, graph):
            continue
        if (new := branch_read(node, k, x, graph)) is not None:
            return node.with_operand(k, new)
    return None


def branch_read(node: Node, index: int, source: Node, graph: Rewriting) -> Ref | None:
    """Return a read of the branch of `source` that covers all points of operand `index`, if any."""
    assert isinstance(source.op, Merge)
    a, read = node.args[index], merge_condition(node, index) or TRUE
    for branch, when in zip(source.args, source.op.when, strict=True):
        if branch.name == node.name or branch.index != graph[branch.name].domain.identity:
            continue  # a value that x carries from step to step is read from x
        if holds_where_read(when, a.index, source.domain, node.domain, read):
            return compose(a, source.domain, branch)
    return None


@rule(Sum)
def sum_of_one_point(node: Node, graph: Rewriting) -> Ref | None:
    """Σₜ x[t], where x[t] is zero but at t = 0 → x[0]"""
    (a,) = node.args
    x = graph[a.name]
    assert isinstance(node.op, Sum)
    if len(a.slices) != 1 or node.op.axes != (0,):
        return None
    points, cut = a.parts(x.domain)
    ((dim, range_),) = cut.items()
    at = _only_nonzero(graph, x, dim)
    if at is None or range_ != Slice(x.domain[dim].lo, x.domain[dim].hi):
        return None
    if not _is_point(x, {dim: at}, graph):
        return None
    args, domain = [y.at({dim: at}) for y in x.args], x.domain.without(dim)
    one = graph.emit(x.op.at({dim: at}), args, domain, x.name, whole=True)
    return Ref(one.name, tuple(points.values()))


def _only_nonzero(
    graph: Rewriting, node: Node, dim: str, depth: int = MAX_GUARD_DEPTH
) -> Expr | int | None:
    """The only point of a dim at which a merge is not zero; None if it is unknown.

    A branch that is read along the dim is searched in turn.
    """
    if not isinstance(node.op, Merge) or not depth:
        return None
    found = set[Expr | int | None]()
    for a, when in zip(node.args, node.op.when, strict=True):
        source = graph[a.name]
        if isinstance(source.op, Const) and source.op.value == 0:
            continue
        at = fixed_value(when, dim)
        own = [d for d, e in zip(source.domain.dims, a.index, strict=True) if e == Sym(dim)]
        if at is None and own:
            at = _only_nonzero(graph, source, own[0], depth - 1)
        found.add(at)
    at = found.pop() if len(found) == 1 else None
    return None if symbols(at) - graph.sizes.keys() else at


@rule(Merge)
def own_point(node: Node, graph: Rewriting) -> Node | None:
    """merge(x[0], .., when=(t == 0, ..)) → merge(x[t], ..), where x depends on the merge"""
    args = list(node.args)
    for k, a in enumerate(node.args):
        x, when = graph[a.name], merge_condition(node, k)
        index = tuple(
            Sym(d) if e != Sym(d) and d in node.domain and e == fixed_value(when, d) else e
            for d, e in zip(x.domain.dims, a.index, strict=True)
        )
        if index != a.index and graph.reaches(x.name, node.name):
            args[k] = Ref(a.name, index)
    return replace(node, args=tuple(args)) if tuple(args) != node.args else None


def _keeps(node: Node, graph: Rewriting) -> bool:
    """Tell whether branches hold a value once rows have ended, x[t] = where(.., x[t-1]).

    The loop may stop before such a branch is ever taken: the value is then read from x.
    """
    branches = (graph[a.name] for a in node.args)
    return Going in graph.ops and any(
        isinstance(b.op, Where) and b.args[2].name == node.name for b in branches
    )


def _is_point(node: Node, at: Mapping[str, Expr | int], graph: Rewriting) -> bool:
    """Tell whether an equation has these points; a branch that is never taken may read others."""
    for dim, e in at.items():
        r = node.domain[dim]
        if (symbols(r.lo) | symbols(r.hi)) - set(graph.sizes):
            return False
        lo, point, hi = (evaluate(x, graph.sizes) for x in (r.lo, e, r.hi))
        if not lo <= point < hi:
            return False
    return True


DOMAINS = (
    without_points,
    sum_of_one_point,
    own_point,
    known_branch,
    first_branch,
    constant_everywhere,
    reduce_domain,
    copies_read,
    where_read,
    at_one_point,
)
