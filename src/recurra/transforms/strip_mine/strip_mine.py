"""Strip-mining: run reductions over a growing range over tiles of static size.

    s[t<T]: f32[t+1] = mul(q, x[0:t+1], labels=',a->a')
    y[t<T]: f32[] = sum(s, axes=(0,))
 →  s[t<T,tj<t//8+1]: f32[min(8*tj+8,t+1)-8*tj] = mul(q, x[8*tj:min(8*tj+8,t+1):room], ..)
    y_part[t<T,tj<t//8+1]: f32[] = sum(s, axes=(0,))
    y[t<T]: f32[] = fold(y_part[t,0:t//8+1])

Windows and chunks of the past, max(t-7,0):t+1, are split from where they begin. Only ranges that
grow along an ordered loop are tiled: a dim that imposes no order becomes an axis, and the range a
mask. The last tile is not full; `pad` masks it where that matters. Softmax is split into its steps
first, and sums are divided instead of their terms; `online` then makes its two passes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recurra.ir.dims import Dim, Role
from recurra.ir.expr import Expr, Sym, lin, minimum, symbols
from recurra.ir.graph import Graph, Index, Node, Ref, Slice
from recurra.ir.order import topological
from recurra.ir.types import Domain, Range
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.ops.reduction import Fold
from recurra.ops.softmax import Softmax
from recurra.polyhedral import isl
from recurra.polyhedral.extent import longest
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.growing_ranges import GrowingAxes, any_grows, grows
from recurra.transforms.recurrences.online_softmax import online
from recurra.transforms.recurrences.split_softmax import divide_last, split_softmax
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.pattern_rewriter import apply
from recurra.transforms.rewriter.rewriting import Rewriting


@dataclass(frozen=True)
class Strip:
    """A range lo:hi in tiles of `size` points, counted by the dim `tiles`, for some equations.

    Those in `kept` have an axis along it; the other members reduce one.
    """

    lo: Expr | int
    hi: Expr
    size: int
    tiles: Dim
    members: frozenset[str]
    kept: frozenset[str]

    @property
    def dim(self) -> str:
        return self.tiles.name

    @property
    def range(self) -> Range:
        return self.tiles.range

    @property
    def part(self) -> Slice:
        """The points of one tile."""
        start: Expr | int = lin([(self.lo, 1), (Sym(self.dim), self.size)])
        return Slice(start, minimum(start + self.size, self.hi), loose=True)

    def is_whole(self, index: Index) -> bool:
        """Tell whether an index is all of the range."""
        if not isinstance(index, Slice) or index.step != 1:
            return False
        return (index.lo, index.hi) == (self.lo, self.hi)

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}: tiles of {self.size} for {len(self.members)} equations"


def strip(
    graph: Graph, sizes: Mapping[str, int], size: int | None = None
) -> tuple[Graph, list[Strip]]:
    """Return the graph with growing ranges in tiles of `size` points, and what was decided.

    None: the size by cost; 0: no tiles.
    """
    if size == 0 or not GrowingAxes(graph, sizes, size).ranges:
        return loosen_reads(graph, sizes), []
    split = normalize_last(graph, sizes, size)
    found = strips(GrowingAxes(split, sizes, size))
    for s in found:
        split = tile_range(split, s, sizes)
    return (loosen_reads(split, sizes), found) if found else (loosen_reads(graph, sizes), [])


def loosen_reads(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph in which products read ranges loosely: with any values past their ends.

    The values there are other points', which a loop writes later, so they are finite. Only what is
    reduced over a window is masked then, not all of it; and without an order all points read the
    same, as one array.
    """
    along = GrowingAxes(graph, sizes, None)

    def loose(node: Node, ref: Ref) -> Ref:
        if not isinstance(node.op, Einsum | Attention):
            return ref
        pairs = zip(ref.index, graph[ref.name].domain, strict=True)
        index = (
            replace(e, loose=True)
            if isinstance(e, Slice)
            and grows(e, r, along.dims)
            and (along.in_order(node, e.lo, e.hi) or is_unordered(e, r))
            else e
            for e, r in pairs
        )
        return Ref(ref.name, tuple(index))

    def is_unordered(part: Slice, extent: Range) -> bool:
        moving = symbols(part.hi) & along.dims
        return part.lo == extent.lo and not any(along.ordered.get(d) for d in moving)

    nodes = {k: replace(n, args=tuple(loose(n, a) for a in n.args)) for k, n in graph.nodes.items()}
    return Graph(nodes, graph.outputs, graph.dims)


