"""Index expressions: quasi-affine integers and conditions over dims and bounds.

`t-1`, `min(t+5, T)`, `(i+1) % 5 == 0`. Sums, products and conditions are normalized (`t+1-1` is
`t`, `(4*k+j)//4` is `k+j//4`), so that equal polynomials are equal objects. Python ints stand for
constants everywhere.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from recurra.ir.frozen import Frozen

Env = Mapping[str, Any]

NONE = frozenset[str]()
SEED = "the seed"  # the key of a run's seed among dims and bounds; no identifier, so no clash


class Expr(Frozen):
    """An integer or Boolean expression over symbols."""

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The dims and bounds that occur in it."""
        return NONE.union(*map(symbols, children(self)))

    def __add__(self, other: object) -> Expr | int:
        return lin([(self, 1), (other, 1)]) if isinstance(other, (Expr, int)) else NotImplemented

    def __sub__(self, other: object) -> Expr | int:
        return lin([(self, 1), (other, -1)]) if isinstance(other, (Expr, int)) else NotImplemented

    def __rsub__(self, other: int) -> Expr | int:
        return lin([(other, 1), (self, -1)])

    def __mul__(self, other: object) -> Expr | int:
        return mul(self, other) if isinstance(other, (Expr, int)) else NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Expr | int:
        return lin([(self, -1)])

    def __floordiv__(self, count: int) -> Expr | int:
        return div(self, count)

    def __mod__(self, count: int) -> Expr | int:
        return mod(self, count)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Sym(Expr):
    """A dim (`t`) or a bound (`T`)."""

    name: str

    @cached_property
    def symbols(self) -> frozenset[str]:
        return frozenset((self.name,))

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class Lin(Expr):
    """Σ factor · term + const, the terms sorted by their text; never a bare constant or term."""

    terms: tuple[tuple[Expr, int], ...]
    const: int

    def __str__(self) -> str:
        out = ""
        positive_first = sorted(self.terms, key=lambda p: p[1] < 0)
        for e, k in positive_first:
            # a leading minus binds tighter than // and %: -(t//4), not -t//4
            bare = abs(k) == 1 and (out or k > 0)
            body = str(e) if bare else _atom(e) if abs(k) == 1 else f"{abs(k)}*{_atom(e)}"
            out += ("-" if k < 0 else "+" if out else "") + body
        return out + (f"{self.const:+d}" if self.const else "")


@dataclass(frozen=True, repr=False)
class Product(Expr):
    """a · b of two symbolic factors, sorted by text: a value such as B*T, never an index."""

    a: Expr
    b: Expr

    def __str__(self) -> str:
        return f"{_atom(self.a)}*{_atom(self.b)}"


@dataclass(frozen=True, repr=False)
class FloorDiv(Expr):
    """⌊a / n⌋"""

    a: Expr
    n: int

    def __str__(self) -> str:
        return f"{_atom(self.a)}//{self.n}"


@dataclass(frozen=True, repr=False)
class Modulo(Expr):
    """a mod n, in 0..n-1"""

    a: Expr
    n: int

    def __str__(self) -> str:
        return f"{_atom(self.a)}%{self.n}"


@dataclass(frozen=True, repr=False)
class Ext(Expr):
    """min or max of several expressions"""

    op: str
    args: tuple[Expr | int, ...]

    def __str__(self) -> str:
        return f"{self.op}({','.join(map(str, self.args))})"


@dataclass(frozen=True, repr=False)
class Cmp(Expr):
    """a comparison: == != < <= > >="""

    op: str
    a: Expr | int
    b: Expr | int

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"


@dataclass(frozen=True, repr=False)
class Logic(Expr):
    """& | ~ of conditions; with no arguments, & is true and | is false"""

    op: str
    args: tuple[Expr, ...]

    def __str__(self) -> str:
        if self.op == "~":
            return f"~({self.args[0]})"
        if not self.args:
            return "true" if self.op == "&" else "false"
        return f" {self.op} ".join(f"({a})" for a in self.args)


TRUE, FALSE = Logic("&", ()), Logic("|", ())


def _atom(expr: Expr) -> str:
    return f"({expr})" if isinstance(expr, (Lin, Product, FloorDiv, Modulo)) else str(expr)


