"""Guards: conditions that restrict a statement to the points at which it is demanded.

    for i:  s  e  y        e is demanded at i % 50 == 0:     for i:  s  [i % 50 == 0: e]  y

Host calls, which are effects, happen exactly where a branch takes their results. Everything else
may be computed at all points of its domain, and gets a guard only if it saves more than it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm, prod

import numpy as np

from recurra.analysis.demanded_points import branch_conditions, demanded
from recurra.cost.model import compute_ns
from recurra.cost.thresholds import GUARD_NS, MAX_CONDITION_PERIOD, MAX_GUARDED_SHARE
from recurra.ir.expr import TRUE, Expr, Modulo, evaluate, substitute, symbols, walk
from recurra.ir.graph import Graph
from recurra.ir.types import Domain, is_shift
from recurra.ops.control import Call, Item, Merge
from recurra.polyhedral.boxes import split_boxes
from recurra.polyhedral.extent import longest


def guards(graph: Graph, sizes: Mapping[str, int]) -> Mapping[str, Expr]:
    """Return the condition under which each equation runs, if it does not run everywhere."""
    taken = {} if all(n.op.pure for n in graph.nodes.values()) else branch_conditions(graph)
    out = _of_calls(graph, taken)
    if not any(isinstance(n.op, Merge) for n in graph.nodes.values()):
        return out
    demand = demanded(graph, sizes, taken=taken)
    out = {**_worth(graph, demand, sizes), **out}
    todo = list(out)
    while todo:  # readers of a guarded equation have nothing to read elsewhere
        for r, _ in graph.readers[todo.pop()]:
            if r.name in demand and r.name not in out:
                out[r.name] = demand[r.name]
                todo.append(r.name)
    return out


def _of_calls(graph: Graph, taken: Mapping[str, Expr]) -> dict[str, Expr]:
    """The conditions of host calls, and of the items of their results."""
    calls = {n.name: n.name for n in graph.nodes.values() if isinstance(n.op, Call)}
    items = {n.name: n.args[0].name for n in graph.nodes.values() if isinstance(n.op, Item)}
    return {n: taken[call] for n, call in (calls | items).items() if call in taken}


def _worth(graph: Graph, demand: Mapping[str, Expr], sizes: Mapping[str, int]) -> dict[str, Expr]:
    """The conditions whose guards save more than they cost, over all equations that share one."""
    saved: dict[Expr, float] = {}
    found: dict[str, Expr] = {}
    for name, c in demand.items():
        n = graph[name]
        share = share_of(n.domain.of(symbols(c)), c, sizes)
        if not n.op.pure or isinstance(n.op, Item) or share > MAX_GUARDED_SHARE:
            continue
        dims = n.domain.dims
        last = max((dims.index(d) for d in symbols(c) if d in dims), default=-1)
        inside = prod(longest(n.domain, d, sizes) for d in dims[last + 1 :])
        saved[c] = saved.get(c, 0.0) + (1 - share) * compute_ns(graph, n, sizes) * inside
        found[name] = c
    return {name: c for name, c in found.items() if saved[c] > GUARD_NS}


def share_of(domain: Domain, condition: Expr, sizes: Mapping[str, int]) -> float:
    """The fraction of the points of a domain that satisfy a condition; 1 if unknown."""
    if (symbols(condition) | domain.mentions()) - set(domain.dims) - sizes.keys():
        return 1.0
    every = prod(longest(domain, d, sizes) for d in domain.dims)
    found = 0.0
    for box in split_boxes(domain, condition, sizes):
        points = prod(longest(box.domain, d, sizes) for d in box.domain.dims)
        found += points * _share(box.domain, substitute(box.where, sizes), sizes)
    return min(1.0, found / every) if every else 1.0


def _share(domain: Domain, where: Expr, sizes: Mapping[str, int]) -> float:
    """The fraction of points that satisfy a condition periodic in one dim; 1 for others."""
    dims = symbols(where)
    if where == TRUE or len(dims) != 1:
        return 1.0
    (dim,) = dims
    periods = [e.n for e in walk(where) if isinstance(e, Modulo) and is_shift(e.a, dim) is not None]
    period = lcm(*periods)
    if not periods or period > MAX_CONDITION_PERIOD:
        return 1.0
    points = evaluate(domain[dim].lo, sizes) + np.arange(period)
    return float(np.mean(evaluate(where, {dim: points}, np)))
