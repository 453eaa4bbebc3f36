"""Laws of cumulative sums: those of nonnegative numbers ascend, so that binary search applies.

    c = cumsum(w)   s = sum(cast(c < v))     →     s = searchsorted(c, v)        if w >= 0

Samples, particles and experiences are drawn by weight so. The result is as exact as the sums:
rounding may leave two neighbors out of order by their last bit.
"""

from __future__ import annotations

from dataclasses import replace

from recurra.cost.thresholds import MIN_SEARCHED_ELEMENTS
from recurra.ir.expr import evaluate
from recurra.ir.graph import Node, Ref
from recurra.ir.op import Op
from recurra.ir.types import is_float
from recurra.ops import elementwise as el
from recurra.ops.control import Merge
from recurra.ops.indexing import OneHot, Pick, Place, SearchSorted, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Reshape, Transpose
from recurra.ops.ordering import CumMax, Scatter, Sort
from recurra.ops.random import Uniform
from recurra.ops.reduction import Max, Min, Prod, Sum
from recurra.ops.scan import CumProd, CumSum
from recurra.ops.softmax import Softmax
from recurra.ops.source import Const
from recurra.transforms.rewriter.pattern_rewriter import rule
from recurra.transforms.rewriter.rewriting import Rewriting

NEVER_NEGATIVE = (el.Exp, el.Square, el.Abs, el.Sqrt, el.Logistic, OneHot, Softmax, Uniform)
KEEPING = (  # negative only where an operand is
    *(el.Add, el.Mul, el.Div, el.Minimum, el.Pow, el.Copy, el.Detach, el.Cast, el.Floor, el.Round),
    *(Concat, Cut, Expand, Flip, Merge, Pick, Place, Reshape, Transpose),
    *(CumMax, CumProd, CumSum, Max, Min, Prod, Sort, Sum),
)
VALUES: dict[type[Op], tuple[int, ...]] = {  # the operands whose elements are in the result
    el.Where: (1, 2),
    Take: (0,),
    Scatter: (0, 2),
}


def is_nonnegative(graph: Rewriting, ref: Ref) -> bool:
    """Tell whether all elements that are read are >= 0; reads of the past are by induction."""
    seen, todo = set[str](), [ref.name]
    while todo:
        node = graph[todo.pop()]
        if node.name in seen or isinstance(node.op, NEVER_NEGATIVE):
            continue
        seen.add(node.name)
        if node.tensor.dtype == "bool" or (isinstance(node.op, Const) and node.op.value >= 0):
            continue
        operands = VALUES.get(type(node.op), range(len(node.args)))
        if not is_float(node.tensor.dtype) or not isinstance(node.op, (*KEEPING, *VALUES)):
            return False  # an integer may have wrapped around
        todo += [node.args[k].name for k in operands]
    return True


@rule(Sum)
def count_below(node: Node, graph: Rewriting) -> Node | None:
    """Σₖ (cumsum(w)ₖ < v) → searchsorted(cumsum(w), v), where no w is negative"""
    cast = graph.producer(node.args[0], el.Cast)
    less = cast and graph.producer(cast.args[0], el.Comparison)
    if cast is None or less is None or not isinstance(less.op, (el.Less, el.LessEqual)):
        return None
    sums = graph.producer(less.args[0], CumSum)
    if sums is None or graph.labels(cast)[0] != (graph.labels(cast)[1],):
        return None
    assert isinstance(sums.op, CumSum)
    assert isinstance(node.op, Sum)
    (of, values), out = graph.labels(less)
    axis, size = of[sums.op.axis], sums.tensor.shape[sums.op.axis]
    if [out[k] for k in node.op.axes] != [axis] or axis in values or sums.op.reverse:
        return None
    varying = {x for a in less.args for x in graph.type(a).mentions()} - graph.sizes.keys()
    if varying or node.tensor.dtype != "i32":
        return None
    long = evaluate(size, graph.sizes) >= MIN_SEARCHED_ELEMENTS
    if not long or not is_nonnegative(graph, sums.args[0]):
        return None
    labels = f"{of},{values}->{out.replace(axis, '')}"
    op = SearchSorted(labels=labels, axis=axis, equal=isinstance(less.op, el.LessEqual))
    return replace(node, op=op, args=less.args)


SEARCHES = (count_below,)