def lin(parts: list[tuple[Expr | int, int]]) -> Expr | int:
    """The normal form of Σ factor · part."""
    const, terms = 0, dict[Expr, int]()
    for e, k in parts:
        if isinstance(e, int):
            const += k * e
        elif isinstance(e, Lin):
            const += k * e.const
            for sub, n in e.terms:
                terms[sub] = terms.get(sub, 0) + k * n
        else:
            terms[e] = terms.get(e, 0) + k
    kept = [(e, k) for e, k in terms.items() if k]
    if len(kept) > 1:
        kept.sort(key=lambda p: str(p[0]))
    if not kept:
        return const
    if const == 0 and len(kept) == 1 and kept[0][1] == 1:
        return kept[0][0]
    return Lin(tuple(kept), const)


def mul(left: Expr | int, right: Expr | int) -> Expr | int:
    """The normal form of a · b: products of sums are multiplied out."""
    if isinstance(left, int) or isinstance(right, int):
        return lin([(right, left)] if isinstance(left, int) else [(left, right)])  # pyright: ignore[reportArgumentType]
    return lin([(_monomial(x, y), j * k) for x, j in _terms(left) for y, k in _terms(right)])


def _terms(expr: Expr | int) -> list[tuple[Expr | int, int]]:
    """The terms of an expression as (term, factor), the constant as (1, factor)."""
    if isinstance(expr, Lin):
        return [*expr.terms, (1, expr.const)] if expr.const else list(expr.terms)
    return [(1, expr)] if isinstance(expr, int) else [(expr, 1)]


def _monomial(left: Expr | int, right: Expr | int) -> Expr | int:
    """The normal form of a · b, where neither is a sum."""
    if isinstance(left, int) or isinstance(right, int):  # a factor of 1
        return right if isinstance(left, int) else left
    first, *rest = sorted((*_factors(left), *_factors(right)), key=str, reverse=True)
    return reduce(lambda out, x: Product(x, out), rest, first)


def _factors(expr: Expr) -> tuple[Expr, ...]:
    return (*_factors(expr.a), *_factors(expr.b)) if isinstance(expr, Product) else (expr,)


