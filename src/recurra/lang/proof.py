"""Questions about all points of a graph with known bounds; the answer is the first exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recurra.ir.expr import FALSE, TRUE, Expr, Prod, Sym, both, compare, substitute, symbols, walk
from recurra.ir.graph import Graph
from recurra.ir.types import Domain
from recurra.sets import isl
from recurra.sets.interval import Box, narrow, span

Point = dict[str, int]


class Unprovable(Exception):
    """The question multiplies two dims: `expr` is not quasi-affine, so isl cannot answer it."""

    def __init__(self, expr: Prod):
        self.expr = expr


@dataclass
class Proof:
    """Intervals answer first, then isl; both on expressions without bounds."""

    graph: Graph
    bounds: Mapping[str, int]
    _at: dict[Any, Any] = field(default_factory=dict)
    _boxes: dict[Domain, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def at(self, e: Any) -> Any:
        """`e` with the bounds replaced by their values."""
        if type(e) is int:
            return e
        if e not in self._at:
            self._at[e] = substitute(e, self.bounds)
        return self._at[e]

    def box(self, domain: Domain) -> dict[str, tuple[int, int]]:
        """lo <= dim <= hi of every dim."""
        if domain not in self._boxes:
            box: dict[str, tuple[int, int]] = {}
            for r in domain:
                lo, hi = self.at(r.lo), self.at(r.hi)
                assert type(lo) is int, f"{domain} is no box"
                assert type(hi) is int, f"{domain} is no box"
                box[r.dim] = (lo, hi - 1)
            self._boxes[domain] = box
        return self._boxes[domain]

    def first(self, box: Box, where: Expr) -> Point | None:
        """The first point of the box at which `where` holds; it names no bounds."""
        if where == FALSE or any(lo > hi for lo, hi in box.values()) or narrow(box, where) is None:
            return None
        point = {d: lo for d, (lo, _) in box.items()}
        if where == TRUE:
            return point
        product = next((x for x in walk(where) if isinstance(x, Prod)), None)
        if product is not None:
            raise Unprovable(product)
        named = symbols(where)
        used = [d for d in box if d in named]
        assert len(used) == len(named), f"{where} names {named - set(used)}, which is no dim here"
        canonical: dict[str, Expr | int] = {d: Sym(f"d{k}") for k, d in enumerate(used)}
        found = isl.first(tuple(box[d] for d in used), substitute(where, canonical))
        return None if found is None else point | dict(zip(used, found, strict=True))

    def below(self, e: Expr | int, least: int, box: Box, where: Expr = TRUE) -> Point | None:
        """The first point where `e` is less than `least`, of those where `where` holds."""
        e = self.at(e)
        if type(e) is int and e >= least:
            return None
        small = narrow(box, where)
        if small is None or any(lo > hi for lo, hi in small.values()) or span(e, small)[0] >= least:
            return None
        return self.first(box, both(where, compare("<", e, least)))
