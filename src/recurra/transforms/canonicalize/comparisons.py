"""Laws of equals: what is compared with itself, chosen from itself, or known."""

from __future__ import annotations

from recurra.ir.graph import Node, Ref
from recurra.ir.types import Type, is_float
from recurra.ops import elementwise as el
from recurra.ops.movement import Expand
from recurra.ops.source import Const
from recurra.transforms.rewriter.pattern_rewriter import Rewriting, is_const, rule


def _same(n: Node, g: Rewriting, j: int, k: int) -> bool:
    """Are operands j and k one value, axis by axis?"""
    ins, _ = g.labels(n)
    return n.args[j] == n.args[k] and ins[j] == ins[k]


def operand(n: Node, g: Rewriting, k: int) -> Ref | None:
    """Operand k, if it has the type of the result, and its axes in the same order."""
    ins, out = g.labels(n)
    return n.args[k] if ins[k] == out and g.type(n.args[k]) == n.type else None


def _constant(n: Node, g: Rewriting, value: float | bool) -> Ref:
    assert isinstance(n.type, Type)
    op = Const(value=value, dtype=n.type.dtype, shape=n.type.shape)
    return g.emit(op, (), n.domain, "const")


@rule(el.Sub)
def sub_itself(n: Node, g: Rewriting) -> Ref | None:
    """x - x → 0 (finite math)"""
    return _constant(n, g, 0.0) if _same(n, g, 0, 1) else None


@rule(el.Div)
def div_itself(n: Node, g: Rewriting) -> Ref | None:
    """x / x → 1 (finite math)"""
    return _constant(n, g, 1.0) if _same(n, g, 0, 1) else None


@rule(el.Equal, el.LessEqual)
def equal_itself(n: Node, g: Rewriting) -> Ref | None:
    """x <= x → true, of integers: a float is asked so whether it is NaN"""
    is_whole = not is_float(g.type(n.args[0]).dtype)
    return _constant(n, g, True) if is_whole and _same(n, g, 0, 1) else None


@rule(el.NotEqual, el.Less)
def unequal_itself(n: Node, g: Rewriting) -> Ref | None:
    """x < x → false, and of integers x != x"""
    known = isinstance(n.op, el.Less) or not is_float(g.type(n.args[0]).dtype)
    return _constant(n, g, False) if known and _same(n, g, 0, 1) else None


@rule(el.Maximum, el.Minimum, el.And, el.Or)
def of_itself(n: Node, g: Rewriting) -> Ref | None:
    """max(x, x) → x"""
    return operand(n, g, 0) if _same(n, g, 0, 1) else None


@rule(el.Where)
def where_known(n: Node, g: Rewriting) -> Ref | None:
    """where(true, x, y) → x, where(c, x, x) → x"""
    condition = is_const(g, n.args[0])
    ins, out = g.labels(n)
    if condition is None and (n.args[1] != n.args[2] or ins[1] != ins[2]):
        return None
    k = 1 if condition is None or condition else 2
    if ins[k] == out:
        return n.args[k]
    if any(c not in out for c in ins[k]) or "".join(c for c in out if c in ins[k]) != ins[k]:
        return None
    assert isinstance(n.type, Type)
    sizes = tuple(s for c, s in zip(out, n.type.shape, strict=True) if c not in ins[k])
    return g.emit(
        Expand(labels=f"{ins[k]}->{out}", sizes=sizes), n.args[k : k + 1], n.domain, "where"
    )


EQUAL = (sub_itself, div_itself, equal_itself, unequal_itself, of_itself, where_known)
