"""Conditions on data: the equations whose values are read only if a computed Boolean holds.

    y = cond(p, f, g)        f is decided by p, g by ~p, and so are equations that only they read
    z = f[t-1]               a reader at another time: f is then read wherever p is

An equation decided by one Boolean per point may be skipped where it does not hold, since `cond`
discards its value. A host call that is decided is never made there, because programs rely on it;
everything else is skipped if that saves more than it costs. If the Boolean has axes (a batch), it
selects element by element, and nothing is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial, reduce
from math import prod

from recurra.cost.model import compute_ns
from recurra.cost.thresholds import GUARD_NS, MAX_TAKERS
from recurra.ir.expr import TRUE, Expr, Sym
from recurra.ir.graph import Graph, Node, Ref, fresh_name
from recurra.ir.op import Op
from recurra.ir.order import postorder
from recurra.ir.statement import DataCondition
from recurra.ir.types import Domain, Type, is_shift
from recurra.ops import elementwise as el
from recurra.ops.control import Call, Item, Merge
from recurra.ops.source import Value
from recurra.polyhedral.extent import longest

Decided = frozenset[DataCondition]
NOTHING: Decided = frozenset()


def conditions_by_equation(graph: Graph, calls: bool = False) -> Mapping[str, Decided]:
    """Return the conditions that decide each equation, for equations that have any.

    Each condition has a value at every point of the equation itself. Host calls state their own
    conditions, and need their operands there. With `calls`, they have no conditions yet: the
    conditions on their results decide them, and they may be skipped.
    """
    if not any(_is_choice(n) for n in graph.nodes.values()):
        return {}
    roots = [
        n
        for n, x in graph.nodes.items()
        if n in graph.outputs or not graph.readers[n] or not (x.op.pure or calls)
    ]
    todo, found = deque(roots), dict.fromkeys(roots, NOTHING)
    while todo:
        reader = graph[todo.popleft()]
        for k, a in enumerate(reader.args):
            of_reader = found[reader.name]
            of_reader = of_reader if calls else _at_operand(reader, k, of_reader)
            of_read = _of_read(graph, reader, k, of_reader)
            before = found.get(a.name)
            found[a.name] = of_read if before is None else before & of_read
            if found[a.name] != before:
                todo.append(a.name)
    return {n: found[n] for n in graph.nodes if found.get(n)}


def _is_choice(node: Node) -> bool:
    """Does one Boolean at each point choose between the operands?"""
    return isinstance(node.op, el.Cond) and node.op.labels[:1] in ("", ",")


def _at_operand(reader: Node, k: int, decided_by: Decided) -> Decided:
    """The conditions on operand `k`: those of the reader, or of a host call the one it states."""
    if not isinstance(reader.op, Call):
        return decided_by
    passed = [x for x in range(len(reader.args)) if x not in reader.op.unseen]
    if reader.op.if_ is None or k not in passed or (reader.op.has_state and k == passed[-1]):
        return NOTHING
    return frozenset([DataCondition(reader.args[reader.op.if_], True)])


def _of_read(graph: Graph, reader: Node, k: int, decided_by: Decided) -> Decided:
    """The conditions on operand `k`: those of its reader, and of the choice the reader makes."""
    ref = reader.args[k]
    if _is_choice(reader) and k > 0:
        decided_by |= {DataCondition(reader.args[0], k == 1)}
    if not decided_by:
        return NOTHING
    domain, source = reader.domain, graph[ref.name].domain
    same = {
        r.dim: r for e, r in zip(ref.index, source, strict=True) if e == r.sym and r.dim in domain
    }

    def is_known(condition: DataCondition) -> bool:
        """Does the condition have a value at every point of the operand, even without a reader?"""
        whole = zip(condition.ref.index, graph[condition.ref.name].domain, strict=True)
        own = {e.name: (r.lo, r.hi) for e, r in whole if isinstance(e, Sym)}
        return all(
            d in same and (domain[d] == same[d] or own.get(d) == (same[d].lo, same[d].hi))
            for d in condition.dims
        )

    return frozenset(c for c in decided_by if is_known(c))


@dataclass(frozen=True)
class UseCondition:
    """The points at which a value is taken: a condition on dims, and conditions on data."""

    where: Expr = TRUE
    by: Decided = NOTHING


def use_conditions(
    graph: Graph, name: str, found: Mapping[str, Decided], known: dict[str, frozenset[UseCondition]]
) -> frozenset[UseCondition]:
    """Return where the readers of a value take it, traced through readers up to the choices.

    `found` is the result of `conditions_by_equation`; `known` caches the results.
    """
    if name not in known:
        taken = {UseCondition()} if name in graph.outputs else set[UseCondition]()
        for reader, k in graph.readers[name]:
            own = reader.args[k].index == graph[name].domain.identity == reader.domain.identity
            if isinstance(reader.op, Merge):
                taken.add(UseCondition(reader.op.when[k] if own else TRUE))
            elif (by := _of_read(graph, reader, k, found.get(reader.name, NOTHING))) or not own:
                taken.add(UseCondition(by=by))
            else:  # the recursion ends: no cycle stays at one point, except through a choice
                taken |= use_conditions(graph, reader.name, found, known)
        many = UseCondition() in taken or len(taken) > MAX_TAKERS
        known[name] = frozenset([UseCondition()] if many else taken)
    return known[name]


def is_decided(graph: Graph, name: str, taken: Collection[UseCondition]) -> bool:
    """Is an equation taken only under conditions on data, none of which depends on its values?"""
    data = {c.ref.name for x in taken for c in x.by}
    waits = (all(_waits(graph, other, name, sign) for sign in (1, -1)) for other in data)
    return bool(data) and UseCondition() not in taken and not any(waits)


def _waits(graph: Graph, name: str, other: str, sign: int) -> bool:
    """Does an equation depend on another at the same point, or at one ahead in direction `sign`?"""

    def sources(reader: str) -> Iterator[str]:
        for a in graph[reader].args:
            places = zip(graph[a.name].domain, a.index, strict=True)
            shifts = (is_shift(e, r.dim) for r, e in places)
            if not any(s is not None and s * sign < 0 for s in shifts):
                yield a.name

    return other in postorder([name], sources)


def decision(node: Node, taken: Iterable[UseCondition], nodes: MutableMapping[str, Node]) -> Ref:
    """Add to `nodes` the Boolean that tells where an equation is taken, and return its read."""

    def added(op: Op, domain: Domain, *args: Ref) -> Ref:
        name = fresh_name("decides", nodes)
        nodes[name] = Node(name, op, args, domain, Type("bool"), node.loc)
        return Ref(name, domain.identity)

    def holds(x: UseCondition) -> Ref:
        value = Value(expr=x.where, dtype="bool")
        dims = [] if x.where == TRUE else [added(value, node.domain.of(value.mentions()))]
        by = sorted(x.by, key=str)
        data = (c.ref if c.holds else added(el.Not(), node.domain, c.ref) for c in by)
        return reduce(partial(added, el.And(), node.domain), [*dims, *data])

    return reduce(partial(added, el.Or(), node.domain), map(holds, sorted(taken, key=str)))


def worthwhile_conditions(
    graph: Graph, sizes: Mapping[str, int], least: float | None = None
) -> Mapping[str, Decided]:
    """Return the conditions of equations that save more than `least` ns a point.

    None stands for the cost of a guard. The savings add up over all equations under the same
    conditions, which are assumed to hold half of the time.
    """
    found = {n: c for n, c in conditions_by_equation(graph).items() if not _is_source(graph[n])}
    saved: dict[Decided, float] = {}
    for name, conditions in found.items():
        n, dims = graph[name], set[str]().union(*(c.dims for c in conditions))
        inside = prod(longest(n.domain, d, sizes) for d in n.domain.dims if d not in dims)
        saved[conditions] = saved.get(conditions, 0.0) + compute_ns(graph, n, sizes) * inside / 2
    return {n: c for n, c in found.items() if saved[c] > (GUARD_NS if least is None else least)}


def _is_source(node: Node) -> bool:
    """Is it a host call, which states its own condition, or an equation without operands?"""
    return isinstance(node.op, (Call, Item)) or not node.args
