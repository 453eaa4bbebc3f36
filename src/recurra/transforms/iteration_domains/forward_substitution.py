"""forward_substitution: compute a value of which few points are read where it is read.

    u[i<I,j<J] = f(x[i], y[j])            u_2[j<J] = f(x[0], y[j]);  u_3[i<I] = f(x[i], y[0])
    a[j<J] = g(u[0,j])               →    a[j<J] = g(u_2)
    b[i<I] = h(u[i,0])                    b[i<I] = h(u_3)

The points of an equation are a box. One row and one column of a table are in no box but the whole
of it (forward expression substitution: Allen and Kennedy, 2002, chapter 4). Only values computed
from inputs and constants are moved: those that a loop computes would have to be stored.
"""

from __future__ import annotations

from collections.abc import Mapping

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

FaceRead = tuple[Node, int, Domain]  # the reader, the number of its operand, the points it reads


def _face_reads(graph: Graph, node: Node, sizes: Mapping[str, int]) -> list[FaceRead] | None:
    """The reads of an equation, each with its box of points; None if one is unknown."""
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
    """The number of points of a box; None if unknown."""
    return None if domain.mentions() - sizes.keys() else domain.points(sizes)


def _is_movable(node: Node) -> bool:
    """Tell whether an equation computes the same from its operands at whatever point it runs."""
    computed = isinstance(node.op, (Elementwise, Reduction, Einsum)) and node.op.pure
    return computed and not node.op.mentions() and isinstance(node.type, Type)


def _is_of_inputs(graph: Graph, name: str) -> bool:
    """Tell whether an equation is computed from inputs and constants alone."""
    todo, seen = [name], {name}
    while todo:
        node = graph[todo.pop()]
        if isinstance(node.op, (Input, Const)):
            continue
        if not _is_movable(node):
            return False
        more = {a.name for a in node.args} - seen
        todo += more
        seen |= more
    return True


def few_reads(graph: Graph, node: Node, sizes: Mapping[str, int]) -> list[FaceRead]:
    """The reads of an equation, if few of its points are read, and readers can compute these."""
    if not node.domain or not _is_movable(node) or node.name in graph.outputs:
        return []
    reads, points = _face_reads(graph, node, sizes), _points(node.domain, sizes)
    if not reads or points is None:
        return []
    counts = [_points(domain, sizes) for _, _, domain in reads]
    total = sum(n for n in counts if n is not None)
    if None in counts or total * MIN_PREFIX_RATIO > points or not _is_of_inputs(graph, node.name):
        return []
    composed = (compose(r.args[k], node.domain, a) for r, k, _ in reads for a in node.args)
    return reads if all(ref is not None for ref in composed) else []


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether few points of an equation are read."""
    return any(few_reads(graph, n, cx.sizes) for n in graph.nodes.values())


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Compute an equation of which few points are read where they are read."""
    for name in reversed(list(graph.nodes)):
        reads = few_reads(graph, graph[name], cx.sizes) if name in graph.nodes else []
        if not reads or not fuel().burn("points that few read → where they are read", name):
            continue
        g, node = Rewriting.of(graph, cx.sizes), graph[name]
        g.loc = node.loc
        for reader, k, domain in reads:
            now = g[reader.name]
            args = [ref for a in node.args if (ref := compose(now.args[k], node.domain, a))]
            g.put(now.with_operand(k, g.emit(node.op, args, domain, name)))
        graph = g.graph.live()
        cx.remark(f"{name}: computed where it is read, at few of its points")
    return graph


FORWARD_SUBSTITUTION = Pass("forward_substitution", run, applies)
