"""granularity: for each dim, which equations have it as an axis and which as a loop.

A dim that orders nothing (no cycle moves along it) becomes an axis everywhere it may; a dim some
cycle moves along stays a loop, and what is free along it is left for `tile`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recurra.ir.graph import Graph, merge_condition
from recurra.ir.order import components
from recurra.rewrite.fuel import fuel
from recurra.rewrite.vectorise import candidates, vectorise
from recurra.sets.dependence import happens
from recurra.sets.lag import Lag, lag

Edge = tuple[str, int]  # an equation and the place of one of its operands


@dataclass(frozen=True)
class Decision:
    """`dim` becomes an axis, first or last, of `members`; `why` is for people."""

    dim: str
    members: frozenset[str]
    last: bool
    why: str

    def __str__(self) -> str:
        place = "last" if self.last else "first"
        why = f" ({self.why})" if self.why else ""
        return f"{self.dim}: {place} axis of {len(self.members)} equations{why}"


def loops(graph: Graph) -> dict[str, set[str]]:
    """For each dim, the equations that must run along it in order (Allen and Kennedy, 1987).

    Inside a cycle the first legal dim, in the user's order, becomes a loop; the dependences that it
    carries are dropped and the rest is looked at again.
    """
    out: dict[str, set[str]] = {r.dim: set() for r in graph.dims}
    edges = [
        (n.name, k)
        for n in graph.nodes.values()
        for k in range(len(n.args))
        if happens(n.domain, merge_condition(n, k))
    ]
    _loops(graph, list(graph.nodes), edges, [r.dim for r in graph.dims], out)
    return out


def _loops(
    graph: Graph, nodes: list[str], edges: list[Edge], dims: list[str], out: dict[str, set[str]]
) -> None:
    for part, within in cycles(graph, nodes, edges):
        inside = set(part)
        for d in dims:
            left = carried(graph, part, within, d)
            if left is not None and len(left) < len(within):
                out[d] |= inside
                _loops(graph, part, left, [x for x in dims if x != d], out)
                break
        else:  # what is not understood stays as it is
            for d in dims:
                out[d] |= inside


def cycles(
    graph: Graph, nodes: Sequence[str], edges: Sequence[Edge]
) -> Iterator[tuple[list[str], list[Edge]]]:
    """What must be ordered together, and the edges that close it; sources first."""
    feeds: dict[str, list[str]] = {n: [] for n in nodes}
    for name, k in edges:
        feeds[name].append(graph[name].args[k].name)
    for part in components(nodes, feeds.__getitem__):
        inside = set(part)
        within = [(n, k) for n, k in edges if n in inside and graph[n].args[k].name in inside]
        if within:
            yield part, within


def carried(graph: Graph, part: list[str], edges: list[Edge], dim: str) -> list[Edge] | None:
    """The edges that a loop over `dim`, up or down, leaves open; None if no such loop is legal."""
    if not all(dim in graph[n].domain for n in part):
        return None
    lags = [edge_lag(graph, n, k, dim) for n, k in edges]
    for signed in (lags, [-x for x in lags]):
        late = _shifts(graph, part, edges, [x.low for x in signed])
        if late is not None:
            return [
                (n, k)
                for (n, k), x in zip(edges, signed, strict=True)
                if x.low == late[graph[n].args[k].name] - late[n]
            ]
    return None


def _shifts(
    graph: Graph, part: list[str], edges: list[Edge], low: list[int | None]
) -> dict[str, int] | None:
    """How late each equation runs, no operand in its future; None where a cycle forbids it."""
    late = dict.fromkeys(part, 0)
    if None in low:
        return None
    for _ in range(len(part) + 1):
        moved = False
        for (n, k), x in zip(edges, low, strict=True):
            assert x is not None
            need = late[graph[n].args[k].name] - x
            if need > late[n]:
                late[n], moved = need, True
        if not moved:
            return late
    return None


def edge_lag(graph: Graph, name: str, k: int, dim: str) -> Lag:
    """The lag of operand `k` of an equation along a dim that both ends have."""
    node = graph[name]
    a = node.args[k]
    at = graph[a.name].domain.dims.index(dim)
    when = merge_condition(node, k)
    return lag(dim, a.index[at], node.domain, when)


SMALL_WIDTH = 128  # up to here the batch axis last is faster (measured: 1.6x at 32, even at 128)


def batch_dims(graph: Graph) -> list[str]:
    """The dims that order nothing: no cycle moves along them, some equation can have them."""
    ordered = loops(graph)
    return [r.dim for r in graph.dims if not ordered[r.dim] and candidates(graph, r.dim)]


def inside_tiles(graph: Graph) -> list[str]:
    """te, where t is split into tz and te."""
    dims = {r.dim for r in graph.dims}
    return [r.dim for r in graph.dims if r.dim[-1] == "e" and f"{r.dim[:-1]}z" in dims]


def batches(graph: Graph) -> list[str]:
    """The dims that order nothing, but not those of tiles: of them only the inside is an axis."""
    split = inside_tiles(graph)
    return [d for d in batch_dims(graph) if f"{d[:-1]}e" not in split]


def widest_layer(graph: Graph, dims: Sequence[str]) -> int:
    """The widest axis of a contraction over the batch; 0 where there is none."""
    widest = 0
    for n in graph.nodes.values():
        if n.op.name == "einsum" and any(d in n.domain for d in dims):
            for a in n.args:
                widest = max([widest, *(s for s in graph.read_type(a).shape if isinstance(s, int))])
    return widest


def batch_last(graph: Graph, dims: Sequence[str], last: bool | None = None) -> tuple[bool, str]:
    """Do batch axes go last (None: decide), and why: narrow layers are faster so."""
    if last is not None:
        return last, "asked for"
    widest = widest_layer(graph, dims)
    return 0 < widest <= SMALL_WIDTH, "by the width of its layers" if widest else ""


def granularity(
    graph: Graph, sizes: Mapping[str, int], dims: Sequence[str], last: bool | None = None
) -> tuple[Graph, tuple[Decision, ...]]:
    """The graph with `dims` as axes, the first outermost in memory, and what was decided."""
    last, why = batch_last(graph, dims, last)
    made: list[Decision] = []
    for dim in dims if last else reversed(dims):
        members = frozenset(candidates(graph, dim))
        if members and fuel().burn("a dim that orders nothing → an axis", dim):
            graph = vectorise(graph, dim, set(members), sizes, last)
            made.append(Decision(dim, members, last, why))
    return graph, tuple(made)


Axes = tuple[tuple[str, ...], tuple[str, ...]]


def more_axes(axes: Sequence[Axes], before: Graph, decisions: tuple[Decision, ...]) -> list[Axes]:
    """Where the dims of each output of `before` are after `decisions`, from where they were."""
    out: list[Axes] = []
    for o, (dims, names) in zip(before.outputs, axes, strict=True):
        for d in decisions:
            if o in d.members:
                dims = tuple(x for x in dims if x != d.dim)
                names = (*names, d.dim) if d.last else (d.dim, *names)
        out.append((dims, names))
    return out


def restore_order(before: tuple[str, ...], axes: Axes) -> tuple[int, ...]:
    """The permutation from [*dims, *axes] to [*before, *spatial]."""
    have = [*axes[0], *axes[1]]
    dims = [have.index(d) for d in before]
    return (*dims, *(k for k, d in enumerate(have) if d == ""))
