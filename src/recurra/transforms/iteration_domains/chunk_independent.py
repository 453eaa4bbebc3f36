"""Run points that impose no order, but read ranges of each other's past, in chunks.

    y[tp<24] = f(q, k[0:tp+1])   →   part[tpz<3,tpe<8,tpj<tpz+1] = f(q, k[tpj,0:min(8,..):room])
                                     y[tpz<3,tpe<8] = fold(part[tpz,tpe,0:tpz+1])

Ranges are split into tiles as long as a chunk, as `strip_mine` does: a chunk reads whole chunks, of
which the last is masked. A range that begins later than at 0 is made to begin where a chunk does,
and one of every n-th point to have all of them (`align_ranges`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm

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
from recurra.transforms.recurrences.chunked_scan import factors, product, split_sums
from recurra.transforms.recurrences.scans import Running
from recurra.transforms.rewriter.rewriting import Rewriting
from recurra.transforms.strip_mine.align_ranges import align_range
from recurra.transforms.strip_mine.split_concat import split_concats
from recurra.transforms.strip_mine.strip_mine import normalize_last, strips, tile_range
from recurra.transforms.strip_mine.tiled_dims import Tile, split_dim, tile_dim


def whole_chunks(points: int, step: int, rows: int, batch: int) -> tuple[int, int]:
    """Return (points in chunks, points of a chunk), about `rows` rows of a batch in a chunk.

    Chunks are of one size and end at a multiple of `step`, so a few points may be left over. Of
    sizes that leave as many, multiples of 16 fill vectors.
    """
    most = max(1, min(MAX_CHUNK_POINTS, rows // batch, points))
    found = [(points - points % lcm(step, c), c % 16 == 0, c) for c in range(most, most // 2, -1)]
    covered, _, size = max(found)
    return covered, size


def padded_chunks(points: int, most: int) -> int:
    """Return the points of a chunk, a power of two; the last chunk may have unused points.

    Ranges then have tiles of whole chunks. A chunk of any size costs as much as some points.
    """
    found = [1 << k for k in range(min(MAX_CHUNK_POINTS, most).bit_length())]
    return min(found, key=lambda c: (-(-points // c) * (c + CHUNK_COST_POINTS), -c), default=1)


def split_into_chunks(
    graph: Graph, dim: str, size: int, cut: int, sizes: Mapping[str, int]
) -> Graph | None:
    """Return the graph with `dim` in chunks; None if something cannot be split so.

    Nothing reads points from `cut` on.
    """
    free, halves = frozenset({dim}), split_sums(graph, dim, size, cut, sizes)
    if halves is None:
        return None
    graph, sums = halves
    graph = normalize_last(split_concats(graph, dim, sizes), sizes, size, free)
    while True:
        along = GrowingAxes(graph, sizes, size, free)
        aligned = {g: _aligned(g, dim, size) for g in along.ranges.values()}
        moved = [g for g, part in aligned.items() if part != g.part]
        if not moved:
            break
        g, part = moved[0], aligned[moved[0]]
        earlier, members = compare("<=", part.lo, g.lo), along.members(g)
        if not members or not all(isl.always(earlier, graph[n].domain) for n in members):
            return None
        graph = align_range(graph, along, g, part)
    for s in strips(GrowingAxes(graph, sizes, size, free)):
        graph = tile_range(graph, s, sizes)
    members = frozenset(n.name for n in graph.nodes.values() if dim in n.domain)
    t = Tile(dim, size, members, split_dim(graph, dim, size, sizes, Role.CHUNKS))
    chunks = _Chunks(graph, t, {s.name: s for s in sums})
    return chunks.graph_in_chunks() if chunks.is_possible() else None


def _aligned(growing: Growing, dim: str, size: int) -> Slice:
    """The range that a chunk reads of a growing one: all points, also of every n-th.

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
    """The split of a dim into chunks; running `sums` over all points become sums over chunks."""

    graph: Graph
    t: Tile
    sums: Mapping[str, Running]

    @property
    def of_chunks(self) -> set[str]:
        """The equations that have no points within a chunk."""
        return self.sums.keys() | {x for s in self.sums.values() for x in (s.begin, s.before)}

    def is_possible(self) -> bool:
        """Tell whether all equations and reads can be split."""
        return all(
            n.op.pure and not isinstance(n.type, Tuple) and n.name not in self.graph.outputs
            for n in map(self.graph.__getitem__, self.t.members)
        ) and all(
            self.can_split(n, a, e, r)
            for n in self.graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, self.graph[a.name].domain, strict=True)
        )

    def can_split(self, node: Node, ref: Ref, index: Index, extent: Range) -> bool:
        """Tell whether an index is one point of a chunk, or a range of one chunk."""
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
        """The graph with the split done."""
        nodes: dict[str, Node] = {}
        for n in self.graph.nodes.values():
            args = tuple(self.read(a, n.name in self.t.members) for a in n.args)
            nodes[n.name] = replace(n, args=args)
        for s in self.sums.values():
            nodes.pop(s.before)
            nodes |= self.sum_of_chunks(s)
        t = replace(self.t, members=self.t.members - self.of_chunks)
        split = tile_dim(replace(self.graph, nodes=nodes), t)
        return replace(split, dims=tuple(d for d in split.dims if d.name != t.dim))

    def read(self, ref: Ref, inside: bool) -> Ref:
        """A read; of a running sum it is of the reader's chunk, or of the last one."""
        if ref.name not in self.of_chunks:
            return ref
        domain = self.graph[ref.name].domain
        last: object = domain[self.t.dim].hi - 1  # pyright: ignore[reportOperatorIssue]
        chunk = Sym(self.t.outer) if inside else div(last, self.t.size)
        return ref.with_index(domain.dims.index(self.t.dim), chunk)

    def sum_of_chunks(self, running: Running) -> Mapping[str, Node]:
        """s[z] = s[z-1] + the sum over all points of chunk z."""
        n, z = self.graph[running.name], Sym(self.t.outer)
        domain = Domain(tuple(self.t.split(r)[0] for r in n.domain))
        out = LETTERS[: n.tensor.rank]
        terms = factors(Rewriting.of(self.graph, {}), out, running.point)
        N = fresh_label(out)
        op: Op = product([(N + labels, a) for labels, a in terms], out)
        op = op if len(terms) > 1 else Sum(axes=(0,))
        reads = tuple(self.all_of_chunk(a) for _, a in terms)
        part = Node(f"{running.name}_of_chunk", op, reads, domain, n.type, n.loc)
        merge = Merge(when=(compare("==", z, 0), compare(">", z, 0)))
        back = Ref(running.name, domain.point(self.t.outer, z - 1))
        begin = Node(running.begin, merge, (running.zero, back), domain, n.type, n.loc)
        args = (Ref(part.name, domain.identity), Ref(begin.name, domain.identity))
        total = Node(running.name, Add(), args, domain, n.type, n.loc)
        return {x.name: x for x in (part, begin, total)}

    def all_of_chunk(self, ref: Ref) -> Ref:
        """Widen a read at one point to all points of its chunk."""
        return Ref(ref.name, tuple(self.t.one if e == Sym(self.t.dim) else e for e in ref.index))
