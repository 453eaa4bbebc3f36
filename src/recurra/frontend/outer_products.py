"""Cotangents that are products: apply a pick or a sum to the factors instead of the product.

    o[t] = einsum("n,d->nd", ds[t], q[t])
    pick(o[s], at=t)               →   einsum(",d->d", pick(ds[s], at=t), q[s])
    sum(einsum(",d->d", p[t,s], q[s])[t,t:T])   →   einsum("n,nd->d", p[t,t:T], q[t:T])

The gradient of a contraction that reads `k[0:t+1]` is then a contraction, too, and the product of
all points by all points is never materialized.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.frontend.tensor_base import Operand, Tensor
from recurra.ir.expr import Expr, Sym, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import LETTERS
from recurra.ir.order import postorder
from recurra.ir.types import Tuple
from recurra.ops.contraction import Einsum
from recurra.ops.elementwise import Add, Div, Mul, Neg, Sub
from recurra.ops.indexing import Pick
from recurra.ops.movement import Expand


def picked(value: Tensor, at: Expr | int) -> Tensor | None:
    """Pick element `at` of the first axis of a product, by picking from its factors.

    It is zero if `at` is outside the axis. Return None if the value is no product.
    """
    found = _product(value)
    if found is None or value.ref.slices:
        return None
    ins, out = found[1].parts()
    label, args = out[0], list[Tensor]()
    for labels, ref in zip(ins, _operands(value, found[0]), strict=True):
        x = value.kind(value.builder, ref, indexed=True)
        if label in labels:
            x = x.apply(Pick(axis=labels.index(label), at_=at, zero=True), x)
        args.append(x)
    left = ",".join(labels.replace(label, "") for labels in ins)
    return value.apply(replace(found[1], labels=f"{left}->{out[1:]}"), *args)


def summed(value: Tensor, ranges: tuple[Index, ...]) -> Tensor | None:
    """Sum a product over ranges of its dims, by a contraction of its factors.

    Return None if the value is no product, or if it cannot be written as a contraction.

    Args:
        ranges: the index of each dim of the value; a `Slice` is a range to sum over.
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
            summed_dims = symbols(e) & letters.keys() if not isinstance(e, Slice) else set()
            if not summed_dims:
                index.append(e)
                continue
            if not isinstance(e, Sym) or letters[e.name] in front:
                return None
            if r.dim in source.type.mentions():  # ragged rows
                return None
            index.append(dims[e.name])
            front += letters[e.name]
        args.append(value.kind(value.builder, Ref(ref.name, tuple(index)), indexed=True))
        labels.append(front + own)
    if any(not any(c in front for front in labels) for c in letters.values()):
        return None
    return value.apply(replace(found[1], labels=f"{','.join(labels)}->{out}"), *args)


def is_nonlinear_in_rows(graph: Graph, node: Node) -> bool:
    """Do the ragged rows connected to an equation pass through a nonlinear operator?

    If not, they are sums of products of reads, which passes turn into recurrences.
    """

    def ragged_operands(n: Node) -> list[Node]:
        operands = (graph[a.name] for a in n.args if not a.slices)
        return [x for x in operands if x.type.mentions()]

    def connected(name: str) -> list[str]:
        n = graph[name]
        readers = [r for r, _ in graph.readers[name] if r.type.mentions()]
        return [x.name for x in (*ragged_operands(n), *(readers if n.type.mentions() else ()))]

    reached = map(graph.__getitem__, postorder([node.name], connected))
    return any(n.type.mentions() and not _is_linear(n, len(ragged_operands(n))) for n in reached)


def _is_linear(node: Node, rows: int) -> bool:
    """Is an equation linear in its ragged operands, `rows` in number?"""
    if isinstance(node.op, (Mul, Div)):
        return rows <= 1
    return isinstance(node.op, (Einsum, Expand, Add, Sub, Neg))


def _product(value: Operand) -> tuple[Node, Einsum] | None:
    """The equation and the op of a value that is a product or a contraction, or None."""
    node = value.graph.nodes.get(value.name)
    if node is None or not isinstance(node.op, Einsum) or isinstance(node.type, Tuple):
        return None
    return node, node.op


def _operands(value: Operand, node: Node) -> list[Ref]:
    """The factors of a product, as reads at the point at which the product is read."""
    by = {
        r.dim: e
        for r, e in zip(node.domain, value.ref.index, strict=True)
        if not isinstance(e, Slice)
    }
    return [a.at(by) for a in node.args]
