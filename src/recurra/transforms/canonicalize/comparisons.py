"""Laws of equal operands: a value compared with itself, or chosen from itself."""

from __future__ import annotations

from recurra.ir.graph import Node, Ref
from recurra.ir.types import is_float
from recurra.ops import elementwise as el
from recurra.ops.movement import Expand
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting, is_const


def _is_with_itself(node: Node, graph: Rewriting) -> bool:
    """Tell whether both operands are one value, with the same labels."""
    ins, _ = graph.labels(node)
    return node.args[0] == node.args[1] and ins[0] == ins[1]


def operand(node: Node, graph: Rewriting, index: int) -> Ref | None:
    """Return operand `index` if it has the type of the result, and its axes in the same order."""
    ins, out = graph.labels(node)
    return (
        node.args[index]
        if ins[index] == out and graph.type(node.args[index]) == node.type
        else None
    )


@rule(el.Sub)
def sub_itself(node: Node, graph: Rewriting) -> Ref | None:
    """x - x → 0 (finite math)"""
    return graph.constant(node, 0.0, "const") if _is_with_itself(node, graph) else None


@rule(el.Div)
def div_itself(node: Node, graph: Rewriting) -> Ref | None:
    """x / x → 1 (finite math)"""
    return graph.constant(node, 1.0, "const") if _is_with_itself(node, graph) else None


@rule(el.Equal, el.LessEqual)
def equal_itself(node: Node, graph: Rewriting) -> Ref | None:
    """x == x and x <= x → true, of integers; of floats they are tests for NaN, and stay"""
    is_whole = not is_float(graph.type(node.args[0]).dtype)
    return (
        graph.constant(node, True, "const") if is_whole and _is_with_itself(node, graph) else None
    )


@rule(el.NotEqual, el.Less)
def unequal_itself(node: Node, graph: Rewriting) -> Ref | None:
    """x < x → false, and of integers x != x"""
    known = isinstance(node.op, el.Less) or not is_float(graph.type(node.args[0]).dtype)
    return graph.constant(node, False, "const") if known and _is_with_itself(node, graph) else None


@rule(el.Maximum, el.Minimum, el.And, el.Or)
def of_itself(node: Node, graph: Rewriting) -> Ref | None:
    """max(x, x) → x"""
    return operand(node, graph, 0) if _is_with_itself(node, graph) else None


@rule(el.Where)
def where_known(node: Node, graph: Rewriting) -> Ref | None:
    """where(true, x, y) → x, where(c, x, x) → x"""
    condition = is_const(graph, node.args[0])
    ins, out = graph.labels(node)
    if condition is None and (node.args[1] != node.args[2] or ins[1] != ins[2]):
        return None
    k = 1 if condition is None or condition else 2
    if ins[k] == out:
        return node.args[k]
    if any(c not in out for c in ins[k]) or "".join(c for c in out if c in ins[k]) != ins[k]:
        return None
    sizes = tuple(s for c, s in zip(out, node.tensor.shape, strict=True) if c not in ins[k])
    return graph.emit(
        Expand(labels=f"{ins[k]}->{out}", sizes=sizes), node.args[k : k + 1], node.domain, "where"
    )


EQUAL = (sub_itself, div_itself, equal_itself, unequal_itself, of_itself, where_known)
