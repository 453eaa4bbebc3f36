"""beside: products of one operand, side by side, are one product with their weights joined.

    h = einsum(o, W, 'Z,Za->a')               U[i] = concat(W, V, axis=1)
    k = einsum(o, V, 'Z,Za->a')          →    y = einsum(o, U[i], 'Z,Za->a')
                                              h = cut(y, 0, 64);  k = cut(y, 64, 64)

Such are the first layers of an actor and a critic. Weights vary with fewer dims than the products,
so that they are joined once, ahead of the loop, or are small beside what is made of them. On a CPU
nothing is gained (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from recurra.ir.expr import Expr, evaluate
from recurra.ir.graph import Graph, Node, Ref
from recurra.ir.types import Type
from recurra.ops.contraction import Einsum
from recurra.ops.movement import Concat, Cut
from recurra.rewrite.fuel import fuel

Phases = Mapping[str, tuple[object, ...]]  # of equations in loops: which loops, how late
Places = Mapping[str, tuple[int, ...]]  # of equations, in the order of the schedule
SMALL = 4  # times a weight goes into what is made of it, at least


@dataclass(frozen=True)
class Beside:
    """Products that read `shared`; `axis` of the weights, and `out` of the results, are joined."""

    products: tuple[str, ...]
    shared: Ref
    axis: int
    out: int

    def __str__(self) -> str:
        return f"{', '.join(self.products)}: one product of {self.shared}"


def side_by_side(
    graph: Graph, sizes: Mapping[str, int], phases: Phases, places: Places
) -> tuple[Graph, list[Beside]]:
    """The graph with products joined that run in one loop, and which they are."""
    made: list[Beside] = []
    for found in groups(graph, sizes, phases, places):
        if fuel().burn("products side by side → one", found.products[0]):
            graph = joined(graph, found)
            made.append(found)
    return graph, made


def groups(graph: Graph, sizes: Mapping[str, int], phases: Phases, places: Places) -> list[Beside]:
    """Products of one operand in one phase, all of whose weights are there before the first."""
    by: dict[tuple[object, ...], list[Node]] = {}
    for n in graph.nodes.values():
        for k in range(2):
            axes = _free(n, k)
            if axes is not None and n.name in phases and _pays(graph, sizes, n, 1 - k):
                w = n.args[1 - k]
                rest = [s for j, s in enumerate(_shape(graph, w)) if j != axes[0]]
                key = (n.args[k], axes, n.op, n.domain, w.index, graph[w.name].domain, *rest)
                by.setdefault((*key, phases[n.name], n.type.dtype), []).append(n)
    out: list[Beside] = []
    for (shared, axes, *_), nodes in by.items():
        names = tuple(n.name for n in nodes)
        weights = [a.name for n in nodes for a in n.args if a != shared]
        there = max(map(places.__getitem__, weights)) < min(map(places.__getitem__, names))
        if len(nodes) > 1 and there and not any(set(names) & {*x.products} for x in out):
            assert isinstance(shared, Ref)
            assert isinstance(axes, tuple)
            out.append(Beside(names, shared, *axes))
    return out


def _free(n: Node, k: int) -> tuple[int, int] | None:
    """The axis that only the other operand of a product has, in that operand and in the result."""
    if not isinstance(n.op, Einsum) or len(n.args) != 2:
        return None
    ins, out = n.op.parts()
    free = [c for c in ins[1 - k] if c in out and c not in ins[k]]
    return (ins[1 - k].index(free[0]), out.index(free[0])) if len(free) == 1 else None


def _pays(graph: Graph, sizes: Mapping[str, int], n: Node, k: int) -> bool:
    """Is an operand joined once for many products, or small beside what is made of it?"""
    a = n.args[k]
    if a.slices or not graph.is_identity(a) or not isinstance(n.type, Type):
        return False
    weight = prod(evaluate(s, sizes) for s in _shape(graph, a))
    return len(graph[a.name].domain) < len(n.domain) or SMALL * weight <= prod(n.type.sizes(sizes))


def _shape(graph: Graph, a: Ref) -> tuple[Expr | int, ...]:
    t = graph.read_type(a)
    assert isinstance(t, Type)
    return t.shape


def joined(graph: Graph, b: Beside) -> Graph:
    """The graph with these products as one."""
    nodes = [graph[p] for p in b.products]
    (k,) = {n.args.index(b.shared) for n in nodes}
    weights = [n.args[1 - k] for n in nodes]
    first, op = graph[weights[0].name], Concat(axis=b.axis)
    types = [t for w in weights if isinstance(t := graph[w.name].type, Type)]
    u = graph.fresh(f"{weights[0].name}_beside")
    all_ = Node(u, op, tuple(weights), first.domain, op.infer(*types), nodes[0].loc)
    args = [b.shared, Ref(u, weights[0].index)]
    args = tuple(args if k == 0 else args[::-1])
    given = [graph.read_type(b.shared), all_.type]
    y = graph.fresh(f"{nodes[0].name}_beside", [u])
    whole = replace(
        nodes[0], name=y, args=args, type=nodes[0].op.infer(*(given if k == 0 else given[::-1]))
    )
    new, start = [all_, whole], 0
    for n, t in zip(nodes, types, strict=True):
        size = t.shape[b.axis]
        cut = Cut(axis=b.out, start=start, size=size)
        new.append(replace(n, op=cut, args=(Ref(y, n.domain.identity),)))
        start = start + size
    return graph.update(new)
