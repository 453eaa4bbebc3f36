"""Points that order nothing, and read ranges of each other's past, some of them at a time.

    y[tp<24] = f(q, k[0:tp+1])   →   part[tpz<3,tpe<8,tpj<tpz+1] = f(q, k[tpj,0:min(8,..):room])
                                     y[tpz<3,tpe<8] = fold(part[tpz,tpe,0:tpz+1])

Ranges are split into tiles as long as a chunk, as `strip` does: a chunk sees whole chunks, of which
the last is masked. Those that begin later than at 0 begin where a chunk does, and those of every
n-th point see all of them (`widen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from recurra.cost.thresholds import CHUNK_COST_POINTS, MAX_CHUNK_POINTS
from recurra.ir.dims import Role
from recurra.ir.expr import Sym, compare, div, substitute, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.op import LETTERS, Op, fresh_label
from recurra.ir.types import Domain, Range, Tuple
from recurra.ops.control import Merge
from recurra.ops.elementwise import Add
from recurra.ops.reduction import Sum
from recurra.polyhedral import isl
from recurra.transforms.growing_ranges import Growing, GrowingAxes
from recurra.transforms.recurrences.chunked_scan import factors, in_two, product
from recurra.transforms.recurrences.scans import Running
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.strip_mine.align_ranges import widened
from recurra.transforms.strip_mine.split_concat import unjoined
from recurra.transforms.strip_mine.strip_mine import normalized_last, strips, tiled
from recurra.transforms.strip_mine.tiled_dims import Tile, split_dim, tile


def sizes_of(points: int, step: int, rows: int, batch: int) -> tuple[int, int]:
    """(points in chunks, points of a chunk): chunks of about `rows` rows, of a batch each.

    Chunks are of one size and end at a multiple of `step`, so a few points may be left over; of
    sizes that leave as many, multiples of 16 fill vectors.
    """
    most = max(1, min(MAX_CHUNK_POINTS, rows // batch, points))
    found = [(points - points % lcm(step, c), c % 16 == 0, c) for c in range(most, most // 2, -1)]
    covered, _, size = max(found)
    return covered, size


def size_of(points: int, most: int) -> int:
    """Points of a chunk, of which the last may have some that nobody asks for: a power of two.

    So tiles have whole chunks. A chunk costs as much as some points, whatever its size.
    """
    found = [1 << k for k in range(min(MAX_CHUNK_POINTS, most).bit_length())]
    return min(found, key=lambda c: (-(-points // c) * (c + CHUNK_COST_POINTS), -c), default=1)


def chunked(graph: Graph, dim: str, size: int, cut: int, sizes: Mapping[str, int]) -> Graph | None:
    """The graph with `dim` in chunks; None where something cannot be said so.

    Points from `cut` on are what nothing asks for.
    """
    free, two = frozenset({dim}), in_two(graph, dim, size, cut, sizes)
    if two is None:
        return None
    graph, sums = two
    graph = normalized_last(unjoined(graph, dim, sizes), sizes, size, free)
    while True:
        along = GrowingAxes(graph, sizes, size, free)
        wider = {g: _wider(g, dim, size) for g in along.ranges.values()}
        moved = [g for g, part in wider.items() if part != g.part]
        if not moved:
            break
        g, part = moved[0], wider[moved[0]]
        earlier, members = compare("<=", part.lo, g.lo), along.members(g)
        if not members or not all(isl.always(earlier, graph[n].domain) for n in members):
            return None
        graph = widened(graph, along, g, part)
    for s in strips(GrowingAxes(graph, sizes, size, free)):
        graph = tiled(graph, s, sizes)
    members = frozenset(n.name for n in graph.nodes.values() if dim in n.domain)
    t = Tile(dim, size, members, split_dim(graph, dim, size, sizes, Role.CHUNKS))
    made = _Chunks(graph, t, {s.name: s for s in sums})
    return made.graph_in_chunks() if made.possible() else None


def _wider(growing: Growing, dim: str, size: int) -> Slice:
    """The range that a chunk reads of one: of every n-th point it is all of them.

    It begins with the tile that has the range's beginning at the first point of the chunk.
    """
    if growing.most is not None and growing.most <= size:
        return Slice(0, growing.most)
    if growing.lo == 0 or growing.step != 1:
        return Slice(0, growing.hi)
    start = substitute(growing.lo, {dim: div(Sym(dim), size) * size})
    return Slice(div(start, size) * size, growing.hi)


@dataclass(frozen=True)
class _Chunks:
    graph: Graph
    t: Tile
    sums: Mapping[str, Running]  # over all points so far: they are of chunks

    @property
    def of_chunks(self) -> set[str]:
        """The equations that have no points within a chunk."""
        return self.sums.keys() | {x for s in self.sums.values() for x in (s.begin, s.before)}

    def possible(self) -> bool:
        return all(
            n.op.pure and not isinstance(n.type, Tuple) and n.name not in self.graph.outputs
            for n in map(self.graph.__getitem__, self.t.members)
        ) and all(
            self.sayable(n, a, e, r)
            for n in self.graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, self.graph[a.name].domain, strict=True)
        )

    def sayable(self, node: Node, ref: Ref, index: Index, extent: Range) -> bool:
        """Can an index be said in chunks: a point, or a range of one chunk?"""
        mine = self.t.dim in node.domain
        if extent.dim == self.t.dim and ref.name in self.of_chunks:
            return not mine or ref.name not in self.sums or node.name in self.of_chunks
        if not isinstance(index, Slice):
            inside = self.t.inner in symbols(self.t.at(index))
            return extent.dim != self.t.dim or not mine or not inside or index == Sym(self.t.dim)
        if extent.dim != self.t.dim or self.t.part(index, mine) is None:
            return extent.dim != self.t.dim
        return isinstance(index.hi, int) or (
            mine and self.t.inner not in symbols(self.t.at(index.lo))
        )

    def graph_in_chunks(self) -> Graph:
        nodes: dict[str, Node] = {}
        for n in self.graph.nodes.values():
            args = tuple(self.read(a, n.name in self.t.members) for a in n.args)
            nodes[n.name] = replace(n, args=args)
        for s in self.sums.values():
            nodes.pop(s.before)
            nodes |= self.sum_of_chunk(s)
        t = replace(self.t, members=self.t.members - self.of_chunks)
        made = tile(replace(self.graph, nodes=nodes), t)
        return replace(made, dims=tuple(d for d in made.dims if d.name != t.dim))

    def read(self, ref: Ref, inside: bool) -> Ref:
        """A read, of sums over all points so far for the chunk of a point, or for the last one."""
        if ref.name not in self.of_chunks:
            return ref
        (k,) = (k for k, r in enumerate(self.graph[ref.name].domain) if r.dim == self.t.dim)
        last: Any = self.graph[ref.name].domain.ranges[k].hi - 1  # pyright: ignore[reportOperatorIssue]
        which = Sym(self.t.outer) if inside else div(last, self.t.size)
        return ref.with_index(k, which)

    def sum_of_chunk(self, running: Running) -> Mapping[str, Node]:
        """s[z] = s[z-1] + the sum over a chunk, all at once."""
        n, z = self.graph[running.name], Sym(self.t.outer)
        domain = Domain(tuple(self.t.split(r)[0] for r in n.domain))
        back = domain.point(self.t.outer, z - 1)
        when = (compare("==", z, 0), compare(">", z, 0))
        out = LETTERS[: n.tensor.rank]
        terms = factors(Rewriting.of(self.graph, {}), out, running.point)
        N = fresh_label(out)
        op: Op = product([(N + labels, a) for labels, a in terms], out)
        op = op if len(terms) > 1 else Sum(axes=(0,))
        reads = tuple(self.all_of(a) for _, a in terms)
        part = Node(f"{running.name}_of_chunk", op, reads, domain, n.type, n.loc)
        begin = Node(
            running.begin,
            Merge(when=when),
            (running.zero, Ref(running.name, back)),
            domain,
            n.type,
            n.loc,
        )
        args = (Ref(part.name, domain.identity), Ref(begin.name, domain.identity))
        total = Node(running.name, Add(), args, domain, n.type, n.loc)
        return {x.name: x for x in (part, begin, total)}

    def all_of(self, ref: Ref) -> Ref:
        """Widen a read at one point to all points of its chunk."""
        return Ref(ref.name, tuple(self.t.one if e == Sym(self.t.dim) else e for e in ref.index))
