"""forward_substitution: what is read at few of its points is computed where it is read.

    u[i<I,j<J] = f(x[i], y[j])            u_2[j<J] = f(x[0], y[j]);  u_3[i<I] = f(x[i], y[0])
    a[j<J] = g(u[0,j])               →    a[j<J] = g(u_2)
    b[i<I] = h(u[i,0])                    b[i<I] = h(u_3)

An equation has a box of points. One row and one column of a table are in no box but the whole of it
(forward expression substitution: Allen and Kennedy, 2002, chapter 4). What is given from the
beginning can be read anywhere; what a loop makes would have to be held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recurra.cost.thresholds import MIN_PREFIX_RATIO
from recurra.ir.expr import TRUE
from recurra.ir.graph import Graph, Node, index_symbols, merge_condition
from recurra.ir.op import Elementwise
from recurra.ir.types import Domain, Type
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Reduction
from recurra.ops.source import Const, Input
from recurra.polyhedral.boxes import split_boxes
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting, compose

FaceRead = tuple[Node, int, Domain]  # the reader, which of its operands, and where it reads


def _where_read(graph: Graph, node: Node, sizes: Mapping[str, int]) -> list[FaceRead] | None:
    """The reads of an equation, each with the box of points at which it is made; None: unknown."""
    out: list[FaceRead] = []
    for reader, k in graph.readers[node.name]:
        ref = reader.args[k]
        mentioned = {d for e in ref.index for d in index_symbols(e)} - sizes.keys()
        if ref.slices or not mentioned <= set(reader.domain.dims):
            return None
        boxes = split_boxes(reader.domain, merge_condition(reader, k) or TRUE, sizes)
        if len(boxes) != 1 or boxes[0].where != TRUE:
            return None
        out.append((reader, k, boxes[0].domain.of(mentioned)))
    return out


def _points(domain: Domain, sizes: Mapping[str, int]) -> int | None:
    """The points of a box of known size."""
    return None if domain.mentions() - sizes.keys() else domain.points(sizes)


def _is_computed(node: Node) -> bool:
    """Is it computed of nothing but what it reads, wherever its point is?"""
    computed = isinstance(node.op, (Elementwise, Reduction, Einsum)) and node.op.pure
    return computed and not node.op.mentions() and isinstance(node.type, Type)


def _is_of_givens(graph: Graph, name: str) -> bool:
    """Is all that an equation is computed of given from the beginning?

    What a loop makes would be held for another place.
    """
    todo, seen = [name], {name}
    while todo:
        node = graph[todo.pop()]
        if isinstance(node.op, (Input, Const)):
            continue
        if not _is_computed(node):
            return False
        more = {a.name for a in node.args} - seen
        todo += more
        seen |= more
    return True


def few_reads(graph: Graph, node: Node, sizes: Mapping[str, int]) -> list[FaceRead]:
    """The reads of an equation, if they are at few of its points, and it can be computed there."""
    if not node.domain or not _is_computed(node) or node.name in graph.outputs:
        return []
    reads, points = _where_read(graph, node, sizes), _points(node.domain, sizes)
    if not reads or points is None:
        return []
    counts = [_points(domain, sizes) for _, _, domain in reads]
    asked = sum(n for n in counts if n is not None)
    if None in counts or asked * MIN_PREFIX_RATIO > points or not _is_of_givens(graph, node.name):
        return []
    composed = (compose(r.args[k], node.domain, a) for r, k, _ in reads for a in node.args)
    return reads if all(ref is not None for ref in composed) else []


def substituted(
    graph: Graph, node: Node, reads: Sequence[FaceRead], sizes: Mapping[str, int]
) -> Graph:
    """The graph in which an equation is computed where it is read."""
    g = Rewriting.of(graph, sizes)
    for reader, k, domain in reads:
        now = g[reader.name]
        args = [ref for a in node.args if (ref := compose(now.args[k], node.domain, a))]
        g.loc = node.loc
        made = g.emit(node.op, args, domain, node.name)
        g.put(now.with_operand(k, made))
    return g.graph.live()


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether an equation is read at few of its points."""
    return any(few_reads(graph, n, cx.sizes) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Compute what is read at few of its points where it is read."""
    for name in reversed(list(graph.nodes)):
        reads = few_reads(graph, graph[name], cx.sizes) if name in graph.nodes else []
        if reads and fuel().burn("points that few read → where they are read", name):
            graph = substituted(graph, graph[name], reads, cx.sizes)
            cx.remark(f"{name}: computed where it is read, at few of its points")
    return graph


FORWARD_SUBSTITUTION = Pass("forward_substitution", run, applies)
