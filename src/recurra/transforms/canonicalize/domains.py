"""Laws of domains: dims that nothing mentions vanish, and those that are read at one point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from recurra.ir.expr import (
    FALSE,
    TRUE,
    Expr,
    Sym,
    evaluate,
    pinned,
    symbols,
)
from recurra.ir.graph import Index, Node, Ref, Slice, merge_condition
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Item, Merge
from recurra.ops.elementwise import Going, Where
from recurra.ops.movement import Expand
from recurra.ops.reduction import REDUCTION, Fold
from recurra.ops.source import Const, Input
from recurra.polyhedral.boxes import around, decided
from recurra.polyhedral.dependence import holds_where_read
from recurra.polyhedral.extent import varies
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, compose, reach, rule


@rule(Const)
def constant_everywhere(n: Node, g: Rewriting) -> Ref | None:
    """a constant over a domain → the same constant over the dims of its shape"""
    if not set(n.domain.dims) - set(n.domain.of(n.op.mentions()).dims):
        return None
    return g.emit(n.op, (), n.domain, n.name)


@rule(Op)
def reduce_domain(n: Node, g: Rewriting) -> Ref | None:
    """x over dims that nothing in it mentions → x without them"""
    if not n.op.pure or not len(n.domain) or isinstance(n.op, Input):
        return None
    used = reach(n)
    if isinstance(n.type, Type):
        used |= set().union(set(), *(symbols(s) for s in n.type.shape))
    idle = set(n.domain.dims) - set(n.domain.of(used).dims)
    if not idle or n.name in g.outputs or g.on_cycle(n.name):
        return None  # on a cycle a dim may be what gives the equation its place
    domain = n.domain.without(*idle)
    small = Node(g.fresh(n.name), n.op, n.args, domain, n.type, n.loc)
    g.put(small)
    return g.read(small.name)


@rule(Op)
def copies_read(n: Node, g: Rewriting) -> Node | None:
    """f(x[0:B]), where nothing in x varies with b → f(expand(x))"""
    if isinstance(n.op, Merge):
        return None
    for k, a in enumerate(n.args):
        x = g[a.name]
        if a.slices and isinstance(x.type, Type) and x.op.pure and not isinstance(x.op, Input):
            new = _copies(n, a, x, g)
            if new is not None:
                return replace(n, op=_whole(n.op), args=(*n.args[:k], new, *n.args[k + 1 :]))
    return None


def _copies(n: Node, a: Ref, x: Node, g: Rewriting) -> Ref | None:
    """The read `a` of `x` as copies along its leading axes, all of them or none."""
    assert isinstance(x.type, Type)
    _, cut = a.parts(x.domain)
    idle = cut.keys() - reach(x) - x.type.mentions()
    padded = any(s.pad is not None for s in a.slices)
    if padded or cut.keys() - idle or g.on_cycle(x.name):
        return None
    kept = tuple(r for r in x.domain if r.dim not in idle)
    index = tuple(e for r, e in zip(x.domain, a.index, strict=True) if r.dim not in idle)
    small = g.emit(x.op, x.args, replace(x.domain, ranges=kept), x.name, whole=True)
    axes = "abcdefghijklmnop"
    lead, rest = axes[: len(cut)], axes[len(cut) : len(cut) + x.type.rank]
    sizes = tuple(s.count for s in a.slices)
    read = Ref(small.name, index)
    return g.emit(Expand(labels=f"{rest}->{lead}{rest}", sizes=sizes), (read,), n.domain, "copies")


def _whole(op: Op) -> Op:
    """The same of an axis: what is no range cannot be streamed."""
    if isinstance(op, Fold):
        return REDUCTION[op.monoid_of](axes=tuple(range(op.rank)))
    return op


@rule(Op)
def at_one_point(n: Node, g: Rewriting) -> Node | Ref | None:
    """x over t, read nowhere but at t = T-1 → x at T-1, without t"""
    if not n.op.pure or isinstance(n.op, Input) or n.name in g.outputs or not len(n.domain):
        return None
    if isinstance(n.op, Item) and not g[n.args[0].name].op.pure:
        return None  # the results of a call are taken where it is made: no store has all of them
    for r in n.domain:
        at = _only_point(n, r.dim, g)
        if (
            at is None
            or any(r.dim in x.mentions() for x in n.domain)
            or not _is_point(n, {r.dim: at}, g)
            or g.on_cycle(n.name, n.domain.without(r.dim).dims)
        ):
            continue
        own = [e == r.sym for _, _, e in _indices(n, r.dim, g)]
        if all(own) or (any(own) and r.is_point):
            continue  # it stays in the loop of who reads its own point; see `where_read`
        by = {r.dim: at}
        small = Node(
            g.fresh(n.name),
            n.op.at(by),
            tuple(a.at(by) for a in n.args),
            n.domain.without(r.dim),
            n.type.at(by) if isinstance(n.type, Type) else n.type,
            n.loc,
            n.locs,
        )
        g.put(small)
        return g.read(small.name)
    return None


@rule(Op)
def where_read(n: Node, g: Rewriting) -> Node | None:
    """x over t, read nowhere but at lo <= t < hi → x over these, if that decides a branch

    The same if at most half of the points are left. A loop in which one equation has fewer points
    than the others is cut in two, which costs more than a few points of it.
    """
    if not n.op.pure or isinstance(n.op, Input) or n.name in g.outputs:
        return None
    read = [(r, _range_read(n, r, g)) for r in n.domain]
    ranges = tuple(new if new != r and _pays(n, r, new, g) else r for r, new in read)
    if ranges == n.domain.ranges:
        return None
    for a in n.args:  # which may now be read there only, too
        g.push(a.name)
    return replace(n, domain=Domain(ranges))


def _pays(n: Node, r: Range, new: Range, g: Rewriting) -> bool:
    """Is at most half left, or does what it reads take one branch at all points that are left?"""
    if 2 * new.size(g.sizes) <= r.size(g.sizes):
        return True
    todo, seen = [n], {n.name}
    while todo:
        for a in todo.pop().args:
            x = g[a.name]
            if r.dim not in x.domain or a.index[x.domain.dims.index(r.dim)] != r.sym:
                continue
            if isinstance(x.op, Merge):
                here = x.domain.with_range(new)
                if any(decided(here, when, g.sizes) == TRUE for when in x.op.when):
                    return True
            elif x.name not in seen and g.readers[x.name].keys() <= seen:
                seen.add(x.name)
                todo.append(x)
    return False


def _range_read(n: Node, r: Range, g: Rewriting) -> Range:
    """The part of a range between the first and the last point that is read, each at its own."""
    ends: list[Range] = []
    for reader, k, e in _indices(n, r.dim, g):
        if e != r.sym or r.dim not in reader.domain or varies(reader.domain[r.dim], g.sizes):
            return r
        when = merge_condition(reader, k) or TRUE
        if when == TRUE and reader.domain[r.dim] == r:
            return r
        asks = reader.domain.of(symbols(when) | {r.dim})
        found = around(asks, when, g.sizes)[r.dim]
        if found == r or varies(found, g.sizes):
            return r
        ends += [found] if found.size(g.sizes) > 0 else []
    if not ends or varies(r, g.sizes) or any(r.dim in x.mentions() for x in n.domain):
        return r
    lo = min((x.lo for x in ends), key=lambda e: evaluate(e, g.sizes))
    hi = max((x.hi for x in ends), key=lambda e: evaluate(e, g.sizes))
    lo = r.lo if evaluate(lo, g.sizes) <= evaluate(r.lo, g.sizes) else lo
    hi = r.hi if evaluate(hi, g.sizes) >= evaluate(r.hi, g.sizes) else hi
    return Range(r.dim, hi, lo)


def _only_point(n: Node, dim: str, g: Rewriting) -> Expr | int | None:
    """The one point of `dim` at which every reader reads `n`, if bounds alone name it."""
    found: set[Expr | int] = set()
    for reader, k, e in _indices(n, dim, g):
        if isinstance(e, Sym) and e.name in reader.domain:
            if isinstance(n.type, Type) and dim in n.type.mentions():
                return None  # so does its reader's type, whose axes have the same length
            r = reader.domain[e.name]
            once = r.is_point and not n.domain[dim].is_point
            e = r.lo if once else pinned(merge_condition(reader, k), e.name)
        if e is None or isinstance(e, Slice) or symbols(e) - set(g.sizes):
            return None
        found.add(e)
    return found.pop() if len(found) == 1 else None


def _indices(n: Node, dim: str, g: Rewriting) -> Iterator[tuple[Node, int, Index]]:
    """Who reads an equation as which operand, and where along a dim."""
    place = n.domain.dims.index(dim)
    for reader in map(g.__getitem__, g.readers[n.name]):
        for k, a in enumerate(reader.args):
            if a.name == n.name:
                yield reader, k, a.index[place]


@rule(Op)
def first_branch(n: Node, g: Rewriting) -> Node | None:
    """f(x[i,0]), which x[i,m+1] needs → f(first[i]), first the branches of x at m = 0"""
    for k, a in enumerate(n.args):
        x = g[a.name]
        if not isinstance(x.op, Merge) or isinstance(x.type, Tuple) or _keeps(x, g):
            continue
        points, _ = a.parts(x.domain)
        at = {d: e for d, e in points.items() if not symbols(e) - set(g.sizes)}
        if not at or not _is_point(x, at, g):
            continue
        op = x.op.at(at)
        kept = [j for j, c in enumerate(op.when) if c != FALSE]
        shared = [d for d in n.domain.dims if d in x.domain]
        if len(kept) == len(x.args) or not g.reaches(x.name, n.name, shared):
            continue
        args = [x.args[j].at(at) for j in kept]
        domain = x.domain.without(*at)
        here = replace(op, when=tuple(op.when[j] for j in kept))
        first = g.emit(here, args, domain, f"{x.name}_first", whole=True)
        index = tuple(e for r, e in zip(x.domain, a.index, strict=True) if r.dim not in at)
        read = Ref(first.name, index)
        return replace(n, args=(*n.args[:k], read, *n.args[k + 1 :]))
    return None


@rule(Op)
def known_branch(n: Node, g: Rewriting) -> Node | None:
    """f(x[t]) over t >= 1 → f(y[t]), where x[t] = merge(.., y[t], when=(.., t >= 1))"""
    for k, a in enumerate(n.args):
        x = g[a.name]
        if not isinstance(x.op, Merge) or _keeps(x, g):
            continue
        if (new := _branch_read(n, k, x, g)) is not None:
            return replace(n, args=(*n.args[:k], new, *n.args[k + 1 :]))
    return None


def _branch_read(n: Node, k: int, x: Node, g: Rewriting) -> Ref | None:
    """What operand `k` of `n` is of the one branch of `x` that all the points it reads are in."""
    assert isinstance(x.op, Merge)
    a, read = n.args[k], merge_condition(n, k) or TRUE
    for branch, when in zip(x.args, x.op.when, strict=True):
        if branch.name == n.name or branch.index != g[branch.name].domain.identity:
            continue  # what x carries from step to step is read of x
        if holds_where_read(when, a.index, x.domain, n.domain, read):
            return compose(a, x.domain, branch)
    return None


def _keeps(x: Node, g: Rewriting) -> bool:
    """Tell whether branches keep a value once rows have ended, x[t] = where(.., x[t-1]).

    The loop may stop before such a branch is ever taken: what was kept is then read of x.
    """
    branches = (g[a.name] for a in x.args)
    kept = any(isinstance(b.op, Where) and b.args[2].name == x.name for b in branches)
    return kept and any(isinstance(n.op, Going) for n in g.nodes.values())


def _is_point(x: Node, at: Mapping[str, Expr | int], g: Rewriting) -> bool:
    """Has an equation these points? A branch that is never taken may read any other."""
    for dim, e in at.items():
        r = x.domain[dim]
        if (symbols(r.lo) | symbols(r.hi)) - set(g.sizes):
            return False
        if not evaluate(r.lo, g.sizes) <= evaluate(e, g.sizes) < evaluate(r.hi, g.sizes):
            return False
    return True


DOMAINS = (
    known_branch,
    first_branch,
    constant_everywhere,
    reduce_domain,
    copies_read,
    where_read,
    at_one_point,
)
