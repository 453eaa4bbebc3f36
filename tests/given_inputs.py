"""Programs whose draws and data the caller gives: inputs in the place of their sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recurra import interp
from recurra.agreement import stood_in
from recurra.compiler.bounds import bounded
from recurra.compiler.options import CompileOptions
from recurra.executable import Executable
from recurra.ir.graph import Graph, Node
from recurra.ir.types import Type
from recurra.lang.tracer import Tracer
from recurra.ops.source import Const, Data, Input, Uniform
from recurra.session import Context


@dataclass
class Equations(Tracer):
    """A program that is written already."""

    made: Graph = field(default_factory=lambda: Graph({}, ()))

    def graph(self, keep: Collection[str] = ()) -> Graph:
        return self.made


@dataclass(frozen=True)
class Given:
    """A program, the arrays that it is run with, and what the interpreter makes of them."""

    tracer: Equations
    sizes: Mapping[str, int]
    inputs: Mapping[str, np.ndarray]
    want: Mapping[str, np.ndarray]

    def compiled(self, **options: Any) -> Executable:
        return Executable(self.tracer, self.sizes, CompileOptions.of(options))


def with_inputs(ctx: Context, bounds: Mapping[Any, Any]) -> Given:
    """The program of a context with inputs in the place of random draws, arrays and constants over
    a domain, and stand-ins for what it calls on the host."""
    given = bounded(ctx.tracer, {str(k): n for k, n in bounds.items()})
    graph, sizes = stood_in(given.graph, given.sizes), given.sizes
    found = [n for n in graph.nodes.values() if _is_source(n, sizes)]
    values = interp.run(Graph(graph.nodes, tuple(n.name for n in found), graph.dims), sizes)
    nodes = {**graph.nodes, **{n.name: _input(n) for n in found}}
    graph = Graph(nodes, graph.outputs, graph.dims)
    want = interp.run(graph, sizes, values)
    tracer = Equations(dims=list(graph.dims), nodes=nodes, logs=given.logs, made=graph)
    return Given(tracer, sizes, values, {name: want[o] for name, o in given.logs.items()})


def _is_source(n: Node, sizes: Mapping[str, int]) -> bool:
    """Is it made of nothing, the same in every run, and of a known size?"""
    drawn = isinstance(n.op, (Uniform, Data)) or (isinstance(n.op, Const) and len(n.domain) > 0)
    fixed = not any(r.mentions() - sizes.keys() for r in n.domain)
    return drawn and fixed and isinstance(n.type, Type) and not n.type.mentions()


def _input(n: Node) -> Node:
    assert isinstance(n.type, Type)
    return replace(n, op=Input(dtype=n.type.dtype, shape=n.type.shape))
