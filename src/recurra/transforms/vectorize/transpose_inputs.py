"""transpose_inputs: transpose an input once, ahead of a loop that reads one column per step.

    y[t<T]: f32[B] = f(x[0:B,t])    →    turned: f32[T,B] = copy(x[0:B,0:T], labels='ab->ba')
                                         at[t<T]: f32[B] = pick(turned, axis=0, at_=t)
                                         y[t<T]: f32[B] = f(at)

The elements of x[b,t] for one t lie T elements apart, and each is fetched with the cache line
around it. Transposed, they are contiguous. The copy takes memory: large inputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from recurra.cost.thresholds import LINE_BYTES, MAX_TURNED_BYTES, MIN_VECTOR_ROWS
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ops.control import Call
from recurra.ops.elementwise import Copy
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.loop_groups import is_static
from recurra.transforms.vectorize.vectorize import candidates, vectorize


def _strided_reads(
    graph: Graph, source: Node, sizes: Mapping[str, int]
) -> Iterator[tuple[Node, int, tuple[str, ...]]]:
    """Yield (reader, operand, dims read at points) for reads in loops of many short runs."""
    if not isinstance(source.op, Input) or not is_static(source, sizes):
        return
    if _run_bytes(source, 0, sizes) > MAX_TURNED_BYTES:
        return
    for reader, k in graph.readers[source.name]:
        index = reader.args[k].index
        pairs = list(zip(index, source.domain, strict=True))
        points = tuple(r.dim for e, r in pairs if not isinstance(e, Slice))
        whole = [r for e, r in pairs if isinstance(e, Slice) and e == Slice(r.lo, r.hi)]
        if len(points) + len(whole) != len(pairs) or isinstance(reader.op, Call):
            continue  # the host gets rows as they are
        if prod(r.size(sizes) for r in whole) < MIN_VECTOR_ROWS:
            continue
        loops = [
            i for i, e in enumerate(index) if not isinstance(e, Slice) and symbols(e) - sizes.keys()
        ]
        if loops and _run_bytes(source, loops[-1] + 1, sizes) < LINE_BYTES:
            yield reader, k, points


def _run_bytes(source: Node, first: int, sizes: Mapping[str, int]) -> int:
    """The contiguous bytes at a point of the dims before number `first`."""
    return prod(r.size(sizes) for r in source.domain.ranges[first:]) * source.tensor.nbytes(sizes)


def transpose_input(graph: Graph, source: Node, sizes: Mapping[str, int]) -> Graph | None:
    """Return the graph with an input transposed for the loops that read it; None if it stays."""
    found: dict[tuple[str, ...], list[tuple[Node, int]]] = {}
    for reader, k, points in _strided_reads(graph, source, sizes):
        found.setdefault(points, []).append((reader, k))
    before = graph
    for points, reads in found.items():
        g = Rewriting.of(graph, sizes)
        domain = source.domain.of(points)
        every = tuple(r.sym if r.dim in points else Slice(r.lo, r.hi) for r in source.domain)
        whole = Ref(source.name, every)
        part = g.emit(Copy(), (whole,), domain, f"{source.name}_turned", whole=True)
        for reader, k in reads:
            ref = reader.args[k]
            at = tuple(e for e in ref.index if not isinstance(e, Slice))
            g.put(g[reader.name].with_operand(k, replace(ref, name=part.name, index=at)))
        new: Graph | None = g.graph
        for dim in reversed(domain.dims):
            new = new and _with_first_axis(new, part.name, dim, sizes)
        graph = new or graph
    return graph if graph is not before else None


def _with_first_axis(graph: Graph, name: str, dim: str, sizes: Mapping[str, int]) -> Graph | None:
    """The graph in which one equation has a dim as its first axis; None if it cannot."""
    others = graph.nodes.keys() - {name}
    can = name in candidates(graph, dim, sizes, others)
    return vectorize(graph, dim, {name}, sizes) if can else None


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops read columns of inputs, and nothing is to go to slow memory."""
    return cx.offloads is None and any(
        True for n in graph.nodes.values() for _ in _strided_reads(graph, n, cx.sizes)
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Transpose inputs whose columns loops read one by one."""
    for n in list(graph.nodes.values()):
        new = transpose_input(graph, n, cx.sizes)
        if new is not None and fuel().burn("an input that loops read across → turned", n.name):
            graph = new
            cx.remark(f"{n.name}: turned, as loops read it")
    return graph


TRANSPOSE_INPUTS = Pass("transpose_inputs", run, applies)
