"""check: prove every read, branch and shape before anything runs, or report a counter-example.

    y[t<T] = mul(x[t+1], c)     x is defined for 0 <= t < T, ... at t=3, T=4 it asks for x[4]

Bounds are numbers here, so a counter-example is concrete. The scheduler proves that an order exists
in general; here only a point that needs itself is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np

from recurra.analysis import diagnostics
from recurra.analysis.affine import product, quasi_affine
from recurra.analysis.bound_values import known_bounds
from recurra.analysis.cycles import same_point_cycle
from recurra.analysis.exact_demand import demanded_exactly
from recurra.analysis.proofs import CounterExample, Proof, Unprovable
from recurra.errors import RecurraError
from recurra.ir.expr import (
    FALSE,
    TRUE,
    Cmp,
    Expr,
    Logic,
    Sym,
    all_of,
    any_of,
    compare,
    evaluate,
    mul,
    negate,
    substitute,
    symbols,
    walk,
)
from recurra.ir.graph import Graph, Node, Ref, Slice, merge_condition
from recurra.ir.types import NUMPY_NAME, Domain, Tuple, Type, is_float
from recurra.ops.control import Merge
from recurra.ops.indexing import Pick, Take
from recurra.ops.movement import Cut, Reshape
from recurra.ops.ordering import TopK
from recurra.ops.permutation import Permutation
from recurra.ops.reduction import ArgMax, Extremum, Fold
from recurra.ops.softmax import LogSoftmax, Softmax
from recurra.ops.source import Const, Data, Input, Value
from recurra.polyhedral import dependence
from recurra.polyhedral.boxes import bounding_domain
from recurra.polyhedral.interval import Box, narrow, span


def check_safety(
    graph: Graph, bounds: Mapping[str, int], open: Mapping[str, int] = MappingProxyType({})
) -> Graph:
    """Return the graph if it is safe for these bounds, else raise the first mistake.

    Equations that are safe only at their demanded points are restricted to those in the result. A
    bound in `open` may turn out to be any number from 1 to its value there.
    """
    for node in graph.nodes.values():
        _quasi_affine(node)
    known = known_bounds(graph, {**bounds, **open})
    closed = {n: v for n, v in known.items() if n not in open}
    proof, demand = Proof(graph, closed, open), None
    while mistakes := _mistakes(proof):
        demand = demanded_exactly(graph, closed, open) if demand is None else demand
        proof = Proof(_narrowed(proof, mistakes, demand), closed, open)
    graph = proof.graph
    if found := same_point_cycle(proof):
        raise diagnostics.cycle(*found)
    return graph


def _mistakes(proof: Proof) -> dict[str, RecurraError]:
    """The error of each equation that is unsafe at some point of its domain."""
    out: dict[str, RecurraError] = {}
    for node in proof.graph.nodes.values():
        if any(lo > hi for lo, hi in proof.box(node.domain).values()):
            continue
        try:
            _covers(proof, node)
            for k in range(len(node.args)):
                _read(proof, node, k)
            _sizes(proof, node)
            _numbers(proof, node)
        except Unprovable as e:
            raise product(f"a size of {node.name}", e.expr, node.loc) from None
        except RecurraError as e:
            out[node.name] = e
    return out


def _narrowed(
    proof: Proof, mistakes: Mapping[str, RecurraError], demand: Mapping[str, Expr]
) -> Graph:
    """Restrict equations that have mistakes to their demanded points.

    `demand` holds the conditions of equations that are not demanded everywhere. An equation that is
    demanded nowhere, though others read it, becomes 0. Raises the mistake if the equation is an
    effect, an input or read by nothing, or if the restriction does not help.
    """
    graph, sizes = proof.graph, proof.bounds
    live = graph.live().nodes
    nodes: list[Node] = []
    for name, error in mistakes.items():
        n = graph[name]
        if not n.op.pure or isinstance(n.op, Input):
            raise error
        if demand.get(name) == FALSE and name in live and isinstance(n.type, Type):
            zero = Const(value=0, dtype=n.type.dtype, shape=n.type.shape)
            nodes.append(replace(n, op=zero, args=()))
            continue
        where = demand.get(name, TRUE)
        domain = bounding_domain(n.domain, where, {**sizes, **proof.open})
        if where != FALSE and domain != n.domain and _within_always(proof, n, where, domain):
            nodes.append(replace(n, domain=domain))
        elif guarded := _guarded(proof, n, where):
            nodes += guarded
        else:
            raise error
    return graph.update(nodes)


def _guarded(proof: Proof, node: Node, where: Expr) -> list[Node]:
    """Guard the unsafe reads of an equation by the condition that it is demanded; else read 0.

    y[n<N, k<K] = add(x[n-k], 1)  where k <= n   →   g = merge(x[n-k], 0, when=(k <= n, ~(k <= n)))
                                                     y = add(g, 1)
    Return no equations if the reads are unsafe even so.
    """
    if where in (TRUE, FALSE):
        return []
    if isinstance(node.op, Merge):
        return _guarded_branches(proof, node, node.op, where)
    args, out = list(node.args), list[Node]()
    for k, ref in enumerate(node.args):
        try:
            _read(proof, node, k)
            continue
        except RecurraError:
            pass
        type_ = proof.graph.read_type(ref)
        if isinstance(type_, Tuple):
            return []
        zeros = _zeros(proof, node, f"{node.name}_none_{k}", type_)
        op = Merge(when=(where, negate(where)))
        reads = (ref, zeros.ref)
        name = proof.graph.fresh(f"{node.name}_read_{k}")
        guard = Node(name, op, reads, node.domain, type_, node.loc)
        try:
            _read(proof, guard, 0)
        except RecurraError:
            return []
        args[k] = Ref(name, node.domain.identity)
        out += [zeros, guard]
    return [*out, replace(node, args=tuple(args))] if out else []


def _guarded_branches(proof: Proof, node: Node, op: Merge, where: Expr) -> list[Node]:
    """Restrict the branches of a choice to the points at which it is demanded; elsewhere it is 0.

    y[t<T] = merge(a, b, when=(p, q))   where c   →   y = merge(a, b, 0, when=(p & c, q & c, ~c))
    """
    if not isinstance(node.type, Type):
        return []
    zeros = _zeros(proof, node, f"{node.name}_none", node.type)
    when = (*(all_of(c, where) for c in op.when), negate(where))
    args = (*node.args, zeros.ref)
    guarded = replace(node, op=Merge(when=when), args=args, locs=())
    try:
        _covers(proof, guarded)
        for k in range(len(node.args)):
            _read(proof, guarded, k)
    except RecurraError:
        return []
    return [zeros, guarded]


def _zeros(proof: Proof, node: Node, name: str, type_: Type) -> Node:
    """A new equation of zeros of a type, at the points of another equation."""
    zero = Const(value=0, dtype=type_.dtype, shape=type_.shape)
    return Node(proof.graph.fresh(name), zero, (), node.domain.of(zero.mentions()), type_)


def _within_always(proof: Proof, node: Node, where: Expr, part: Domain) -> bool:
    """Do all points at which a condition holds lie in a part of the domain, for any open bounds?"""
    out = (any_of(compare("<", r.sym, r.lo), compare(">=", r.sym, r.hi)) for r in part)
    wrong = all_of(proof.edges(node.domain), proof.at(where), proof.at(any_of(*out)))
    return proof.first(proof.box(node.domain), wrong) is None


def _quasi_affine(node: Node) -> None:
    """Raise DomainError if an index or a condition of an equation is not quasi-affine."""
    for k, ref in enumerate(node.args):
        loc = diagnostics.line_of(node, k)
        for e in ref.index:
            if type(e) is Sym or type(e) is int:
                continue
            quasi_affine(f"an index of {ref}", e, loc)
        when = merge_condition(node, k)
        if when is not None:
            quasi_affine(f"a condition of {node.name}", when, loc)


def _covers(proof: Proof, node: Node) -> None:
    if not isinstance(node.op, Merge) or TRUE in node.op.when:
        return
    when = tuple(proof.at(c) for c in node.op.when)
    box = proof.box(node.domain)
    inside = proof.edges(node.domain)
    if hole := proof.first(box, all_of(inside, negate(any_of(*when)))):
        raise diagnostics.uncovered(node, node.op.when, hole)
    for a, b in combinations(when, 2):
        twice = proof.first(box, all_of(inside, a, b))
        assert twice is None, f"two branches of {node.name} hold at {twice.point}: {a} and {b}"


def _read(proof: Proof, node: Node, index: int) -> None:
    """Raise if the read of an operand leaves its source at any point."""
    ref, box = node.args[index], proof.box(node.domain)
    domain = proof.graph[ref.name].domain
    source = proof.core(domain)
    if all(
        _identity(e, q, box, ends) or (e == r.sym and r in node.domain.ranges)
        for e, (q, ends), r in zip(ref.index, source.items(), domain, strict=True)
    ):
        return
    when = merge_condition(node, index)
    where = all_of(proof.edges(node.domain), TRUE if when is None else proof.at(when))
    small = narrow({**box, **proof.unknown}, where)
    if small is None:
        return
    for j, e in enumerate(ref.index):
        if isinstance(e, Slice):
            _slice_size(proof, node, index, j, e, where)
    ends_of = zip(ref.index, source.values(), strict=True)
    if not all(_within(proof, e, small, ends) for e, ends in ends_of):
        _prove_inside(proof, node, index, ref, where)


def _numbers(proof: Proof, node: Node) -> None:
    """Raise if an index expression overflows its type where its value is read or is an output."""
    box = proof.box(node.domain)
    if node.name in proof.graph.outputs and isinstance(node.op, Value):
        _fits(proof, node, -1, node.op, node.op.expr, box, proof.edges(node.domain))
    for k, ref in enumerate(node.args):
        source = proof.graph[ref.name]
        if not isinstance(source.op, Value):
            continue
        when = merge_condition(node, k)
        where = all_of(proof.edges(node.domain), TRUE if when is None else proof.at(when))
        by, wide = dict[str, Any](), dict(box)
        for r, e in zip(source.domain, ref.index, strict=True):
            by[r.dim] = Sym(f"{r.dim}'") if isinstance(e, Slice) else e
            if isinstance(e, Slice):
                lo, hi = (span(proof.at(x), {**box, **proof.unknown}) for x in (e.lo, e.hi))
                wide[f"{r.dim}'"] = (lo[0], hi[1] - 1)
        _fits(proof, node, k, source.op, substitute(source.op.expr, by), wide, where)


def _fits(
    proof: Proof, node: Node, index: int, op: Value, expr: Any, box: Box, where: Expr
) -> None:
    """Raise if its type cannot hold the value, or i32 any part that it is computed from."""
    whole = proof.at(expr)
    sizes = ((k, span(proof.at(n), {**box, **proof.unknown})[1]) for k, n, _ in op.bind)
    box = {**box, **{k: (0, max(n - 1, 0)) for k, n in sizes}}
    for part in walk(whole):
        wide = _is_wide(op.dtype) or part != whole
        if isinstance(part, (Cmp, Logic)) or (wide and _is_known(proof, part)):
            continue
        ends = np.iinfo("int32" if wide else NUMPY_NAME[op.dtype])
        lo, hi = span(part, {**box, **proof.unknown})
        if ends.min <= lo and hi <= ends.max:
            continue
        if found := proof.first_outside(part, part, int(ends.min), int(ends.max), box, where):
            number, expr = evaluate(part, found.point), op.expr if part == whole else part
            raise diagnostics.too_narrow(node, index, expr, op.dtype, number, found)


def _is_wide(dtype: str) -> bool:
    """Can the type hold any index, which is computed in i32?"""
    return dtype in ("bool", "i64") or is_float(dtype)


def _is_known(proof: Proof, expr: Expr | int) -> bool:
    """Is it a constant, or does it depend on an open bound, which only the data set?"""
    return isinstance(expr, int) or bool(symbols(expr) & proof.unknown.keys())


def _identity(expr: Any, dim: str, box: Box, ends: tuple[int, int]) -> bool:
    """Is it the dim itself, with a range no larger than the source's?"""
    if type(expr) is not Sym or expr.name != dim:
        return False
    lo, hi = box[dim]
    return ends[0] <= lo and hi <= ends[1]


