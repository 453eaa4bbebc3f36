"""The bounds of a program: their names, and the check of the numbers given for them."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from recurra.analysis import diagnostics
from recurra.errors import here
from recurra.ir.expr import Sym, symbols
from recurra.ir.graph import Graph, index_symbols
from recurra.ir.types import Tuple


def known_bounds(graph: Graph, bounds: Mapping[str, int]) -> dict[str, int]:
    """Return the bounds in the graph's order; raise DomainError unless each is an integer >= 1.

    A missing or an unknown bound raises as well.
    """
    names = bounds_of(graph)
    missing = [n for n in names if n not in bounds]
    unknown = [str(n) for n in bounds if n not in names]
    if missing or unknown:
        raise diagnostics.bounds_error(names, bounds, missing, unknown, here())
    out: dict[str, int] = {}
    for n in names:
        try:
            out[n] = -1 if isinstance(bounds[n], bool) else operator.index(bounds[n])
        except TypeError:
            out[n] = -1
        if out[n] < 1:
            raise diagnostics.bad_bound(n, bounds[n], here())
    return out


def bounds_of(graph: Graph) -> tuple[str, ...]:
    """All symbols that are no dims: the bounds of the dims in their order, then the others."""
    dims = set(graph.declared)
    found = [s for d in graph.dims for s in sorted(d.range.mentions())]
    rest: set[str] = set()
    for domain in {n.domain for n in graph.nodes.values()}:
        dims |= set(domain.dims)
        rest = rest.union(*(symbols(e) for r in domain for e in (r.lo, r.hi)))
    for n in graph.nodes.values():
        dims |= {b[0] for b in getattr(n.op, "bind", ())}
        types = n.type.items if isinstance(n.type, Tuple) else (n.type,)
        rest |= n.op.mentions()
        rest = rest.union(*(symbols(e) for t in types for e in t.shape if type(e) is not int))
        rest = rest.union(
            *(index_symbols(e) for a in n.args for e in a.index if type(e) is not Sym)
        )
    return tuple(dict.fromkeys([*found, *sorted(rest - dims)]))
