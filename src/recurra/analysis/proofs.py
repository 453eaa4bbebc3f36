"""Proofs about all points of a graph with known bounds, by search for a counter-example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from recurra.ir.expr import (
    FALSE,
    TRUE,
    Expr,
    Product,
    Sym,
    all_of,
    compare,
    evaluate,
    substitute,
    symbols,
    walk,
)
from recurra.ir.graph import Graph, Index, index_symbols
from recurra.ir.types import Domain
from recurra.polyhedral import isl
from recurra.polyhedral.interval import Box, narrow, span


@dataclass(frozen=True)
class CounterExample:
    """A point, and the values of the bounds, at which a program is wrong."""

    point: Mapping[str, int]
    bounds: Mapping[str, int]

    @cached_property
    def values(self) -> dict[str, int]:
        """The values by name; a bound may have the name of a dim, which takes priority."""
        return {**self.point, **self.bounds, **self.point}

    def at(self, *exprs: Index) -> str:
        """`at t=3, T=4 ` for the dims and bounds that occur in the expressions."""
        named = set[str]().union(*map(index_symbols, exprs))
        parts = [f"{n}={v}" for n, v in self.values.items() if n in named]
        return f"at {', '.join(parts)} " if parts else ""

    def value(self, expr: Any) -> int:
        return evaluate(expr, self.values)


class Unprovable(Exception):
    """The question multiplies two dims: `expr` is not quasi-affine, so isl cannot answer it."""

    def __init__(self, expr: Product):
        self.expr = expr


@dataclass
class Proof:
    """A prover that tries intervals first, then isl, both on expressions with bounds substituted.

    A bound in `open` is any number from 1 to its value there: a variable like a dim.
    """

    graph: Graph
    bounds: Mapping[str, int]
    open: Mapping[str, int] = field(default_factory=dict[str, int])
    _at: dict[Any, Any] = field(default_factory=dict)
    _boxes: dict[Domain, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def at(self, expr: Any) -> Any:
        """Substitute the values of the bounds in `expr`."""
        if type(expr) is int:
            return expr
        if expr not in self._at:
            self._at[expr] = substitute(expr, self.bounds)
        return self._at[expr]

    @property
    def unknown(self) -> dict[str, tuple[int, int]]:
        """The interval of each open bound."""
        return {n: (1, most) for n, most in self.open.items()}

    def box(self, domain: Domain) -> dict[str, tuple[int, int]]:
        """The interval lo <= dim <= hi of every dim, widest over the open bounds."""
        if domain not in self._boxes:
            box: dict[str, tuple[int, int]] = {}
            for r in domain:
                lo, hi = span(self.at(r.lo), self.unknown), span(self.at(r.hi), self.unknown)
                box[r.dim] = (lo[0], hi[1] - 1)
            self._boxes[domain] = box
        return self._boxes[domain]

    def core(self, domain: Domain) -> dict[str, tuple[int, int]]:
        """The interval of every dim whose points exist for all values of the open bounds."""
        if not self.open:
            return self.box(domain)
        return {
            r.dim: (
                span(self.at(r.lo), self.unknown)[1],
                span(self.at(r.hi), self.unknown)[0] - 1,
            )
            for r in domain
        }

    def edges(self, domain: Domain) -> Expr:
        """The condition under which a point of the box of a domain is in the domain."""
        if not self.open:
            return TRUE
        ends = [(r.sym, self.at(r.lo), self.at(r.hi)) for r in domain]
        starts = (compare(">=", d, lo) for d, lo, _ in ends if symbols(lo))
        return all_of(*starts, *(compare("<", d, hi) for d, _, hi in ends if symbols(hi)))

    def example(self, point: Mapping[str, int]) -> CounterExample:
        """Complete a point by the values of all bounds, also of the open ones that it has."""
        return CounterExample(point, {**self.bounds, **{n: point[n] for n in self.open}})

    def first(self, box: Box, where: Expr) -> CounterExample | None:
        """The first point of the box at which `where` holds; all bounds in it must be open."""
        box = {**box, **self.unknown}
        if where == FALSE or any(lo > hi for lo, hi in box.values()) or narrow(box, where) is None:
            return None
        point = {d: lo for d, (lo, _) in box.items()}
        if where == TRUE:
            return self.example(point)
        product = next((x for x in walk(where) if isinstance(x, Product)), None)
        if product is not None:
            raise Unprovable(product)
        named = symbols(where)
        used = [d for d in box if d in named]
        assert len(used) == len(named), f"{where} names {named - set(used)}, which is no dim here"
        canonical: dict[str, Expr | int] = {d: Sym(f"d{k}") for k, d in enumerate(used)}
        found = isl.first(tuple(box[d] for d in used), substitute(where, canonical))
        if found is None:
            return None
        return self.example(point | dict(zip(used, found, strict=True)))

    def first_below(
        self, expr: Expr | int, least: int, box: Box, where: Expr = TRUE
    ) -> CounterExample | None:
        """The first point at which `where` holds and `expr` is less than `least`."""
        expr = self.at(expr)
        if type(expr) is int and expr >= least:
            return None
        small = narrow({**box, **self.unknown}, where)
        if small is None or any(lo > hi for lo, hi in small.values()):
            return None
        if span(expr, small)[0] >= least:
            return None
        return self.first(box, all_of(where, compare("<", expr, least)))

    def first_outside(
        self, lo: Any, hi: Any, least: int, most: Any, box: Box, where: Expr = TRUE
    ) -> CounterExample | None:
        """The first point at which `lo` is less than `least`, or else `hi` more than `most`."""
        return self.first_below(lo, least, box, where) or self.first_below(most - hi, 0, box, where)
