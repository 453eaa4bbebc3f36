"""Split softmax over a range into its steps, and divide sums instead of their terms.

p = softmax(x, axis=2)                      m = max(x, axes=(2,));  e = exp(x - m)
y = einsum(p, v, labels='kgn,nd->kgd')  →   d = sum(e, axes=(2,));  y = einsum(e, v, ..) / d
"""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.graph import Node
from recurra.ir.op import LETTERS, join_labels
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Max, Sum
from recurra.ops.softmax import Softmax
from recurra.transforms.rewriter.pattern_rewriter import Rule, rule
from recurra.transforms.rewriter.rewriting import Rewriting


def split_softmax(names: set[str]) -> Rule:
    """Return the rule for some softmaxes."""

    @rule(Softmax)
    def split(node: Node, graph: Rewriting) -> Node | None:
        """softmax x → eˣ⁻ᵐ / Σ eˣ⁻ᵐ, m = max x"""
        assert isinstance(node.op, Softmax)
        if node.name not in names:
            return None
        (x,) = node.args
        axes = LETTERS[: graph.type(x).rank]
        rest = axes.replace(axes[node.op.axis], "")
        labels, gone = join_labels((axes, rest), axes), (node.op.axis,)
        most = graph.emit(Max(axes=gone), (x,), node.domain, "most")
        less = graph.emit(el.Sub(labels=labels), (x, most), node.domain, "less")
        e = graph.emit(el.Exp(), (less,), node.domain, "e")
        total = graph.emit(Sum(axes=gone), (e,), node.domain, "total")
        return Node(node.name, el.Div(labels=labels), (e, total), node.domain, node.type, node.loc)

    return split


def divide_last(contracted: Mapping[str, set[str]]) -> Rule:
    """Return the rule for sums over some labels of some contractions."""

    @rule(Einsum)
    def last(node: Node, graph: Rewriting) -> Node | None:
        """Σ (x / y)·v, y the same in all terms → (Σ x·v) / y"""
        assert isinstance(node.op, Einsum)
        ins, out = node.op.parts()
        for k, (axes, a) in enumerate(zip(ins, node.args, strict=True)):
            div = graph.producer(a, el.Div)
            if div is None or not contracted.get(node.name, set()) & set(axes):
                continue
            assert isinstance(div.op, el.Div)
            (top, bottom), whole = div.op.parts((len(axes), len(axes)))
            to = dict(zip(whole, axes, strict=True))
            below = "".join(to[c] for c in bottom)
            if top != whole or not set(below) <= set(out):
                continue
            args = node.with_operand(k, div.args[0]).args
            above = graph.emit(node.op, args, node.domain, f"{node.name}_undivided")
            op, args = el.Div(labels=join_labels((out, below), out)), (above, div.args[1])
            return Node(node.name, op, args, node.domain, node.type, node.loc)
        return None

    return last
