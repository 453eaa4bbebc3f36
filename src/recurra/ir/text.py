"""parse: the inverse of str(graph)."""

from __future__ import annotations

import ast
import re
from typing import Any

from recurra.ir.expr import Expr, from_ast
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import Op
from recurra.ir.types import AnyType, Domain, Range, Tuple, Type

_HEAD = re.compile(
    r"(?P<name>\w+)(?:\[(?P<dom>.*?)\])?: (?P<type>\(.*?\)|\w+\[.*?\]) = (?P<rhs>.*)$"
)


def parse(text: str) -> Graph:
    """The graph that prints as `text`; # starts a comment."""
    lines = [ln for raw in text.splitlines() if (ln := raw.split("#")[0].strip())]
    dims: tuple[Range, ...] = ()
    outputs: tuple[str, ...] = ()
    heads: dict[str, tuple[Domain, AnyType, ast.Call]] = {}
    for line in lines:
        if line.startswith("dims "):
            dims = domain(line[5:]).ranges
        elif line.startswith("return"):
            outputs = tuple(x.strip() for x in line[6:].split(",") if x.strip())
        else:
            name, dom, type_, rhs = _equation(line)
            if name in heads:
                raise SyntaxError(f"{name} is defined twice")
            heads[name] = (dom, type_, rhs)
    nodes = {n: _node(n, *h, {k: v[0] for k, v in heads.items()}) for n, h in heads.items()}
    return Graph(nodes, outputs, dims)


def _equation(line: str) -> tuple[str, Domain, AnyType, ast.Call]:
    m = _HEAD.match(line)
    if m is None:
        raise SyntaxError(f"not an equation: {line!r}")
    rhs = ast.parse(m["rhs"], mode="eval").body
    if not isinstance(rhs, ast.Call) or not isinstance(rhs.func, ast.Name):
        raise SyntaxError(f"the right side is not an op: {m['rhs']!r}")
    return m["name"], domain(m["dom"] or ""), _type(m["type"]), rhs


def _node(
    name: str, dom: Domain, type_: AnyType, rhs: ast.Call, domains: dict[str, Domain]
) -> Node:
    assert isinstance(rhs.func, ast.Name)
    if rhs.func.id not in Op.registry:
        raise SyntaxError(f"{name}: there is no op {rhs.func.id!r}")
    attrs = {k.arg: _attribute(k.value) for k in rhs.keywords if k.arg}
    op = Op.registry[rhs.func.id](**attrs)
    return Node(name, op, tuple(_ref(a, domains) for a in rhs.args), dom, type_)


def _ref(e: ast.expr, domains: dict[str, Domain]) -> Ref:
    if isinstance(e, ast.Name):
        return Ref(e.id, domains[e.id].identity)
    assert isinstance(e, ast.Subscript) and isinstance(e.value, ast.Name), ast.unparse(e)
    parts = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
    return Ref(e.value.id, tuple(map(_index, parts)))


def _index(e: ast.expr) -> Index:
    if not isinstance(e, ast.Slice):
        return from_ast(e)
    assert e.lower is not None and e.upper is not None
    lo, hi = from_ast(e.lower), from_ast(e.upper)
    match e.step:
        case None:
            return Slice(lo, hi)
        case ast.Call(func=ast.Name(id="pad"), args=[size]):
            return Slice(lo, hi, 1, from_ast(size))
        case ast.Call(func=ast.Name(id="pad"), args=[size, step]):
            return Slice(lo, hi, from_ast(step), from_ast(size))
        case step:
            return Slice(lo, hi, from_ast(step))


def _attribute(e: ast.expr) -> Any:
    match e:
        case ast.Tuple(elts=elts):
            return tuple(map(_attribute, elts))
        case ast.Name(id="inf"):
            return float("inf")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -float("inf")
        case _:
            return from_ast(e)


def domain(text: str) -> Domain:
    return Domain(tuple(_range(part) for part in _split(text)))


def _range(text: str) -> Range:
    e = ast.parse(text, mode="eval").body
    assert isinstance(e, ast.Compare), text
    if len(e.ops) == 1:
        assert isinstance(e.left, ast.Name)
        return Range(e.left.id, from_ast(e.comparators[0]))
    assert isinstance(e.comparators[0], ast.Name)
    return Range(e.comparators[0].id, from_ast(e.comparators[1]), from_ast(e.left))


def _type(text: str) -> AnyType:
    if text.startswith("("):
        return Tuple(tuple(map(_array_type, _split(text[1:-1]))))
    return _array_type(text)


def _array_type(text: str) -> Type:
    dtype, shape = text.strip().rstrip("]").split("[", 1)
    return Type(dtype, tuple(expression(s) for s in _split(shape)))


def expression(text: str) -> Expr | int:
    return from_ast(ast.parse(text.strip(), mode="eval").body)


def _split(text: str) -> list[str]:
    """At the commas that stand outside brackets."""
    parts, depth, last = list[str](), 0, 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append(text[last:k])
            last = k + 1
    return [p.strip() for p in [*parts, text[last:]] if p.strip()]
