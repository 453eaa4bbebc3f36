"""Parse the C text that isl prints into index expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from recurra.ir.expr import COMPARISONS, Expr, all_of, any_of, compare, from_ast, maximum, minimum

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.Div: operator.floordiv,  # isl writes / if the quotient is exact or nothing is negative
}


def from_c(text: str) -> Expr | int | None:
    """Return the expression; None if it distinguishes cases."""
    if "?" in text:
        return None
    try:
        text = text.replace("&&", "and").replace("||", "or")
        return _condition(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return None


def _condition(tree: ast.expr) -> Expr | int:
    match tree:
        case ast.BoolOp(op=op, values=values):
            parts: list[Any] = [_condition(v) for v in values]
            return (all_of if isinstance(op, ast.And) else any_of)(*parts)
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in COMPARISONS:
            return compare(COMPARISONS[type(op)], _from_c(a), _from_c(b))
        case _:
            return _from_c(tree)


def _from_c(tree: ast.expr) -> Expr | int:
    match tree:
        case ast.Call(func=ast.Name(id="floord"), args=[a, n]):
            inner: Any = _from_c(a)
            count = _from_c(n)
            assert isinstance(count, int)
            return inner // count
        case ast.BinOp(left=a, op=op, right=b):
            if type(op) not in _OPERATORS:
                raise SyntaxError(ast.unparse(tree))
            return _OPERATORS[type(op)](_from_c(a), _from_c(b))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            return (minimum if name == "min" else maximum)(*map(_from_c, args))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return operator.neg(_from_c(a))
        case _:
            return from_ast(tree)
