"""Programs whose draws and data the caller gives: inputs in the place of their sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recurra.analysis.graph_builder import GraphBuilder
from recurra.compiler.bounds import bounded
from recurra.compiler.options import CompileOptions
from recurra.frontend.context import Context
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.types import Domain, Type
from recurra.ops.control import Item
from recurra.ops.elementwise import Square
from recurra.ops.indexing import Pick
from recurra.ops.random import Uniform
from recurra.ops.reduction import Sum
from recurra.ops.source import Const, Data, Input
from recurra.reference import interpreter
from recurra.reference.equivalence import with_stubs
from recurra.runtime.executable import Executable


@dataclass
class Equations(GraphBuilder):
    """A program that is written already."""

    made: Graph = field(default_factory=lambda: Graph({}, ()))

    def graph(self, keep: Collection[str] = ()) -> Graph:
        return self.made


@dataclass(frozen=True)
class Given:
    """A program, the arrays that it is run with, and what the interpreter makes of them."""

    builder: Equations
    sizes: Mapping[str, int]
    inputs: Mapping[str, np.ndarray]
    want: Mapping[str, np.ndarray]

    def compiled(self, **options: Any) -> Executable:
        return Executable(self.builder, self.sizes, CompileOptions.from_keywords(options))


def with_inputs(ctx: Context, bounds: Mapping[Any, Any]) -> Given:
    """The program of a context with inputs in the place of random draws, arrays, constants over a
    domain and rows that host calls gave.

    Host calls are stood in for. Every input is summed besides, and its squares: in tiles, where a
    loop of others goes along its dims.
    """
    given = bounded(ctx.builder, {str(k): n for k, n in bounds.items()})
    graph, sizes = with_stubs(given.graph, given.sizes), given.sizes
    found = [n for n in graph.nodes.values() if _is_source(graph, n, sizes)]
    values = interpreter.run(Graph(graph.nodes, tuple(n.name for n in found), graph.dims), sizes)
    nodes = {**graph.nodes, **{n.name: _input(n) for n in found}}
    more = [x for n in found for x in _totals(n)]
    nodes |= {n.name: n for n in more}
    logs = {**given.logs, **{n.name: n.name for n in more if isinstance(n.op, Sum)}}
    graph = Graph(nodes, tuple(dict.fromkeys(logs.values())), graph.dims).live()
    want = interpreter.run(graph, sizes, values)
    builder = Equations(dims=list(graph.dims), nodes=dict(graph.nodes), logs=logs, made=graph)
    return Given(builder, sizes, values, {name: want[o] for name, o in logs.items()})


def _is_source(graph: Graph, n: Node, sizes: Mapping[str, int]) -> bool:
    """Is it drawn, an array, or a row of what a host call gave, and of a known size?"""
    called = isinstance(n.op, Pick) and isinstance(graph[n.args[0].name].op, Item)
    drawn = isinstance(n.op, (Uniform, Data)) or (isinstance(n.op, Const) and len(n.domain) > 0)
    drawn = drawn or called
    fixed = not any(r.mentions() - sizes.keys() for r in n.domain)
    return drawn and fixed and isinstance(n.type, Type) and not n.type.mentions()


def _input(n: Node) -> Node:
    assert isinstance(n.type, Type)
    return replace(n, op=Input(dtype=n.type.dtype, shape=n.type.shape), args=())


def _totals(n: Node) -> list[Node]:
    """The sum of an input, and that of its squares, where these are floats over a domain."""
    if not isinstance(n.type, Type) or n.type.dtype != "f32" or not len(n.domain):
        return []
    square = Node(f"{n.name}²", Square(), (Ref(n.name, n.domain.identity),), n.domain, n.type)
    return [_total(n), square, _total(square)]


def _total(n: Node) -> Node:
    every = Ref(n.name, tuple(Slice(r.lo, r.hi) for r in n.domain))
    over = Sum(axes=tuple(range(len(n.domain))))
    return Node(f"total of {n.name}", over, (every,), Domain(()), n.type)
