"""transpose_inputs: transpose an input once, ahead of a loop that reads one column per step.

    y[t<T]: f32[B] = f(x[0:B,t])    →    turned: f32[T,B] = copy(x[0:B,0:T], labels='ab->ba')
                                         at[t<T]: f32[B] = pick(turned, axis=0, at_=t)
                                         y[t<T]: f32[B] = f(at)

Of an input x[b,t] the elements of one t lie T elements apart, and each is fetched with the line of
memory around it. Turned, they are one run. A copy is held for that: inputs of many bytes stay as
they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from recurra.cost.thresholds import LINE_BYTES, MAX_TURNED_BYTES, MIN_VECTOR_ROWS
from recurra.ir.expr import symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.types import Domain
from recurra.ops.control import Call
from recurra.ops.elementwise import Copy
from recurra.ops.source import Input
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.vectorize.loop_groups import is_static
from recurra.transforms.vectorize.vectorize import candidates, vectorize


def _read_across(
    graph: Graph, source: Node, sizes: Mapping[str, int]
) -> Iterator[tuple[Node, int, tuple[str, ...]]]:
    """The reads, in loops, of many short runs of an input, each with the dims it is a point of."""
    for reader, k in graph.readers[source.name]:
        index = reader.args[k].index
        pairs = list(zip(index, source.domain, strict=True))
        points = tuple(r.dim for e, r in pairs if not isinstance(e, Slice))
        whole = [r for e, r in pairs if isinstance(e, Slice) and e == Slice(r.lo, r.hi)]
        if len(points) + len(whole) != len(pairs) or isinstance(reader.op, Call):
            continue  # to the host rows are handed over as they are
        if prod(r.size(sizes) for r in whole) < MIN_VECTOR_ROWS:
            continue
        loops = [
            i for i, e in enumerate(index) if not isinstance(e, Slice) and symbols(e) - sizes.keys()
        ]
        if not loops or _run_bytes(source, loops[-1] + 1, sizes) >= LINE_BYTES:
            continue
        yield reader, k, points


def _run_bytes(source: Node, first: int, sizes: Mapping[str, int]) -> int:
    """The bytes that lie in one piece behind a point of the dims before `first`."""
    return prod(r.size(sizes) for r in source.domain.ranges[first:]) * source.tensor.nbytes(sizes)


def _may_be_turned(node: Node, sizes: Mapping[str, int]) -> bool:
    """Is it an input of known size, of which a copy may be held?"""
    known = isinstance(node.op, Input) and is_static(node, sizes)
    return known and _run_bytes(node, 0, sizes) <= MAX_TURNED_BYTES


def turned(graph: Graph, source: Node, sizes: Mapping[str, int]) -> Graph | None:
    """The graph with an input turned as its loops read it; None if none reads across it."""
    found: dict[tuple[str, ...], list[tuple[Node, int]]] = {}
    for reader, k, points in _read_across(graph, source, sizes):
        found.setdefault(points, []).append((reader, k))
    given = graph
    for points, reads in found.items():
        g = Rewriting.of(graph, sizes)
        domain = Domain(tuple(r for r in source.domain if r.dim in points))
        every = tuple(r.sym if r.dim in points else Slice(r.lo, r.hi) for r in source.domain)
        whole = Ref(source.name, every)
        part = g.emit(Copy(), (whole,), domain, f"{source.name}_turned", whole=True)
        for reader, k in reads:
            args = list(g[reader.name].args)
            at = tuple(e for e in args[k].index if not isinstance(e, Slice))
            args[k] = replace(args[k], name=part.name, index=at)
            g.put(replace(g[reader.name], args=tuple(args)))
        new: Graph | None = g.graph
        for dim in reversed(domain.dims):
            new = new and _with_first_axis(new, part.name, dim, sizes)
        graph = new or graph
    return graph if graph is not given else None


def _with_first_axis(graph: Graph, name: str, dim: str, sizes: Mapping[str, int]) -> Graph | None:
    """The graph in which one equation has a dim as its first axis, if it can be said."""
    others = graph.nodes.keys() - {name}
    said = name in candidates(graph, dim, sizes, others)
    return vectorize(graph, dim, {name}, sizes) if said else None


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether loops read across inputs, and nothing is to go to slow memory."""
    return cx.offloads is None and any(
        _may_be_turned(n, cx.sizes) and any(True for _ in _read_across(graph, n, cx.sizes))
        for n in graph.nodes.values()
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Turn the inputs that loops read across."""
    for n in list(graph.nodes.values()):
        new = turned(graph, n, cx.sizes) if _may_be_turned(n, cx.sizes) else None
        if new is not None and fuel().burn("an input that loops read across → turned", n.name):
            graph = new
            cx.remark(f"{n.name}: turned, as loops read it")
    return graph


TRANSPOSE_INPUTS = Pass("transpose_inputs", run, applies)