def normalize_last(
    graph: Graph, sizes: Mapping[str, int], size: int | None, free: frozenset[str] = frozenset()
) -> Graph:
    """Return the graph where softmax over a range is sums of exponentials, divided by their sum."""
    along = GrowingAxes(graph, sizes, size, free)
    softmaxes = {
        n.name
        for n in graph.nodes.values()
        if isinstance(n.op, Softmax) and along.operand(n.args[0])[n.op.axis] is not None
    }
    if softmaxes:
        graph = apply(graph, (split_softmax(softmaxes),), sizes)
        along = GrowingAxes(graph, sizes, size, free)
    labels: dict[str, set[str]] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Einsum):
            ins, out = n.op.parts()
            pairs = (
                zip(s, along.operand(a), strict=True) for s, a in zip(ins, n.args, strict=True)
            )
            labels[n.name] = {c for p in pairs for c, x in p if x is not None and c not in out}
    return apply(graph, (divide_last(labels),), sizes)


def strips(along: GrowingAxes) -> list[Strip]:
    """Return the ranges that can be tiled."""
    graph, out = along.graph, list[Strip]()
    for g in along.ranges.values():
        members = along.members(g)
        if members and fuel().burn("a range that grows → tiles", str(g.hi)):
            count = (g.length + (g.size - 1)) // g.size  # pyright: ignore[reportOperatorIssue]
            taken = (*along.sizes, *(s.dim for s in out))
            tiles = graph.fresh_dim(Role.STRIPS, g.dim, count, taken=taken)
            kept = frozenset(n for n in members if g in along.of(n))
            out.append(Strip(g.lo, g.hi, g.size, tiles, members, kept))
    return out


def tile_range(graph: Graph, strip: Strip, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with one range in tiles."""
    around = next(graph[n].domain for n in graph.nodes if n in strip.members)
    most = isl.largest(strip.range.hi, around)
    if most is None:
        most = longest(Domain((*around, strip.range)), strip.dim, sizes)
    every = replace(strip.tiles, range=Range(strip.dim, most))
    g = Rewriting.of(graph, sizes, (*graph.dims, every))
    members = graph.in_order(strip.members)
    for name in topological(members, lambda n: [a.name for a in graph[n].args]):
        g.loc = graph[name].loc
        _split(g, strip, graph[name])
    online(g, strip.dim)
    return Graph({k: g.nodes[k] for k in _order(g, graph)}, g.outputs, g.dims).live()


def _split(graph: Rewriting, strip: Strip, node: Node) -> None:
    """Put an equation in tiles; one that reduces the range becomes a fold over them."""
    args = tuple(_read(graph, strip, a) for a in node.args)
    name = node.name if node.name in strip.kept else graph.fresh(f"{node.name}_part")
    domain = Domain((*node.domain, strip.range))
    graph.put(Node(name, node.op, args, domain, node.op.infer(*map(graph.type, args)), node.loc))
    if name != node.name:
        monoid = "add" if isinstance(node.op, Einsum) else node.op.monoid
        assert monoid is not None, f"{node.name} folds what has no monoid"
        every = Ref(name, (*node.domain.identity, Slice(0, strip.range.hi)))
        graph.put(replace(node, op=Fold(monoid_of=monoid, rank=1), args=(every,)))


def _read(graph: Rewriting, strip: Strip, ref: Ref) -> Ref:
    """A read inside of a tile."""
    if strip.dim in graph[ref.name].domain:
        return graph.read(ref.name)
    return Ref(ref.name, tuple(strip.part if strip.is_whole(e) else e for e in ref.index))


def _order(graph: Rewriting, before: Graph) -> list[str]:
    """The equations in the order of `before`; new ones come right before their first reader."""
    new = [n for n in graph.nodes if n not in before.nodes]
    out: list[str] = []
    for n in before.nodes:
        if n in graph.nodes:
            out += [x for x in new if x in {a.name for a in graph[n].args} and x not in out]
            out.append(n)
    return [*out, *(n for n in new if n not in out)]


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a range that grows with a dim is read."""
    return any_grows(graph)


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Split ranges that grow in a loop into tiles of static size."""
    new, strips = strip(graph, cx.sizes, cx.tuning.tile_points)
    cx.remark(*strips)
    return new


STRIP_MINE = Pass("strip_mine", run, applies)
