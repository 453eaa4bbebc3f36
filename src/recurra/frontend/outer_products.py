"""Cotangents that are products: taken apart before an element of them is picked, or a range summed.

    o[t] = einsum("n,d->nd", ds[t], q[t])
    pick(o[s], at=t)               →   einsum(",d->d", pick(ds[s], at=t), q[s])
    sum(einsum(",d->d", p[t,s], q[s])[t,t:T])   →   einsum("n,nd->d", p[t,t:T], q[t:T])

So the gradient of what reads `k[0:t+1]` in a contraction is a contraction, and no product of all
points by all points is made.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.frontend.read import Operand, Tensor
from recurra.ir.expr import Expr, Sym, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import LETTERS
from recurra.ir.types import Tuple
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import Add, Div, Mul, Neg, Sub
from recurra.ops.indexing import Pick
from recurra.ops.movement import Expand


def picked(value: Tensor, at: Expr | int) -> Tensor | None:
    """The element `at` of the first axis of a value, if it is a product: that of elements.

    It is zero where the axis has none.
    """
    found = _product(value)
    if found is None or value.ref.slices:
        return None
    ins, out = found[1].parts()
    label, args = out[0], list[Tensor]()
    for labels, ref in zip(ins, _operands(value, found[0]), strict=True):
        x = value.kind(value.tracer, ref, indexed=True)
        if label in labels:
            x = x.apply(Pick(axis=labels.index(label), at_=at, zero=True), x)
        args.append(x)
    left = ",".join(labels.replace(label, "") for labels in ins)
    return value.apply(replace(found[1], labels=f"{left}->{out[1:]}"), *args)


def summed(value: Tensor, ranges: tuple[Index, ...]) -> Tensor | None:
    """The sum of a value over ranges of its dims, if it is a product: the contraction of them.

    Args:
        ranges: of each of its dims, where it is read; a `Slice` is a range that is summed.
    """
    found = _product(value)
    if found is None:
        return None
    ins, out = found[1].parts()
    dims = {r.dim: e for r, e in zip(value.domain, ranges, strict=True)}
    moving = [d for d, e in dims.items() if isinstance(e, Slice)]
    letters = dict(zip(moving, (c for c in LETTERS if c not in "".join(ins) + out), strict=False))
    labels, args = list[str](), list[Tensor]()
    for own, ref in zip(ins, _operands(value, found[0]), strict=True):
        index, front = list[Index](), ""
        if ref.slices:
            return None
        source = value.graph[ref.name]
        for r, e in zip(source.domain, ref.index, strict=True):
            mine = symbols(e) & letters.keys() if not isinstance(e, Slice) else set()
            if not mine:
                index.append(e)
                continue
            if not isinstance(e, Sym) or letters[e.name] in front:
                return None
            if r.dim in source.type.mentions():  # rows of several lengths
                return None
            index.append(dims[e.name])
            front += letters[e.name]
        args.append(value.kind(value.tracer, Ref(ref.name, tuple(index)), indexed=True))
        labels.append(front + own)
    if any(not any(c in front for front in labels) for c in letters.values()):
        return None
    return value.apply(replace(found[1], labels=f"{','.join(labels)}->{out}"), *args)


def rows_bend(graph: Graph, node: Node) -> bool:
    """Do rows of several lengths that an equation takes part in go through what is not linear?

    Else they are sums of products of what is read, of which recurrences are made.
    """
    todo, seen = [node], {node.name}
    while todo:
        n = todo.pop()
        taken = [graph[a.name] for a in n.args if not a.slices]
        rows = [x for x in taken if x.type.mentions()]
        if n.type.mentions() and not _is_linear(n, len(rows)):
            return True
        beside = [r for r, _ in graph.readers[n.name]] if n.type.mentions() else []
        for x in (*rows, *(r for r in beside if r.type.mentions())):
            if x.name not in seen:
                seen.add(x.name)
                todo.append(x)
    return False


def _is_linear(node: Node, rows: int) -> bool:
    """Is an equation linear in rows of several lengths, of which it takes so many?"""
    if isinstance(node.op, (Mul, Div)):
        return rows <= 1
    return isinstance(node.op, (Einsum, Expand, Add, Sub, Neg))


def _product(value: Operand) -> tuple[Node, Einsum] | None:
    """The equation of a value that is a product, or a contraction."""
    node = value.graph.nodes.get(value.name)
    if node is None or not isinstance(node.op, Einsum) or isinstance(node.type, Tuple):
        return None
    return node, node.op


def _operands(value: Operand, node: Node) -> list[Ref]:
    """The operands of a product, at the point where it is read."""
    by = {
        r.dim: e
        for r, e in zip(node.domain, value.ref.index, strict=True)
        if not isinstance(e, Slice)
    }
    return [a.at(by) for a in node.args]
