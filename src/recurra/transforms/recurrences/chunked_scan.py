"""Split a running sum over points that run in chunks: a state between chunks, and products within.

    s[t] = einsum(k, v) + s[t-1]
    y[t] = einsum(s, q, labels='de,d->e')
 →  s_begin[t] = merge(0, s[t//8*8-1], when=(t < 8, t >= 8))
    y[t] = einsum(s_begin, q, ..) + einsum(einsum(q, k[t//8*8:t+1]), v[t//8*8:t+1])

Only the s at the ends of chunks is read then, and `chunk_independent` adds all points of a chunk at
once, as in linear attention (Hua et al., 2022).
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
from recurra.transforms.recurrences.scans import Running, running_sums
from recurra.transforms.rewriter.rewriting import Rewriting


def split_sums(
    graph: Graph, dim: str, size: int, cut: int, sizes: Mapping[str, int]
) -> tuple[Graph, list[Running]] | None:
    """Return the graph in which running sums are read at the ends of chunks of `size` points only.

    Points from `cut` on count 0. None if a sum is read in another way.
    """
    g, out = Rewriting.of(graph, sizes), list[Running]()
    for s in running_sums(graph, dim):
        s = replace(s, begin=_begin(g, s, dim, size))
        for reader, k in graph.readers[s.name]:
            if dim not in reader.domain or reader.name == s.before:
                continue
            if not _split_product(g, s, reader, k, dim, size):
                return None
        out.append(_masked_from(g, s, dim, cut))
    return g.graph.live(), out


def _begin(graph: Rewriting, running: Running, dim: str, size: int) -> str:
    """Add the running sum at the beginning of a point's chunk, and return its name."""
    n, first = graph[running.name], div(Sym(dim), size) * size
    args = (running.zero, Ref(running.name, n.domain.point(dim, first - 1)))
    op = Merge(when=(compare("<", Sym(dim), size), compare(">=", Sym(dim), size)))
    name = graph.fresh(f"{running.name}_begin")
    graph.put(Node(name, op, args, n.domain, n.type, n.loc))
    return name


def _split_product(
    graph: Rewriting, running: Running, node: Node, index: int, dim: str, size: int
) -> bool:
    """Split a product with a running sum in two, if it is one; tell whether it was."""
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
    args = node.with_operand(index, graph.read(running.begin)).args
    before = graph.emit(node.op, args, node.domain, f"{node.name}_before")
    graph.put(replace(node, op=Add(), args=(before, _within(graph, node, rest, parts, N, out))))
    return True


def factors(graph: Rewriting, labels: str, point: Ref) -> list[Factor]:
    """Return the factors that a point is the product of."""
    inner = graph.producer(point, Einsum)
    if inner is None or not isinstance(inner.op, Einsum):
        return [(labels, point)]
    ins, have = inner.op.parts()
    if set("".join(ins)) - set(have):
        return [(labels, point)]
    to = dict(zip(have, labels, strict=True))
    return [("".join(to[x] for x in s), a) for s, a in zip(ins, inner.args, strict=True)]


def _own_points(graph: Rewriting, ref: Ref, dim: str, size: int) -> Ref | None:
    """The read of a factor at the points of the chunk, up to this one."""
    if dim not in graph[ref.name].domain or ref != graph.read(ref.name):
        return None
    lo = div(Sym(dim), size) * size
    own = Slice(lo, Sym(dim) + 1, loose=True)
    return Ref(ref.name, tuple(own if e == Sym(dim) else e for e in ref.index))


def _within(
    graph: Rewriting, node: Node, rest: list[Factor], parts: list[Factor], N: str, out: str
) -> Ref:
    """Σ over N of a product: first the factor that is contracted with the rest, then the others."""

    def emit(terms: list[Factor], labels: str, suffix: str) -> Ref:
        args = [a for _, a in terms]
        return graph.emit(product(terms, labels), args, node.domain, f"{node.name}_{suffix}")

    contracted = {c for labels, _ in rest for c in labels} - set(out)
    first, *others = sorted(parts, key=lambda f: not contracted & set(f[0]))
    inner = [*rest, first]
    if not others:
        return emit(inner, out, "own")
    used = set(out).union(*(labels for labels, _ in others)) - {N}
    kept = "".join(dict.fromkeys(c for labels, _ in inner for c in labels if c in used)) + N
    return emit([(kept, emit(inner, kept, "weights")), *others], out, "own")


def product(terms: Sequence[Factor], out: str) -> Einsum:
    return Einsum(labels=f"{','.join(labels for labels, _ in terms)}->{out}")


def _masked_from(graph: Rewriting, running: Running, dim: str, cut: int) -> Running:
    """The running sum with one factor of its points 0 from `cut` on."""
    n, before = graph[running.point.name], compare("<", Sym(dim), cut)
    if isl.always(before, n.domain):
        return running
    graph.loc = n.loc
    axes = LETTERS[: graph.type(running.point).rank]
    (labels, a), *others = factors(graph, axes, running.point)
    inside = graph.emit(Value(expr=before, dtype="bool"), (), n.domain, "given")
    zero = graph.emit(Const(value=0.0, dtype=graph.type(a).dtype), (), n.domain, "none")
    where = Where(labels=join_labels(("", labels, ""), labels))
    point = graph.emit(where, (inside, a, zero), n.domain, f"{a.name}_given")
    if others:
        terms = [(labels, point), *others]
        args = [x for _, x in terms]
        point = graph.emit(product(terms, axes), args, n.domain, f"{n.name}_given")
    graph.put(replace(graph[running.name], args=(point, graph.read(running.before))))
    return replace(running, point=point)
