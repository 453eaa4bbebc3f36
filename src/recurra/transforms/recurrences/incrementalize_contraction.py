"""Turn products with a growing range into a state of constant size.

   w[t<T] = einsum(q, k[0:t+1], labels='d,nd->n')
   y[t<T] = einsum(w, v[0:t+1], labels='n,ne->e')
→  y = einsum(state, q, labels='de,d->e');  state = einsum(k, v, labels='d,e->de') + state[t-1]

This is linear attention as a recurrent network (Katharopoulos et al., 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod

from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Node, Ref, index_symbols
from recurra.ir.op import fresh_label
from recurra.ir.types import Domain, Type, is_float
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import Add
from recurra.transforms.recurrences.scans import Monoid, ScanDirection, grows, scan
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting

Factor = tuple[str, Ref]  # an operand with its labels


@dataclass(frozen=True)
class Split:
    """The factors that grow along a label as a dim does, at its last point, and the others."""

    way: ScanDirection
    points: tuple[Factor, ...]
    rest: tuple[Factor, ...]


@rule(Einsum)
def lift_contraction(node: Node, graph: Rewriting) -> Node | None:
    """Σ over 0:t+1 of a·b·c[t] → c · s[t], s[t] = a[t]·b[t] + s[t-1]"""
    assert isinstance(node.op, Einsum)
    if not isinstance(node.type, Type) or not is_float(node.type.dtype):
        return None
    ins, out = node.op.parts()
    factors = list(zip(ins, node.args, strict=True))
    for c in dict.fromkeys("".join(ins)):
        if c in out:
            continue
        splits = [_split(node, graph, product, c) for product in products(factors, c, graph)]
        found = [s for s in splits if s is not None and _is_profitable(s, out, graph)]
        if len(found) == len(splits):
            return total(node, [(_state(node, graph, s, out), *s.rest) for s in found], out, graph)
    return None


def total(node: Node, terms: Sequence[Sequence[Factor]], out: str, graph: Rewriting) -> Node:
    """Return the equation as a sum of products of factors."""
    ops = [Einsum(labels=f"{','.join(x for x, _ in t)}->{out}") for t in terms]
    reads = [tuple(a for _, a in t) for t in terms]
    if len(terms) == 1:
        return replace(node, op=ops[0], args=reads[0])
    *parts, last = (
        graph.emit(op, a, node.domain, "term") for op, a in zip(ops, reads, strict=True)
    )
    first = reduce(lambda x, y: graph.emit(Add(), (x, y), node.domain, "terms"), parts)
    return replace(node, op=Add(), args=(first, last))


def products(factors: list[Factor], label: str, graph: Rewriting) -> list[list[Factor]]:
    """Expand (a + b)·d to a·d + b·d, if the sum has `label`."""
    factors = _flattened(factors, label, graph)
    for k, (labels, a) in enumerate(factors):
        both = graph.producer(a, Add) if label in labels else None
        if both is None:
            continue
        ins, out = graph.labels(both)
        to = dict(zip(out, labels, strict=True))
        terms = [("".join(to[x] for x in s), b) for s, b in zip(ins, both.args, strict=True)]
        every = ([*factors[:k], term, *factors[k + 1 :]] for term in terms)
        return [product for alone in every for product in products(alone, label, graph)]
    return [factors]


def _flattened(factors: list[Factor], label: str, graph: Rewriting) -> list[Factor]:
    """The factors, with contractions that have `label` replaced by theirs."""
    out: list[Factor] = []
    used = "".join(labels for labels, _ in factors)
    for labels, a in factors:
        inner = graph.producer(a, Einsum) if label in labels else None
        if inner is None:
            out.append((labels, a))
            continue
        ins, have = graph.labels(inner)
        to = dict(zip(have, labels, strict=True))
        for x in dict.fromkeys("".join(ins)):
            if x not in to:
                to[x] = fresh_label(used)
                used += to[x]
        out += [("".join(to[x] for x in s), b) for s, b in zip(ins, inner.args, strict=True)]
    return out


def _split(node: Node, graph: Rewriting, factors: list[Factor], label: str) -> Split | None:
    """The factors by whether they have `label`; None unless those grow along it with one dim."""
    ways = set[ScanDirection]()
    points: list[Factor] = []
    for labels, a in factors:
        if label not in labels:
            continue
        found = grows(node, a, graph, 0) if labels[0] == label and len(a.slices) == 1 else None
        if found is None:
            return None
        ways.add(found[0])
        points.append((labels[1:], found[1]))
    if len(ways) != 1:
        return None
    return Split(ways.pop(), tuple(points), tuple(f for f in factors if label not in f[0]))


def _state_labels(split: Split, out: str) -> str:
    """The labels of the state: those that growing factors share with the rest and the result."""
    shared = set(out).union(*(labels for labels, _ in split.rest))
    return "".join(dict.fromkeys(x for s, _ in split.points for x in s if x in shared))


def _is_profitable(split: Split, out: str, graph: Rewriting) -> bool:
    """Tell whether the state has a known size, and is smaller than the rows that it replaces."""
    sizes: dict[str, int] = {}
    for labels, a in split.points:
        if any(symbols(x) - set(graph.sizes) for x in graph.type(a).shape):
            return False
        sizes.update(zip(labels, graph.type(a).sizes(graph.sizes), strict=True))
    rows = sum(prod(sizes[x] for x in labels) for labels, _ in split.points)
    steps = evaluate(split.way.range.hi, graph.sizes) - evaluate(split.way.range.lo, graph.sizes)
    return prod(sizes[x] for x in _state_labels(split, out)) <= rows * steps


def _state(node: Node, graph: Rewriting, split: Split, out: str) -> Factor:
    """Emit s[t] = the product at t + s[t-1]."""
    axes = _state_labels(split, out)
    (labels, point), *others = split.points
    if others or labels != axes:
        ins = ",".join(s for s, _ in split.points)
        op = Einsum(labels=f"{ins}->{axes}")
        point = graph.emit(op, [a for _, a in split.points], node.domain, "product")
    used = set().union(*(index_symbols(e) for e in point.index))
    domain = Domain(tuple(r for r in node.domain if r.dim in used))
    like = Node("state", Add(), (point,), domain, graph.type(point), node.loc)
    return axes, scan(like, graph.fresh("state"), graph, Monoid("add", 0.0), point, split.way)
