"""Sums over all points so far, of points that are taken some at a time.

    s[t] = einsum(k, v) + s[t-1]
    y[t] = einsum(s, q, labels='de,d->e')
 →  s_begin[t] = merge(0, s[t//8*8-1], when=(t < 8, t >= 8))
    y[t] = einsum(s_begin, q, ..) + einsum(einsum(q, k[t//8*8:t+1]), v[t//8*8:t+1])

So s is asked for where chunks end, and there `chunks` adds what a chunk has at once: of linear
attention, products within a chunk and a state between them (Hua et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recurra.ir.expr import Sym, compare, div
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import LETTERS, fresh_label, join_labels
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.elementwise import Add, Where
from recurra.ops.source import Const, Value
from recurra.polyhedral import isl
from recurra.transforms.recurrences.incrementalize_contraction import Factor
from recurra.transforms.recurrences.scans import Running, running
from recurra.transforms.rewriter.rewriting import Rewriting


def in_two(
    graph: Graph, dim: str, size: int, cut: int, sizes: Mapping[str, int]
) -> tuple[Graph, list[Running]] | None:
    """The graph where running sums are asked for at the ends of chunks of `size` points only.

    What is given ends at point `cut`: later ones are 0 to them. None where something else is asked.
    """
    g, out = Rewriting.of(graph, sizes), list[Running]()
    for s in running(graph, dim):
        s = replace(s, begin=_begin(g, s, dim, size))
        for reader, k in graph.readers[s.name]:
            if dim not in reader.domain or reader.name == s.before:
                continue
            if not _in_two(g, s, reader, k, dim, size):
                return None
        out.append(_ended(g, s, dim, cut))
    return Graph(g.nodes, graph.outputs, graph.dims).live(), out


def _begin(graph: Rewriting, running: Running, dim: str, size: int) -> str:
    """Add the running value at the begin of the chunk of a point, and return its name."""
    at = div(Sym(dim), size) * size
    n = graph[running.name]
    index = n.domain.point(dim, at - 1)
    when = (compare("<", Sym(dim), size), compare(">=", Sym(dim), size))
    name = graph.fresh(f"{running.name}_begin")
    graph.put(
        Node(
            name,
            Merge(when=when),
            (running.zero, Ref(running.name, index)),
            n.domain,
            n.type,
            n.loc,
        )
    )
    return name


def _in_two(
    graph: Rewriting, running: Running, node: Node, index: int, dim: str, size: int
) -> bool:
    """One product with a running sum as two."""
    if not isinstance(node.op, Einsum) or node.args[index] != graph.read(running.name):
        return False
    ins, out = node.op.parts()
    named: list[Factor] = list(zip(ins, node.args, strict=True))
    rest = [f for j, f in enumerate(named) if j != index]
    N = fresh_label("".join((*ins, out)))
    own = [
        (N + x, _own_points(graph, a, dim, size))
        for x, a in factors(graph, ins[index], running.point)
    ]
    parts = [(x, a) for x, a in own if a is not None]
    if len(parts) != len(own) or any(a.name == running.name for _, a in rest):
        return False
    graph.loc = node.loc
    args = tuple(graph.read(running.begin) if j == index else a for j, a in enumerate(node.args))
    before = graph.emit(node.op, args, node.domain, f"{node.name}_before")
    graph.put(replace(node, op=Add(), args=(before, _within(graph, node, rest, parts, N, out))))
    return True


def factors(graph: Rewriting, labels: str, point: Ref) -> list[Factor]:
    """Split a point into the factors that it is the product of."""
    inner = graph.producer(point, Einsum)
    if inner is None or not isinstance(inner.op, Einsum):
        return [(labels, point)]
    ins, have = inner.op.parts()
    if set("".join(ins)) - set(have):
        return [(labels, point)]
    to = dict(zip(have, labels, strict=True))
    return [("".join(to[x] for x in s), a) for s, a in zip(ins, inner.args, strict=True)]


def _own_points(graph: Rewriting, ref: Ref, dim: str, size: int) -> Ref | None:
    """The same at the points of the chunk, up to this one."""
    if dim not in graph[ref.name].domain or ref != graph.read(ref.name):
        return None
    lo = div(Sym(dim), size) * size
    own = Slice(lo, Sym(dim) + 1, loose=True)
    return Ref(ref.name, tuple(own if e == Sym(dim) else e for e in ref.index))


def _within(
    graph: Rewriting, node: Node, rest: list[Factor], parts: list[Factor], N: str, out: str
) -> Ref:
    """Σ over N of a product: first what is contracted with the rest, then the others."""
    asked = {c for labels, _ in rest for c in labels} - set(out)
    first, *others = sorted(parts, key=lambda f: not asked & set(f[0]))
    inner = [*rest, first]
    if not others:
        return graph.emit(
            product(inner, out), [a for _, a in inner], node.domain, f"{node.name}_own"
        )
    used = set(out).union(*(labels for labels, _ in others)) - {N}
    kept = "".join(dict.fromkeys(c for labels, _ in inner for c in labels if c in used)) + N
    w = graph.emit(product(inner, kept), [a for _, a in inner], node.domain, f"{node.name}_weights")
    outer = [(kept, w), *others]
    return graph.emit(product(outer, out), [a for _, a in outer], node.domain, f"{node.name}_own")


def product(terms: Sequence[Factor], out: str) -> Einsum:
    return Einsum(labels=f"{','.join(labels for labels, _ in terms)}->{out}")


def _ended(graph: Rewriting, running: Running, dim: str, cut: int) -> Running:
    """The sum of points that are given: of later ones one factor is 0."""
    n = graph[running.point.name]
    if isl.always(compare("<", Sym(dim), cut), n.domain):
        return running
    graph.loc = n.loc
    (labels, a), *others = factors(graph, LETTERS[: graph.type(running.point).rank], running.point)
    there = graph.emit(Value(expr=compare("<", Sym(dim), cut), dtype="bool"), (), n.domain, "given")
    none = graph.emit(Const(value=0.0, dtype=graph.type(a).dtype), (), n.domain, "none")
    where = Where(labels=join_labels(("", labels, ""), labels))
    only = graph.emit(where, (there, a, none), n.domain, f"{a.name}_given")
    if others:
        terms = [(labels, only), *others]
        op = product(terms, LETTERS[: graph.type(running.point).rank])
        only = graph.emit(op, [x for _, x in terms], n.domain, f"{n.name}_given")
    graph.put(replace(graph[running.name], args=(only, graph.read(running.before))))
    return replace(running, point=only)
