"""Reductions over a range that grows run over tiles of static size (strip-mining).

    s[t<T]: f32[t+1] = mul(q, x[0:t+1], labels=',a->a')
    y[t<T]: f32[] = sum(s, axes=(0,))
 →  s[t<T,tj<t//8+1]: f32[min(8*tj+8,t+1)-8*tj] = mul(q, x[8*tj:min(8*tj+8,t+1):room], ..)
    y_part[t<T,tj<t//8+1]: f32[] = sum(s, axes=(0,))
    y[t<T]: f32[] = fold(y_part[t,0:t//8+1])

Windows and chunks of the past, max(t-7,0):t+1, are split from where they begin.
Only in a loop that is one anyway: what orders nothing becomes an axis, and the range a mask. The
last tile is not full; `pad` masks it where that matters. Softmax is taken apart first, and what
divides every term of a sum divides the sum; `online` then makes its two passes one.
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
    """A range lo:hi as tiles of `size` points, counted by the dim `tiles`, for some equations.

    `kept` of them have an axis along it; the others fold one.
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

    def whole(self, index: Index) -> bool:
        """Is it all of the range?"""
        return isinstance(index, Slice) and (index.lo, index.hi, index.step) == (
            self.lo,
            self.hi,
            1,
        )

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}: tiles of {self.size} for {len(self.members)} equations"


def strip(
    graph: Graph, sizes: Mapping[str, int], size: int | None = None
) -> tuple[Graph, list[Strip]]:
    """The graph with ranges that grow in tiles of `size` points, and what was decided.

    None: by cost; 0: no tiles.
    """
    if size == 0 or not GrowingAxes(graph, sizes, size).ranges:
        return loosened(graph, sizes), []
    apart = normalized_last(graph, sizes, size)
    found = strips(GrowingAxes(apart, sizes, size))
    for s in found:
        apart = tiled(apart, s, sizes)
    return (loosened(apart, sizes), found) if found else (loosened(graph, sizes), [])


def loosened(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph where products read ranges up to a step with anything past their ends.

    What lies there is another point's, written later where the steps are a loop's: it is finite. So
    not all of a window is masked, only what is reduced over it; and what orders nothing reads the
    same of all points, as one array.
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


def normalized_last(
    graph: Graph, sizes: Mapping[str, int], size: int | None, free: frozenset[str] = frozenset()
) -> Graph:
    """The graph where a softmax over a range is sums of exponentials, divided by their sum."""
    apart = _apart(graph, GrowingAxes(graph, sizes, size, free))
    return _divided_last(apart, GrowingAxes(apart, sizes, size, free))


def _apart(graph: Graph, along: GrowingAxes) -> Graph:
    wanted = {
        n.name
        for n in graph.nodes.values()
        if isinstance(n.op, Softmax) and along.operand(n.args[0])[n.op.axis] is not None
    }
    return apply(graph, (split_softmax(wanted),), along.sizes) if wanted else graph


def _divided_last(graph: Graph, along: GrowingAxes) -> Graph:
    labels: dict[str, set[str]] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Einsum):
            ins, out = n.op.parts()
            pairs = [
                zip(s, along.operand(a), strict=True) for s, a in zip(ins, n.args, strict=True)
            ]
            labels[n.name] = {c for p in pairs for c, x in p if x is not None and c not in out}
    return apply(graph, (divide_last(labels),), along.sizes)


def strips(along: GrowingAxes) -> list[Strip]:
    """The ranges that can be said in tiles, as such."""
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


def tiled(graph: Graph, strip: Strip, sizes: Mapping[str, int]) -> Graph:
    """The graph with one strip made."""
    around = next(graph[n].domain for n in graph.nodes if n in strip.members)
    most = isl.largest(strip.range.hi, around)
    if most is None:
        most = longest(Domain((*around, strip.range)), strip.dim, sizes)
    every = replace(strip.tiles, range=Range(strip.dim, most))
    g = Rewriting.of(graph, sizes, (*graph.dims, every))
    for n in _in_order(graph, strip.members):
        g.loc = n.loc
        _split(g, strip, n)
    online(g, strip.dim)
    return Graph({k: g.nodes[k] for k in _order(g, graph)}, g.outputs, g.dims).live()


def _in_order(graph: Graph, members: frozenset[str]) -> list[Node]:
    """Producers first."""
    names = [n for n in graph.nodes if n in members]
    return [graph[n] for n in topological(names, lambda n: [a.name for a in graph[n].args])]


def _split(graph: Rewriting, strip: Strip, node: Node) -> None:
    """An equation in tiles; one that folds the range becomes a fold over them."""
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
    return Ref(ref.name, tuple(strip.part if strip.whole(e) else e for e in ref.index))


def _order(graph: Rewriting, before: Graph) -> list[str]:
    """Equations in the order they were written, what is new behind the first that reads it."""
    new = [n for n in graph.nodes if n not in before.nodes]
    out: list[str] = []
    for n in before.nodes:
        if n in graph.nodes:
            out += [x for x in new if x in {a.name for a in graph[n].args} and x not in out]
            out.append(n)
    return [*out, *(n for n in new if n not in out)]


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a range is read that grows with a dim."""
    return any_grows(graph)


def run_strip(graph: Graph, cx: CompileContext) -> Graph:
    """Split ranges that grow in a loop into tiles of static size."""
    new, strips = strip(graph, cx.sizes, cx.tuning.strip)
    cx.remark(*strips)
    return new


STRIP_MINE = Pass("strip_mine", run_strip, applies)
