"""Softmax over a range taken apart, and what divides every term of a sum moved behind it.

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
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, Rule, rule


def taken_apart(names: set[str]) -> Rule:
    """The law for some softmaxes."""

    @rule(Softmax)
    def apart(n: Node, g: Rewriting) -> Node | None:
        """softmax x → eˣ⁻ᵐ / Σ eˣ⁻ᵐ, m = max x"""
        assert isinstance(n.op, Softmax)
        if n.name not in names:
            return None
        (x,) = n.args
        axes = LETTERS[: g.type(x).rank]
        rest = axes.replace(axes[n.op.axis], "")
        labels, gone = join_labels((axes, rest), axes), (n.op.axis,)
        most = g.emit(Max(axes=gone), (x,), n.domain, "most")
        less = g.emit(el.Sub(labels=labels), (x, most), n.domain, "less")
        e = g.emit(el.Exp(), (less,), n.domain, "e")
        total = g.emit(Sum(axes=gone), (e,), n.domain, "total")
        return Node(n.name, el.Div(labels=labels), (e, total), n.domain, n.type, n.loc)

    return apart


def divided_last(contracted: Mapping[str, set[str]]) -> Rule:
    """The law for sums over some labels of some contractions."""

    @rule(Einsum)
    def last(n: Node, g: Rewriting) -> Node | None:
        """Σ (x / y)·v, y the same in all terms → (Σ x·v) / y"""
        assert isinstance(n.op, Einsum)
        ins, out = n.op.parts()
        for k, (axes, a) in enumerate(zip(ins, n.args, strict=True)):
            div = g.producer(a, el.Div)
            if div is None or not contracted.get(n.name, set()) & set(axes):
                continue
            assert isinstance(div.op, el.Div)
            (top, bottom), whole = div.op.parts((len(axes), len(axes)))
            named = dict(zip(whole, axes, strict=True))
            below = "".join(named[c] for c in bottom)
            if top != whole or not set(below) <= set(out):
                continue
            args = (*n.args[:k], div.args[0], *n.args[k + 1 :])
            above = g.emit(n.op, args, n.domain, f"{n.name}_undivided")
            labels = join_labels((out, below), out)
            return Node(
                n.name, el.Div(labels=labels), (above, div.args[1]), n.domain, n.type, n.loc
            )
        return None

    return last
