"""chunks: points that order nothing, and read ranges of each other's past, some of them at a time.

    y[tp<24] = f(q, k[0:tp+1])   →   part[tpz<3,tpe<8,tpj<tpz+1] = f(q, k[tpj,0:min(8,..):room])
                                     y[tpz<3,tpe<8] = fold(part[tpz,tpe,0:tpz+1])

Ranges are split into tiles as long as a chunk, as `strip` does: a chunk sees whole chunks, of which
the last is masked. Those that begin later than at 0 begin where a chunk does, and those of every
n-th point see all of them (`widen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import lcm
from typing import Any

from recurra.ir.dims import Dim, Role
from recurra.ir.expr import (
    Div,
    Expr,
    Ext,
    Lin,
    Mod,
    Sym,
    compare,
    div,
    lin,
    minimum,
    mod,
    rebuild,
    substitute,
    symbols,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS, Op, fresh_label
from recurra.ir.types import Domain, Range, Tuple, Type
from recurra.ops.control import Merge
from recurra.ops.elementwise import Add
from recurra.ops.reduction import Sum
from recurra.rewrite.growing_axes import Growing, GrowingAxes
from recurra.rewrite.rule import Rewriting
from recurra.rewrite.running import factors, in_two, product
from recurra.rewrite.scans import Running
from recurra.rewrite.strip import normalised_last, strips, tiled
from recurra.rewrite.tile import split_dim
from recurra.rewrite.unjoined import unjoined
from recurra.rewrite.widen import widened
from recurra.sets import isl

EACH = 16  # points that cost as much as a chunk of none
MOST = 256  # points of a chunk: its scores beside a tile of as many are to stay in the cache


def sizes_of(points: int, step: int, rows: int, batch: int) -> tuple[int, int]:
    """(points in chunks, points of a chunk): chunks of about `rows` rows, of a batch each.

    Chunks are of one size and end at a multiple of `step`, so a few points may be left over; of
    sizes that leave as many, multiples of 16 fill vectors.
    """
    most = max(1, min(MOST, rows // batch, points))
    found = [(points - points % lcm(step, c), c % 16 == 0, c) for c in range(most, most // 2, -1)]
    covered, _, size = max(found)
    return covered, size


def size_of(points: int, most: int) -> int:
    """Points of a chunk, of which the last may have some that nobody asks for: a power of two.

    So tiles have whole chunks. A chunk costs about as much as `EACH` points, whatever its size.
    """
    found = [1 << k for k in range(min(MOST, most).bit_length())]
    return min(found, key=lambda c: (-(-points // c) * (c + EACH), -c), default=1)


def chunked(graph: Graph, dim: str, size: int, cut: int, sizes: Mapping[str, int]) -> Graph | None:
    """The graph with `dim` in chunks; None where something cannot be said so.

    Points from `cut` on are what nothing asks for.
    """
    free, two = frozenset({dim}), in_two(graph, dim, size, cut, sizes)
    if two is None:
        return None
    graph, sums = two
    graph = normalised_last(unjoined(graph, dim, sizes), sizes, size, free)
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
    halves = split_dim(graph, dim, size, sizes, Role.CHUNKS)
    made = _Chunks(graph, dim, size, {s.name: s for s in sums}, halves)
    return made.graph_in_chunks() if made.possible() else None


def _wider(g: Growing, dim: str, size: int) -> Slice:
    """The range that a chunk reads of one: of every n-th point it is all of them.

    It begins with the tile that has the range's beginning at the first point of the chunk.
    """
    if g.most is not None and g.most <= size:
        return Slice(0, g.most)
    if g.lo == 0 or g.step != 1:
        return Slice(0, g.hi)
    start: Any = substitute(g.lo, {dim: div(Sym(dim), size) * size})
    return Slice(div(start, size) * size, g.hi)


def _spread(e: Any) -> Any:
    """min(8*j+8,t+1)-8*j → min(8,t-8*j+1)"""
    for x, k in e.terms if isinstance(e, Lin) else ():
        if isinstance(x, Ext) and x.op == "min" and k == 1:
            return minimum(*(lin([(e, 1), (x, -1), (a, 1)]) for a in x.args))
    return e


@dataclass(frozen=True)
class _Chunks:
    graph: Graph
    dim: str
    size: int
    sums: Mapping[str, Running]  # over all points so far: they are of chunks
    dims: tuple[Dim, Dim]  # of chunks, of points of one

    @property
    def of_chunks(self) -> set[str]:
        """What has no points within a chunk."""
        return self.sums.keys() | {x for s in self.sums.values() for x in (s.begin, s.before)}

    @property
    def outer(self) -> str:
        return self.dims[0].name

    @property
    def inner(self) -> str:
        return self.dims[1].name

    @property
    def members(self) -> set[str]:
        return {n.name for n in self.graph.nodes.values() if self.dim in n.domain}

    def possible(self) -> bool:
        return all(
            n.op.pure and not isinstance(n.type, Tuple) and n.name not in self.graph.outputs
            for n in map(self.graph.__getitem__, self.members)
        ) and all(
            self.sayable(n, a, e, r)
            for n in self.graph.nodes.values()
            for a in n.args
            for e, r in zip(a.index, self.graph[a.name].domain, strict=True)
        )

    def sayable(self, n: Node, a: Ref, e: Index, r: Range) -> bool:
        """Can an index be said in chunks: a point, or a range of one chunk?"""
        mine = self.dim in n.domain
        if r.dim == self.dim and a.name in self.of_chunks:
            return not mine or a.name not in self.sums or n.name in self.of_chunks
        if not isinstance(e, Slice):
            return (
                r.dim != self.dim
                or not mine
                or self.inner not in symbols(self.at(e))
                or (self.at(e) == self.point)
            )
        if r.dim != self.dim or (isinstance(e.hi, int) and self.chunk(e) is not None):
            return True
        return mine and self.inner not in symbols(self.at(e.lo)) and self.chunk(e) is not None

    @property
    def point(self) -> Any:
        return lin([(Sym(self.outer), self.size), (Sym(self.inner), 1)])

    def at(self, e: Any) -> Any:
        """An expression of the dim in terms of chunk and point; a chunk has `size` points."""
        return self.known(substitute(e, {self.dim: self.point}))

    def known(self, e: Any) -> Any:
        if isinstance(e, Div) and e.a == Sym(self.inner) and e.n == self.size:
            return 0
        if isinstance(e, Mod) and e.a == Sym(self.inner) and e.n == self.size:
            return e.a
        return rebuild(e, self.known)

    def chunk(self, e: Slice) -> tuple[Expr | int, Slice] | None:
        """(chunk, points of it) of a range that is a tile, or that lies in the first chunk."""
        lo, hi = self.at(e.lo), self.at(e.hi)
        which = div(lo, self.size)
        if isinstance(lo, int) and isinstance(hi, int) and which == div(hi - 1, self.size) == 0:
            return minimum(Sym(self.outer), 0), e  # by a chunk, so that it stays in their loop
        length = _spread(lin([(hi, 1), (lo, -1)]))
        parts = length.args if isinstance(length, Ext) else (length,)
        if e.step != 1 or mod(lo, self.size) != 0 or self.size not in parts:
            return None
        return which, replace(e, lo=0, hi=length)

    def graph_in_chunks(self) -> Graph:
        nodes = {k: self.node(n) for k, n in self.graph.nodes.items()}
        for s in self.sums.values():
            nodes.pop(s.before)
            nodes |= self.sum_of_chunk(s)
        by = {self.dim: self.point}
        every = (self.dims if d.name == self.dim else (d.at(by),) for d in self.graph.dims)
        return Graph(nodes, self.graph.outputs, tuple(chain(*every)))

    def sum_of_chunk(self, s: Running) -> Mapping[str, Node]:
        """s[z] = s[z-1] + the sum over a chunk, all at once."""
        n, z = self.graph[s.name], Sym(self.outer)
        assert isinstance(n.type, Type)
        domain = Domain(tuple(x for r in n.domain for x in self.ranges(r)[:1]))
        back = tuple(r.sym - 1 if r.dim == self.outer else r.sym for r in domain)
        when = (compare("==", z, 0), compare(">", z, 0))
        out = LETTERS[: n.type.rank]
        terms = factors(Rewriting(dict(self.graph.nodes), (), (), {}), out, s.point)
        N = fresh_label(out)
        op: Op = product([(N + labels, a) for labels, a in terms], out)
        op = op if len(terms) > 1 else Sum(axes=(0,))
        reads = tuple(self.all_of(a) for _, a in terms)
        part = Node(f"{s.name}_of_chunk", op, reads, domain, n.type, n.loc)
        begin = Node(s.begin, Merge(when=when), (s.zero, Ref(s.name, back)), domain, n.type, n.loc)
        args = (Ref(part.name, domain.identity), Ref(begin.name, domain.identity))
        total = Node(s.name, Add(), args, domain, n.type, n.loc)
        return {x.name: x for x in (part, begin, total)}

    def all_of(self, a: Ref) -> Ref:
        """What is read at a point, at all points of its chunk."""
        at, every = Sym(self.inner), Slice(0, self.size)
        return Ref(a.name, tuple(every if e == at else e for e in self.read(a, True).index))

    def ranges(self, r: Range) -> tuple[Range, ...]:
        if r.dim != self.dim:
            return (replace(r, lo=self.at(r.lo), hi=self.at(r.hi)),)
        return Range(self.outer, div(r.hi, self.size)), Range(self.inner, self.size)

    def node(self, n: Node) -> Node:
        args = tuple(self.read(a, self.dim in n.domain) for a in n.args)
        if self.dim not in n.domain:
            return replace(n, args=args)
        domain = Domain(tuple(y for r in n.domain for y in self.ranges(r)))
        assert isinstance(n.type, Type)
        shape = tuple(_spread(self.at(x)) for x in n.type.shape)
        op = n.op.at({self.dim: self.point})
        return replace(n, op=op, args=args, domain=domain, type=replace(n.type, shape=shape))

    def read(self, a: Ref, inside: bool) -> Ref:
        index: list[Index] = []
        for e, r in zip(a.index, self.graph[a.name].domain, strict=True):
            if r.dim != self.dim:
                index.append(self.moved(e) if inside else e)
            elif a.name in self.of_chunks:
                index.append(Sym(self.outer) if inside else div(r.hi - 1, self.size))  # pyright: ignore[reportOperatorIssue]
            elif isinstance(e, Slice):
                found = self.chunk(e)
                assert found is not None, f"{a} is no chunk"
                index += found
            else:
                at = self.at(e) if inside else e
                index += [self.known(div(at, self.size)), self.known(mod(at, self.size))]
        return Ref(a.name, tuple(index))

    def moved(self, e: Index) -> Index:
        if isinstance(e, Slice) and self.dim in index_symbols(e):
            return replace(e, lo=self.at(e.lo), hi=self.at(e.hi))
        return e if isinstance(e, Slice) else self.at(e)
