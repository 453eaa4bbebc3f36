"""Index expressions, of the text in C that isl prints."""

from __future__ import annotations

import ast
import re
from typing import Any

from recurra.ir.expr import COMPARISONS, Expr, both, compare, either, from_ast, maximum, minimum

_PYTHON = (
    (re.compile(r"floord\("), "_floord("),
    (re.compile("&&"), "and"),
    (re.compile(r"\|\|"), "or"),
)


def from_c(text: str) -> Expr | int | None:
    """The expression; None where it distinguishes cases."""
    if "?" in text:
        return None
    try:
        for word, python in _PYTHON:
            text = word.sub(python, text)
        return _condition(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return None


def _condition(tree: ast.expr) -> Expr | int:
    match tree:
        case ast.BoolOp(op=op, values=values):
            parts: list[Any] = [_condition(v) for v in values]
            return (both if isinstance(op, ast.And) else either)(*parts)
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in COMPARISONS:
            return compare(COMPARISONS[type(op)], _from_c(a), _from_c(b))
        case _:
            return _from_c(tree)


def _from_c(tree: ast.expr) -> Expr | int:
    match tree:
        case ast.Call(func=ast.Name(id="_floord"), args=[a, n]):
            k = _from_c(n)
            assert isinstance(k, int)
            inner: Any = _from_c(a)
            return inner // k
        case ast.BinOp(left=a, op=op, right=b):
            x: Any = _from_c(a)
            y: Any = _from_c(b)
            match op:
                case ast.Add():
                    return x + y
                case ast.Sub():
                    return x - y
                case ast.Mult():
                    return x * y
                case ast.Mod():
                    return x % y
                case ast.Div():  # isl writes / where the quotient is exact or nothing is negative
                    return x // y
                case _:
                    raise SyntaxError(ast.unparse(tree))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            return (minimum if name == "min" else maximum)(*map(_from_c, args))
        case ast.UnaryOp(op=ast.USub(), operand=a):
            z: Any = _from_c(a)
            return -z
        case _:
            return from_ast(tree)
