"""The parser of graphs: the inverse of str(graph)."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from recurra.ir.dims import Dim, Role
from recurra.ir.expr import Expr, from_ast
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import Op
from recurra.ir.types import NUMPY_NAME, AnyType, Domain, Range, Tuple, Type
from recurra.ir.user_objects import Resource, by_key

_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_HEAD = re.compile(
    rf"(?P<name>\w+|{_QUOTED})(?:\[(?P<dom>.*?)\])?: (?P<type>\(.*?\)|\w+\[.*?\]) = (?P<rhs>.*)$"
)
_DERIVED = re.compile(r"(?P<range>.*\S) (?P<role>\w+) of (?P<parent>\w+)")
_COMMENT = re.compile(rf"(?P<string>{_QUOTED})|#.*")


def parse(text: str, resources: Iterable[Resource[Any]] = ()) -> Graph:
    """Return the graph that prints as `text`; # starts a comment. Raises SyntaxError.

    The text names the user's arrays and functions by key; `resources` supplies their values.
    """
    known = by_key(resources)
    dims: tuple[Dim, ...] = ()
    outputs: tuple[str, ...] = ()
    heads: dict[str, tuple[Domain, AnyType, ast.Call]] = {}
    for raw in text.splitlines():
        line = _COMMENT.sub(lambda m: m["string"] or "", raw).strip()
        if line.startswith("dims "):
            dims = tuple(map(_dim, _split(line[5:])))
        elif line.split(" ")[0] == "return":
            outputs = tuple(map(_name, _listed(line[6:])))
        elif line:
            name, dom, type_, rhs = _equation(line)
            if name in heads:
                raise SyntaxError(f"{name} is defined twice")
            heads[name] = (dom, type_, rhs)
    domains = {n: dom for n, (dom, _, _) in heads.items()}
    for o in outputs:
        if o not in heads:
            raise SyntaxError(f"the output {o} has no equation")
    nodes = {n: _node(n, *head, domains, known) for n, head in heads.items()}
    return Graph(nodes, outputs, dims)


def _equation(line: str) -> tuple[str, Domain, AnyType, ast.Call]:
    m = _HEAD.match(line)
    if m is None:
        raise SyntaxError(f"not an equation: {line!r}")
    rhs = _python(m["rhs"])
    if not isinstance(rhs, ast.Call) or not isinstance(rhs.func, ast.Name):
        raise SyntaxError(f"the right side is not an op: {m['rhs']!r}")
    return _name(_python(m["name"])), domain(m["dom"] or ""), _type(m["type"]), rhs


def _python(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        raise SyntaxError(f"{e.msg}: {text.strip()!r}") from None


def _node(
    name: str,
    dom: Domain,
    type_: AnyType,
    rhs: ast.Call,
    domains: Mapping[str, Domain],
    known: Mapping[str, Resource[Any]],
) -> Node:
    assert isinstance(rhs.func, ast.Name)
    if rhs.func.id not in Op.registry:
        raise SyntaxError(f"{name}: there is no op {rhs.func.id!r}")
    attrs = {k.arg: _attribute(k.value) for k in rhs.keywords if k.arg}
    kind = Op.registry[rhs.func.id]
    for attribute in kind.held.keys() & attrs.keys():
        key = attrs[attribute]
        attrs[attribute] = known.get(key) or kind.held[attribute](key)
    try:
        op = kind(**attrs)
    except TypeError as e:
        raise SyntaxError(f"{name}: {rhs.func.id}: {e}") from None
    return Node(name, op, tuple(_ref(a, domains) for a in rhs.args), dom, type_)


def _ref(tree: ast.expr, domains: Mapping[str, Domain]) -> Ref:
    name, index = (tree.value, tree.slice) if isinstance(tree, ast.Subscript) else (tree, None)
    source = _name(name, "an operand is name or name[index]")
    if source not in domains:
        raise SyntaxError(f"{ast.unparse(tree)} is read, but {source} has no equation")
    if index is None:
        return Ref(source, domains[source].identity)
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if len(parts) != len(domains[source]):
        raise SyntaxError(f"{ast.unparse(tree)}: the domain of {source} is {domains[source]}")
    return Ref(source, tuple(map(_index, parts)))


def _name(tree: ast.expr, law: str = "an equation has a name") -> str:
    """The inverse of `spelled`."""
    match tree:
        case ast.Name(id=name) | ast.Constant(value=str(name)):
            return name
        case _:
            raise SyntaxError(f"{law}, not {ast.unparse(tree)!r}")


def _listed(text: str) -> list[ast.expr]:
    e = _python(f"({text},)") if text.strip() else ast.Tuple([])
    return e.elts if isinstance(e, ast.Tuple) else [e]


def _index(tree: ast.expr) -> Index:
    match tree:
        case ast.Slice(lower=ast.expr() as lo, upper=ast.expr() as hi, step=step):
            return Slice(from_ast(lo), from_ast(hi), *_step(step))
        case ast.Slice():
            raise SyntaxError(f"a range needs both ends: {ast.unparse(tree)!r}")
        case _:
            return from_ast(tree)


def _step(tree: ast.expr | None) -> tuple[int, Expr | int | None, bool]:
    """Parse step, pad and looseness: lo:hi:2, lo:hi:pad(8), lo:hi:pad(8, 2), lo:hi:room(8)."""
    match tree:
        case None:
            return 1, None, False
        case ast.Call(func=ast.Name(id="pad" | "room" as word), args=[size, *step]):
            return (from_ast(step[0]) if step else 1), from_ast(size), word == "room"
        case ast.Name(id="room"):
            return 1, None, True
        case _:
            return from_ast(tree), None, False


_NUMBERS = {"inf": math.inf, "nan": math.nan}


def _attribute(tree: ast.expr) -> Any:
    match tree:
        case ast.Tuple(elts=elts):
            return tuple(map(_attribute, elts))
        case ast.Name(id="inf" | "nan" as name):
            return _NUMBERS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -math.inf
        case _:
            return from_ast(tree)


def domain(text: str) -> Domain:
    return Domain(tuple(_range(part) for part in _split(text)))


def _dim(text: str) -> Dim:
    """Parse the declaration of a dim: `t<T` or `tz<T//8 tiles of t`."""
    derived = _DERIVED.fullmatch(text)
    if derived is None:
        return Dim(_range(text))
    roles = [r.value for r in Role if r is not Role.WRITTEN]
    if derived["role"] not in roles:
        raise SyntaxError(f"a dim is {', '.join(roles)} of another, not {derived['role']!r}")
    return Dim(_range(derived["range"]), Role(derived["role"]), derived["parent"])


def _range(text: str) -> Range:
    match _python(text):
        case ast.Compare(left=ast.Name(id=dim), ops=[ast.Lt()], comparators=[hi]):
            return Range(dim, from_ast(hi))
        case ast.Compare(left=lo, ops=[ast.LtE(), ast.Lt()], comparators=[ast.Name(id=dim), hi]):
            return Range(dim, from_ast(hi), from_ast(lo))
        case _:
            raise SyntaxError(f"a range is dim<hi or lo<=dim<hi, not {text!r}")


def _type(text: str) -> AnyType:
    if text.startswith("("):
        return Tuple(tuple(map(_array_type, _split(text[1:-1]))))
    return _array_type(text)


def _array_type(text: str) -> Type:
    dtype, shape = text.strip().rstrip("]").split("[", 1)
    if dtype not in NUMPY_NAME:
        raise SyntaxError(f"there is no element type {dtype!r}")
    return Type(dtype, tuple(expression(s) for s in _split(shape)))


def expression(text: str) -> Expr | int:
    return from_ast(_python(text))


def _split(text: str) -> list[str]:
    """Split text at the commas outside brackets."""
    parts, depth, last = list[str](), 0, 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append(text[last:k])
            last = k + 1
    return [p.strip() for p in [*parts, text[last:]] if p.strip()]
