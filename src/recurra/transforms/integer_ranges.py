"""Find the range of the elements of an integer tensor, for any bounds and data.

argmax(x: f32[8])               →   0..7
min(where(c, a, 3)), a in 0..2  →   0..3
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

import numpy as np

from recurra.cost.thresholds import MAX_EXAMINED_ELEMENTS, MAX_POSITION_DEPTH
from recurra.ir.expr import symbols
from recurra.ir.graph import Node, Ref
from recurra.ir.types import NUMPY_NAME, Type, is_float
from recurra.ops import elementwise as el
from recurra.ops.indexing import ArgSort, OneHot, Pick, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Reshape, Transpose
from recurra.ops.ordering import TopK
from recurra.ops.permutation import Permutation
from recurra.ops.reduction import ArgMax, Max, Min
from recurra.ops.source import Const, Data, Value
from recurra.polyhedral.interval import span
from recurra.transforms.rewriter.rewriting import Rewriting

Extremes = tuple[float, float]
ANY: Extremes = (-inf, inf)
POSITIONS = (ArgMax, ArgSort, TopK, Permutation)


def extremes(graph: Rewriting, read: Ref, depth: int = MAX_POSITION_DEPTH) -> Extremes:
    """Return the least and the greatest value of an element; infinite where unknown."""
    n = graph[read.name]
    if not isinstance(n.type, Type) or not depth or is_float(n.type.dtype):
        return ANY
    if n.type.dtype == "bool" or isinstance(n.op, OneHot):
        return (0, 1)
    if isinstance(n.op, POSITIONS):
        return _positions(graph, n)
    if isinstance(n.op, (Const, Data, Value)):
        return _of_numbers(n)
    return _of_operands(n, lambda k: extremes(graph, n.args[k], depth - 1))


def _positions(graph: Rewriting, node: Node) -> Extremes:
    """The extremes of positions along axes."""
    match node.op:
        case ArgMax(axes=axes):
            sizes = [graph.type(node.args[0]).shape[k] for k in axes]
        case ArgSort(axis=axis) | TopK(axis=axis):
            sizes = [graph.type(node.args[0]).shape[axis]]
        case Permutation(size=size):
            sizes = [size]
        case _:
            return ANY
    known = [size for size in sizes if isinstance(size, int)]
    return (0, prod(known) - 1) if len(known) == len(sizes) else (0, inf)


def _of_numbers(node: Node) -> Extremes:
    """The extremes of constants, and of an expression of dims with known ends."""
    match node.op:
        case Const(value=x):
            return (int(x), int(x))
        case Data(key=key) if 0 < key.get().size <= MAX_EXAMINED_ELEMENTS:
            return (int(key.get().min()), int(key.get().max()))
        case Value(expr=e, bind=bind):
            ends = {r.dim: (r.lo, r.hi) for r in node.domain} | {
                d: (0, size) for d, size, _ in bind
            }
            box = {
                d: (lo, hi - 1)
                for d, (lo, hi) in ends.items()
                if isinstance(lo, int) and isinstance(hi, int)
            }
            return span(e, box) if symbols(e) <= box.keys() else ANY
        case _:
            return ANY


def _of_operands(node: Node, of: Callable[[int], Extremes]) -> Extremes:
    """The extremes of a result, from those `of` each operand."""
    match node.op:
        case el.Where():
            return _union(of(1), of(2))
        case el.Maximum() | el.Minimum() as op:
            (a, b), pick = (of(0), of(1)), max if isinstance(op, el.Maximum) else min
            return pick(a[0], b[0]), pick(a[1], b[1])
        case Concat():
            return _union(*map(of, range(len(node.args))))
        case el.Cast(to=to):  # an integer that does not fit wraps around, a float may be any
            (lo, hi), info = of(0), np.iinfo(NUMPY_NAME[to])
            return (lo, hi) if info.min <= lo and hi <= info.max else ANY
        case Pick(zero=False) | Take() | Max() | Min():
            return of(0)
        case Cut() | Expand() | Flip() | Reshape() | Transpose():
            return of(0)
        case _:
            return ANY


def _union(*parts: Extremes) -> Extremes:
    return min(lo for lo, _ in parts), max(hi for _, hi in parts)
