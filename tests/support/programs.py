"""Small programs for the tests: a builder without a session, and gradients two ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from recurra.analysis.graph_builder import GraphBuilder, enter, leave
from recurra.frontend.dims import Index
from recurra.frontend.functions import input as given
from recurra.frontend.functions import output
from recurra.frontend.tensor import RecurrentTensor
from recurra.ir.dims import Dim
from recurra.ir.expr import Sym
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.types import SHORT_NAME, Range, Type
from recurra.ir.verify import verify
from recurra.reference import interpreter

Arrays = Mapping[str, np.ndarray]


@contextmanager
def tracing(dims: str) -> Iterator[tuple[GraphBuilder, list[Index]]]:
    """A program over `dims`, such as "bt": the dims b < B and t < T."""
    builder = GraphBuilder(dims=[Dim(Range(d, Sym(d.upper()))) for d in dims])
    enter(builder)
    try:
        yield builder, [Index(Sym(d)) for d in dims]
    finally:
        leave()


def finished(builder: GraphBuilder) -> Graph:
    """The graph, after the laws that hold for every graph."""
    graph = verify(builder.graph())
    assert parse(str(graph)) == graph
    return graph


def run(builder: GraphBuilder, bounds: Mapping[str, int], inputs: Arrays | None = None) -> Arrays:
    """Values of what was given to `output`, by the names used there."""
    values = interpreter.run(finished(builder), bounds, inputs)
    return {name: values[equation] for name, equation in builder.logs.items()}


Build = Callable[[list[Index], dict[str, RecurrentTensor]], RecurrentTensor]


@dataclass
class Gradient:
    """What backward() gave, and the program forward as a function of its inputs."""

    graph: Graph
    values: Arrays  # by name of the input
    total: Callable[[Arrays], float]


def backpropagate(
    build: Build,
    dims: str,
    bounds: Mapping[str, int],
    inputs: Arrays,
    domains: Mapping[str, str] | None = None,
) -> Gradient:
    """Gradients of `build(dims, inputs)`, summed over its domain, for every input that is float64.

    `inputs` have the axes of their domain first; `domains` names the dims of each.
    """
    domains = domains or {}
    with tracing(dims) as (builder, idx):
        box = dict(zip(dims, idx, strict=True))
        xs: dict[str, RecurrentTensor] = {}
        for name, v in inputs.items():
            over = domains.get(name, "")
            type_ = Type(SHORT_NAME[v.dtype.name], np.shape(v)[len(over) :])
            xs[name] = given(type_, [box[d] for d in over], name)
        loss = build(idx, xs)
        floats = {n: x for n, x in xs.items() if x.dtype == "f64"}
        loss.backward(wrt=list(floats.values()))
        grads = {n: x.grad for n, x in floats.items() if x.grad is not None}
        output(loss=loss, **{f"d_{n}": g for n, g in grads.items()})
        graph = finished(builder)
    out = interpreter.run(graph, bounds, inputs)
    got = {n: out[builder.logs[f"d_{n}"]] for n in grads}
    values = {n: got.get(n, np.zeros_like(inputs[n])) for n in floats}
    end = builder.logs["loss"]
    forward = Graph(graph.nodes, (end,), graph.dims).live()
    return Gradient(
        graph, values, lambda x: float(np.sum(interpreter.run(forward, bounds, x)[end]))
    )


def check_gradients(
    build: Build,
    dims: str,
    bounds: Mapping[str, int],
    inputs: Arrays,
    domains: Mapping[str, str] | None = None,
    *,
    step: float = 1e-5,
    rtol: float = 1e-6,
) -> Gradient:
    """backward() against finite differences of the oracle, element by element."""
    g = backpropagate(build, dims, bounds, inputs, domains)
    for name, got in g.values.items():
        want = numeric(lambda v, n=name: g.total({**inputs, n: v}), inputs[name], step)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-7, err_msg=f"d {name}\n{g.graph}")
    return g


def numeric(f: Callable[[np.ndarray], float], x: np.ndarray, step: float) -> np.ndarray:
    """Central differences of f at x."""
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[k] += step
        down[k] -= step
        out[k] = (f(up) - f(down)) / (2 * step)
    return out


def draws(*shape: int, seed: int = 0) -> Any:
    """Distinct numbers of order one, away from 0."""
    rng = np.random.default_rng((seed, *shape))
    x = rng.uniform(0.3, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    return np.asarray(x)
