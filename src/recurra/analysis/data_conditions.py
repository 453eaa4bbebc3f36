"""Conditions on data: equations of which nobody reads a value unless a truth value holds.

    y = cond(p, f, g)        f is decided by p, g by ~p, and so is what only they read
    z = f[t-1]               a reader at another time: f is then read wherever p is

What one truth value for each point decides may be left out where it does not hold: `cond` discards
it. A host call so decided is never made there, as the program says; all else is left out where that
saves more than it costs. Past dims of its own (a batch, in `p[b, t]`), a condition is a choice
element by element.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial, reduce
from math import prod

from recurra.cost.model import compute_ns
from recurra.cost.thresholds import GUARD_NS, MAX_TAKERS
from recurra.ir.expr import TRUE, Expr, Sym
from recurra.ir.graph import Graph, Node, Ref, Slice, fresh_name
from recurra.ir.op import Op
from recurra.ir.statement import DataCondition
from recurra.ir.types import Domain, Type, is_shift
from recurra.ops import elementwise as el
from recurra.ops.control import Call, Item, Merge
from recurra.ops.source import Value
from recurra.polyhedral.extent import longest

Decided = frozenset[DataCondition]
NOTHING: Decided = frozenset()


def decided(graph: Graph, calls: bool = False) -> Mapping[str, Decided]:
    """Return what decides each equation, of those that anything decides.

    Each condition is there at every point of the equation itself. Calls of the host are made where
    they say themselves, and have their operands there. With `calls` nobody has said that yet: they
    are decided by what decides their results, and may be left out.
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
            held = found[reader.name] if calls else _where_called(reader, k, found[reader.name])
            mine = _of_read(graph, reader, k, held)
            before = found.get(a.name)
            found[a.name] = mine if before is None else before & mine
            if found[a.name] != before:
                todo.append(a.name)
    return {n: found[n] for n in graph.nodes if found.get(n)}


def _is_choice(node: Node) -> bool:
    """Does one truth value at each point choose between the operands?"""
    return isinstance(node.op, el.Cond) and node.op.labels[:1] in ("", ",")


def _where_called(reader: Node, k: int, held: Decided) -> Decided:
    """The conditions of an operand of a call: those that ask for the call; else `held`."""
    if not isinstance(reader.op, Call):
        return held
    seen = [x for x in range(len(reader.args)) if x not in reader.op.unseen]
    if reader.op.if_ is None or k not in seen or (reader.op.has_state and k == seen[-1]):
        return NOTHING
    return frozenset([DataCondition(reader.args[reader.op.if_], True)])


def _of_read(graph: Graph, reader: Node, k: int, held: Decided) -> Decided:
    """The conditions of an operand, from those of its reader and the reader's own choice."""
    ref = reader.args[k]
    if _is_choice(reader) and k > 0:
        held |= {DataCondition(reader.args[0], k == 1)}
    if not held:
        return NOTHING
    domain, source = reader.domain, graph[ref.name].domain
    same = {
        r.dim: r for e, r in zip(ref.index, source, strict=True) if e == r.sym and r.dim in domain
    }

    def is_known(condition: DataCondition) -> bool:
        """Is the condition there at every point of the operand, also where no reader is?"""
        whole = zip(condition.ref.index, graph[condition.ref.name].domain, strict=True)
        own = {e.name: (r.lo, r.hi) for e, r in whole if isinstance(e, Sym)}
        return all(
            d in same and (domain[d] == same[d] or own.get(d) == (same[d].lo, same[d].hi))
            for d in condition.dims
        )

    return frozenset(c for c in held if is_known(c))


@dataclass(frozen=True)
class Taken:
    """The points at which a value is taken: by a condition on dims, and others on data."""

    where: Expr = TRUE
    by: Decided = NOTHING


def takers(
    graph: Graph, name: str, found: Mapping[str, Decided], known: dict[str, frozenset[Taken]]
) -> frozenset[Taken]:
    """Return where readers take a value: choices say it, others take it where they are taken.

    `found` is what decides each equation; what is found is kept in `known`.
    """
    if name not in known:
        taken = {Taken()} if name in graph.outputs else set[Taken]()
        for reader, k in graph.readers[name]:
            own = reader.args[k].index == graph[name].domain.identity == reader.domain.identity
            if isinstance(reader.op, Merge):
                taken.add(Taken(reader.op.when[k] if own else TRUE))
            elif (by := _of_read(graph, reader, k, found.get(reader.name, NOTHING))) or not own:
                taken.add(Taken(by=by))
            else:  # nothing is read at its own point by itself, if not through a choice
                taken |= takers(graph, reader.name, found, known)
        many = Taken() in taken or len(taken) > MAX_TAKERS
        known[name] = frozenset([Taken()] if many else taken)
    return known[name]


def is_decided(graph: Graph, name: str, taken: Collection[Taken]) -> bool:
    """Tell whether data decide where an equation is taken, and wait for none of its values."""
    data = {c.ref.name for x in taken for c in x.by}
    waits = (all(_waits(graph, other, name, sign) for sign in (1, -1)) for other in data)
    return bool(data) and Taken() not in taken and not any(waits)


def _waits(graph: Graph, name: str, other: str, sign: int) -> bool:
    """Does an equation depend on another at its own point, or at one that lies ahead?"""
    seen, todo = {name}, [name]
    while todo:
        for a in graph[todo.pop()].args:
            places = zip(graph[a.name].domain, a.index, strict=True)
            shifts = (None if isinstance(e, Slice) else is_shift(e, r.dim) for r, e in places)
            if a.name not in seen and not any(s is not None and s * sign < 0 for s in shifts):
                seen.add(a.name)
                todo.append(a.name)
    return other in seen


def decision(node: Node, taken: Iterable[Taken], nodes: MutableMapping[str, Node]) -> Ref:
    """Return the truth value that somebody takes an equation, of equations added to `nodes`."""

    def added(op: Op, domain: Domain, *args: Ref) -> Ref:
        name = fresh_name("decides", nodes)
        nodes[name] = Node(name, op, args, domain, Type("bool"), node.loc)
        return Ref(name, domain.identity)

    def holds(x: Taken) -> Ref:
        value = Value(expr=x.where, dtype="bool")
        dims = [] if x.where == TRUE else [added(value, node.domain.of(value.mentions()))]
        by = sorted(x.by, key=str)
        data = (c.ref if c.holds else added(el.Not(), node.domain, c.ref) for c in by)
        return reduce(partial(added, el.And(), node.domain), [*dims, *data])

    return reduce(partial(added, el.Or(), node.domain), map(holds, sorted(taken, key=str)))


def worth_asking(
    graph: Graph, sizes: Mapping[str, int], least: float | None = None
) -> Mapping[str, Decided]:
    """Return what decides equations, of conditions that leave out more than `least` ns a point.

    None: as much as a guard costs. Counted is all that runs under the same conditions, half of
    which are taken to hold.
    """
    found = {n: c for n, c in decided(graph).items() if not _is_source(graph[n])}
    saved: dict[Decided, float] = {}
    for name, conditions in found.items():
        n, dims = graph[name], set[str]().union(*(c.dims for c in conditions))
        inside = prod(longest(n.domain, d, sizes) for d in n.domain.dims if d not in dims)
        saved[conditions] = saved.get(conditions, 0.0) + compute_ns(graph, n, sizes) * inside / 2
    return {n: c for n, c in found.items() if saved[c] > (GUARD_NS if least is None else least)}


def _is_source(node: Node) -> bool:
    """Is it a call, which asks for itself, or made of nothing?"""
    return isinstance(node.op, (Call, Item)) or not node.args