def _within(proof: Proof, expr: Any, box: Box, ends: tuple[int, int]) -> bool:
    """Does the index stay inside, by intervals alone?"""
    first, last = (expr.lo, expr.hi - 1) if isinstance(expr, Slice) else (expr, expr)
    lo, hi = span(proof.at(first), box)[0], span(proof.at(last), box)[1]
    return ends[0] <= lo and hi <= ends[1]


def _prove_inside(proof: Proof, node: Node, index: int, ref: Ref, where: Expr) -> None:
    """Prove exactly that every point read is in the source; raise DomainError if not."""
    domain = proof.graph[ref.name].domain
    box: dict[str, tuple[int, int]] = dict(proof.box(node.domain))
    small = narrow({**box, **proof.unknown}, where)
    assert small is not None
    point, ties, sliced = dependence.point_read(ref.index, domain)
    for j in sliced:
        s = ref.index[j]
        assert isinstance(s, Slice)
        lo, hi = span(proof.at(s.lo), small)[0], span(proof.at(s.hi), small)[1]
        box[f"{domain.ranges[j].dim}'"] = (lo, hi - 1)
    wrong = all_of(where, proof.at(ties), proof.at(dependence.outside_condition(point, domain)))
    if found := proof.first(box, wrong):
        point_read = tuple(map(found.value, point))
        at_reader = replace(found, point={d: found.point[d] for d in node.domain.dims})
        raise diagnostics.read_outside(node, index, domain, point_read, at_reader)