def div(expr: Expr | int, count: int) -> Expr | int:
    if count <= 0:
        raise ValueError(f"// needs a positive constant, got {count}")
    whole, left = _multiples(expr, count)
    return lin(
        [(e, k // count) for e, k in whole]
        + [(FloorDiv(left, count) if isinstance(left, Expr) else left // count, 1)]
    )


def mod(expr: Expr | int, count: int) -> Expr | int:
    if count <= 0:
        raise ValueError(f"% needs a positive constant, got {count}")
    _, left = _multiples(expr, count)
    return Modulo(left, count) if isinstance(left, Expr) else left % count


def _multiples(expr: Expr | int, count: int) -> tuple[list[tuple[Expr | int, int]], Expr | int]:
    """Split a sum into the terms whose factor `count` divides, and the sum of the others."""
    terms = _terms(expr)
    const = sum(k for e, k in terms if isinstance(e, int))
    whole = [(e, k) for e, k in terms if isinstance(e, Expr) and k % count == 0]
    rest = [(e, k) for e, k in terms if isinstance(e, Expr) and k % count]
    kept = abs(const) % count * (1 if const > 0 else -1)  # (t-1)//4 stays as it is
    return [*whole, (1, const - kept)], lin([*rest, (kept, 1)])


def _ext(op: str, pick: Callable[..., int], args: tuple[Expr | int, ...]) -> Expr | int:
    flat: list[Expr | int] = []
    for a in args:
        flat += a.args if isinstance(a, Ext) and a.op == op else (a,)
    best: dict[object, Expr | int] = {}  # min(t+5, t) is t: only one offset of each base survives
    for a in flat:
        base = None if isinstance(a, int) else a - offset(a)
        old = best.setdefault(base, a)
        best[base] = a if pick(offset(old), offset(a)) == offset(a) else old
    left = tuple(best.values())
    return left[0] if len(left) == 1 else Ext(op, left)


def offset(expr: Expr | int) -> int:
    """The constant part of a sum."""
    return expr if isinstance(expr, int) else expr.const if isinstance(expr, Lin) else 0


def minimum(*args: Expr | int) -> Expr | int:
    return _ext("min", min, args)


def maximum(*args: Expr | int) -> Expr | int:
    return _ext("max", max, args)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_TURNED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def compare(op: str, left: Expr | int, right: Expr | int) -> Expr:
    gap = lin([(left, 1), (right, -1)])
    if isinstance(gap, int):
        return TRUE if _COMPARE[op](gap, 0) else FALSE
    k = offset(left)  # constants stand on the right
    return Cmp(op, left - k, right - k) if k else Cmp(op, left, right)


def between(expr: Expr | int, lo: Expr | int, hi: Expr | int) -> tuple[Expr, Expr]:
    """The conditions lo <= expr and expr < hi."""
    return compare(">=", expr, lo), compare("<", expr, hi)


def all_of(*conditions: Expr) -> Expr:
    """The flattened conjunction, without terms that are true."""
    return _logic("&", conditions)


def any_of(*conditions: Expr) -> Expr:
    """The flattened disjunction, without terms that are false."""
    return _logic("|", conditions)


def _logic(op: str, conditions: tuple[Expr, ...]) -> Expr:
    flat: list[Expr] = []
    for c in conditions:
        flat += c.args if isinstance(c, Logic) and c.op == op else (c,)
    kept = tuple(dict.fromkeys(flat))
    zero = FALSE if op == "&" else TRUE
    if zero in kept:
        return zero
    return kept[0] if len(kept) == 1 else Logic(op, kept)


def negate(condition: Expr) -> Expr:
    if isinstance(condition, Cmp):
        return Cmp(_NEGATED[condition.op], condition.a, condition.b)
    if isinstance(condition, Logic) and condition.op == "~":
        return condition.args[0]
    if isinstance(condition, Logic):
        parts = [negate(a) for a in condition.args]
        return any_of(*parts) if condition.op == "&" else all_of(*parts)
    return Logic("~", (condition,))


def fixed_value(when: Expr | None, dim: str) -> Expr | int | None:
    """The e for which the condition implies dim == e, or None."""
    if isinstance(when, Logic) and when.op == "&":
        return next((e for c in when.args if (e := fixed_value(c, dim)) is not None), None)
    if isinstance(when, Cmp) and when.op == "==" and when.a == Sym(dim):
        return when.b
    return None


def children(expr: Expr | int) -> tuple[Expr | int, ...]:
    match expr:
        case Lin(terms=terms):
            return tuple(x for x, _ in terms)
        case Product(a=a, b=b) | Cmp(a=a, b=b):
            return (a, b)
        case FloorDiv(a=a) | Modulo(a=a):
            return (a,)
        case Ext(args=args) | Logic(args=args):
            return args
        case _:
            return ()


def rebuild(expr: Expr | int, function: Callable[[Expr | int], Expr | int]) -> Any:
    """Apply `function` to the direct children of an expression, and normalize it again."""
    match expr:
        case Lin(terms=terms, const=const):
            return lin([(function(x), k) for x, k in terms] + [(const, 1)])
        case Product(a=a, b=b):
            return mul(function(a), function(b))
        case FloorDiv(a=a, n=n):
            return div(function(a), n)
        case Modulo(a=a, n=n):
            return mod(function(a), n)
        case Ext(op=op, args=args):
            return (minimum if op == "min" else maximum)(*map(function, args))
        case Cmp(op=op, a=a, b=b):
            return compare(op, function(a), function(b))
        case Logic(op="~", args=(a,)):
            return negate(rebuild_condition(a, function))
        case Logic(op=op, args=args):
            parts = [rebuild_condition(a, function) for a in args]
            return all_of(*parts) if op == "&" else any_of(*parts)
        case _:
            return expr


def rebuild_condition(condition: Expr, function: Callable[[Expr | int], Expr | int]) -> Expr:
    new = function(condition)
    assert isinstance(new, Expr), f"condition {condition} became {new}"
    return new


def substitute(expr: Any, by: Mapping[str, Expr | int]) -> Any:
    """Replace symbols in an expression."""
    if isinstance(expr, int) or expr.symbols.isdisjoint(by):  # most are
        return expr
    if isinstance(expr, Sym):
        return by[expr.name]
    return rebuild(expr, lambda x: substitute(x, by))


def symbols(expr: object) -> frozenset[str]:
    """The dims and bounds that occur in an expression; the empty set for anything else."""
    return expr.symbols if isinstance(expr, Expr) else NONE


def walk(expr: Expr | int) -> Iterator[Expr | int]:
    yield expr
    for c in children(expr):
        yield from walk(c)


def evaluate(expr: Any, env: Env, xp: Any = None) -> Any:
    """The value of `expr`; with an array namespace `xp`, symbols may be arrays or tracers."""
    match expr:
        case int():
            return expr
        case Sym(name=name):
            return env[name]
        case Lin(terms=terms, const=const):
            values = ((evaluate(x, env, xp), k) for x, k in terms)
            total = reduce(operator.add, (v if k == 1 else v * k for v, k in values))
            return total + const if const else total
        case Product(a=a, b=b):
            return evaluate(a, env, xp) * evaluate(b, env, xp)
        case FloorDiv(a=a, n=n):
            return evaluate(a, env, xp) // n
        case Modulo(a=a, n=n):
            return evaluate(a, env, xp) % n
        case Ext(op=op, args=args):
            vals = [evaluate(a, env, xp) for a in args]
            if all(isinstance(v, int) for v in vals):
                return (min if op == "min" else max)(vals)
            return reduce(xp.minimum if op == "min" else xp.maximum, vals)
        case Cmp():
            return _evaluate_comparison(expr, env, xp)
        case _:
            return _evaluate_logic(expr, env, xp)


def _evaluate_comparison(comparison: Cmp, env: Env, xp: Any) -> Any:
    """Compare with arrays moved to the left and numbers to the right, so numbers add up first."""
    sides = ((_terms(comparison.a), 1), (_terms(comparison.b), -1)) if xp is not None else ()
    terms = [(evaluate(x, env, xp), k * sign) for side, sign in sides for x, k in side]
    wide = [(v, k) for v, k in terms if getattr(v, "shape", ())]
    if not wide:
        ends = (evaluate(end, env, xp) for end in (comparison.a, comparison.b))
        return _COMPARE[comparison.op](*ends)
    op, sign = (_TURNED[comparison.op], -1) if wide[0][1] < 0 else (comparison.op, 1)
    left = reduce(operator.add, (v if k == sign else v * (k * sign) for v, k in wide))
    rest = ((v, -k * sign) for v, k in terms if not getattr(v, "shape", ()))
    return _COMPARE[op](left, sum(v if k == 1 else v * k for v, k in rest))


def _evaluate_logic(logic: Any, env: Env, xp: Any) -> Any:
    assert isinstance(logic, Logic), logic
    vals = [evaluate(a, env, xp) for a in logic.args]
    if logic.op == "~":
        return (not vals[0]) if isinstance(vals[0], bool) else ~vals[0]
    both = logic.op == "&"
    return reduce(operator.and_ if both else operator.or_, vals) if vals else both


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: mul,
    ast.FloorDiv: div,
    ast.Mod: mod,
    ast.BitAnd: all_of,
    ast.BitOr: any_of,
}
COMPARISONS: dict[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


_CONSTANT: dict[str, Expr] = {"true": TRUE, "false": FALSE}


def from_ast(tree: ast.expr) -> Any:
    """Convert a Python syntax tree to an expression: the inverse of `str`."""
    match tree:
        case ast.Constant(value=v):
            return v
        case ast.Name(id=name):
            return _CONSTANT.get(name) or Sym(name)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
            try:
                return _BINARY[type(op)](from_ast(a), from_ast(b))
            except (TypeError, ValueError) as why:
                raise SyntaxError(f"not an index expression: {ast.unparse(tree)}: {why}") from None
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return -from_ast(a)
        case ast.UnaryOp(op=ast.Invert(), operand=a):
            return negate(from_ast(a))
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in COMPARISONS:
            return compare(COMPARISONS[type(op)], from_ast(a), from_ast(b))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            return (minimum if name == "min" else maximum)(*map(from_ast, args))
        case _:
            raise SyntaxError(f"not an index expression: {ast.unparse(tree)}")
