"""Symbolic sizes as JAX writes them, and back: f32[B, t+1] ↔ float32[B, n].

JAX traces a function once for all sizes (jax.export.symbolic_shape), and infers those of its
results.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from functools import reduce
from itertools import count
from typing import Any

import jax
import numpy as np
from jax import export

from recurra.errors import ShapeError
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.types import NUMPY_NAME, Type

_SYMBOLIC: type = type(export.symbolic_shape("n")[0])
_WORDS = {"max", "min", "mod", "floordiv", "non_negative"}  # of JAX's own text of a size


class Sizes:
    """The sizes of some operands as symbolic dimensions of JAX.

    JAX takes a variable to be 1 or more, as bounds are. A size made of dims is one variable, n:
    from t+1 JAX would conclude t >= 1.
    """

    def __init__(self, types: Sequence[Type], dims: Collection[str] = ()):
        self.dims = set(dims)
        found = [e for x in types for e in x.shape if isinstance(e, Expr)]
        self.atoms = list(dict.fromkeys(a for e in found for a in self._parts(e)))
        names = self._names()
        scope = export.SymbolicScope()
        variables = export.symbolic_shape(", ".join(names), scope=scope) if names else ()
        self.theirs = dict(zip(self.atoms, variables, strict=True))
        self.ours = dict(zip(names, self.atoms, strict=True))

    def _parts(self, expr: Expr) -> list[Expr]:
        """The variables of a size."""
        if isinstance(expr, (ex.Lin, ex.Product)) and not ex.symbols(expr) & self.dims:
            return [a for x in ex.children(expr) if isinstance(x, Expr) for a in self._parts(x)]
        return [expr]

    def _names(self) -> list[str]:
        """Names of the variables: a bound keeps its own, others are n1, n2, .. where free."""
        own = {str(a) for a in self.atoms if isinstance(a, ex.Sym) and a.name.isascii()} - _WORDS
        free = (n for k in count(1) if (n := f"n{k}") not in own)
        return [str(a) if str(a) in own else next(free) for a in self.atoms]

    def to_jax(self, expr: Expr | int) -> Any:
        """Convert a size to JAX's."""
        if isinstance(expr, int) or expr in self.theirs:
            return expr if isinstance(expr, int) else self.theirs[expr]
        if isinstance(expr, ex.Product):
            return self.to_jax(expr.a) * self.to_jax(expr.b)
        assert isinstance(expr, ex.Lin), expr
        return sum((self.to_jax(x) * k for x, k in expr.terms), expr.const)

    def avals(self, types: Sequence[Type]) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct(tuple(map(self.to_jax, x.shape)), NUMPY_NAME[x.dtype])
            for x in types
        ]

    def from_jax(self, size: Any) -> Any:
        """Convert the sizes in a shape, or in a primitive's parameters, to ours; keep all else."""
        if type(size) in (tuple, list):
            return type(size)(map(self.from_jax, size))
        if not isinstance(size, _SYMBOLIC):  # a number
            return int(size) if isinstance(size, np.integer) else size
        return self._read(ast.parse(str(size).replace("^", "**"), mode="eval").body, size)

    def _read(self, tree: ast.expr, whole: Any) -> Expr | int:
        """Parse JAX's text of a size, `floordiv(B + 1, 2)*n`, into an expression."""
        match tree:
            case ast.Constant(value=int() as n):
                return n
            case ast.Name(id=name):
                return self.ours[name]
            case ast.UnaryOp(op=ast.USub(), operand=a):
                return -self._read(a, whole)
            case ast.BinOp(left=a, op=ast.Pow(), right=ast.Constant(value=int() as n)):
                return reduce(ex.mul, [self._read(a, whole)] * n)
            case ast.BinOp(left=a, op=op, right=b):
                x, y = self._read(a, whole), self._read(b, whole)
                if isinstance(op, ast.Mult):
                    return ex.mul(x, y)
                return ex.lin([(x, 1), (y, -1 if isinstance(op, ast.Sub) else 1)])
            case ast.Call(func=ast.Name(id=name), args=args):
                values = [self._read(a, whole) for a in args]
                if name in ("max", "min"):
                    return (ex.maximum if name == "max" else ex.minimum)(*values)
                a, *rest = values
                if rest and isinstance(rest[0], int):
                    return (ex.div if name == "floordiv" else ex.mod)(a, rest[0])
            case _:
                pass
        raise ShapeError.at_user_line(
            f"an axis of size {whole} comes out of a function of jax",
            facts="sizes are sums, products, min, max, and // and % by numbers, of bounds and dims",
            hint="reshape or cut to another size, or read a range of a size that is a number",
        )