def _slice_size(
    proof: Proof, node: Node, index: int, axis: int, slice_: Slice, where: Expr
) -> None:
    """Raise if a range ends before it begins, or has more points than its padded length."""
    box, room = proof.box(node.domain), slice_.size - slice_.count  # pyright: ignore[reportOperatorIssue]
    if found := proof.first_below(slice_.count, 0, box, where):
        raise diagnostics.negative_slice(node, index, axis, slice_, found)
    if found := proof.first_below(room, 0, box, where):
        raise diagnostics.overfull(node, index, slice_, found)


def _sizes(proof: Proof, node: Node) -> None:
    """Raise if an axis has a negative size, an op leaves its axis, or an extremum is empty."""
    box, inside = proof.box(node.domain), proof.edges(node.domain)
    for type_ in node.type.items if isinstance(node.type, Tuple) else (node.type,):
        for size in type_.shape:
            if found := proof.first_below(size, 0, box, inside):
                raise diagnostics.negative_size(node, type_, size, found)
    for ref, size in _must_have_elements(proof.graph, node):
        if found := proof.first_below(size, 1, box, inside):
            raise diagnostics.empty(node, ref, proof.graph[ref.name].domain, size, found)
    for first, last, length, error in _positions(proof.graph, node):
        if found := proof.first_outside(first, last, 0, length - 1, box, inside):
            raise error(found)
    if isinstance(node.op, Reshape):
        _reshape(proof, node, box)


def _must_have_elements(graph: Graph, node: Node) -> Iterator[tuple[Ref, Expr | int]]:
    """The operands and sizes of the axes that the op reduces without an initial value."""
    match node.op:
        case Extremum(axes=axes) | ArgMax(axes=axes):
            pass
        case Fold(monoid_of="maximum" | "minimum", rank=rank):
            axes = tuple(range(rank))
        case Softmax(axis=axis) | LogSoftmax(axis=axis):
            axes = (axis,)
        case _:
            return
    shape = graph.read_type(node.args[0]).shape
    yield from ((node.args[0], shape[a]) for a in axes)


def _positions(
    graph: Graph, node: Node
) -> Iterator[tuple[Any, Any, Any, Callable[[CounterExample], RecurraError]]]:
    """The first and last positions that an op reads of an axis, its length, and the error."""

    def length(axis: int) -> Any:
        return graph.read_type(node.args[0]).shape[axis]

    match node.op:
        case Cut(axis=axis, start=start, size=size):
            n, end = length(axis), start + size
            yield start, end - 1, n, partial(diagnostics.cut, node, start, end, n)
        case TopK(axis=axis, size=size):
            n = length(axis)
            yield 0, size - 1, n, partial(diagnostics.too_few, node, size, n)
        case Pick(zero=False, axis=axis, at_=at):
            yield at, at, length(axis), partial(diagnostics.pick, node, at, length(axis))
        case Take() as op:
            n = length(op.parts()[0].index(op.axis))
            for e in _known_numbers(graph[node.args[1].name], node.args[1]):
                yield e, e, n, partial(diagnostics.pick, node, e, n)
        case Permutation(at_=at, size=n):
            yield at, at, n, partial(diagnostics.shuffled, node, at, n)
        case _:
            pass


def _known_numbers(source: Node, read: Ref) -> tuple[Any, ...]:
    """The values of an equation that are known: an expression, a number, or an array's extremes."""
    match source.op:
        case Value(expr=e, bind=()) if not any(isinstance(s, Slice) for s in read.index):
            return (substitute(e, dict(zip(source.domain.dims, read.index, strict=True))),)  # pyright: ignore[reportArgumentType]
        case Const(value=number):
            return (int(number),)
        case Data() as op:
            numbers = op.key.get()
            return (int(numbers.min()), int(numbers.max())) if numbers.size else ()
        case _:
            return ()


def _reshape(proof: Proof, node: Node, box: Box) -> None:
    before = proof.graph.read_type(node.args[0])
    assert isinstance(before, Type)
    assert isinstance(node.type, Type)
    counts = [reduce(mul, map(proof.at, t.shape), 1) for t in (before, node.type)]
    differ = compare("!=", *counts)
    if found := proof.first(box, all_of(proof.edges(node.domain), differ)):
        raise diagnostics.reshape(node, before, node.type, found)
