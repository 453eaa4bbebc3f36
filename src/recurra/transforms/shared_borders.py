"""shared_borders: make shifts of an array, wrapped or held at its ends, parts of one longer array.

    left  = concat(x[I-1:I], x[0:I-1])            all   = concat(x[I-1:I], x, x[0:1])
    right = concat(x[1:I], x[0:1])          →     left  = all[0:I]
                                                  right = all[2:I+2]

A stencil reads every cell with its neighbors. Each array of neighbors is x once more, and XLA,
which fuses them all, looks up for each element which part it comes from. The longer array is made
once, and its parts are where they are in memory. A second axis extends the longer array again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from recurra.cost.thresholds import MAX_BORDER_ELEMENTS
from recurra.ir.expr import evaluate, lin, symbols
from recurra.ir.graph import Graph, Node, Ref
from recurra.ops.elementwise import Copy
from recurra.ops.movement import Concat, Cut
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.rewriter.rewriting import Rewriting

Part = tuple[str, tuple[Cut, ...]]  # an array, and the cuts of it, one after the other


@dataclass(frozen=True)
class Border:
    """A few elements of an array, in order: their numbers, and the cuts that have them."""

    elements: tuple[int, ...] = ()
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True)
class ShiftedArray:
    """A concatenation along an axis of a border, a part of `source`, and another border of it."""

    node: Node
    source: str
    before: Border
    part: Cut
    behind: Border

    @property
    def axis(self) -> int:
        return self.part.axis


def shift_of(graph: Rewriting, node: Node) -> ShiftedArray | None:
    """Return the shift that an equation is, if it is one that leaves out no inner element."""
    if not isinstance(node.op, Concat) or node.op.materialized:
        return None
    chains = [_cuts(graph, a, node.op.axis) for a in node.args]
    for ref in reversed(chains[0]):  # a source of which all operands are cut
        cuts = [c[ref] for c in chains if ref in c]
        source = graph[ref.name]
        same = ref.index == source.domain.identity and source.domain == node.domain
        if same and len(cuts) == len(chains) and (found := _shift(graph, node, source, cuts)):
            return found
    return None


def _cuts(graph: Rewriting, ref: Ref, axis: int) -> dict[Ref, Cut]:
    """The arrays that a read is a part of along an axis, and its cut of each, the longest last."""
    type_ = graph.type(ref)
    found = {ref: Cut(axis=axis, start=0, size=type_.shape[axis])}
    while (node := graph.producer(ref, Copy) or graph.producer(ref, Cut)) is not None:
        cut = found[ref]
        if isinstance(node.op, Cut):
            if node.op.axis != axis:
                break
            cut = replace(cut, start=lin([(cut.start, 1), (node.op.start, 1)]))
        (ref,) = node.args
        found[ref] = cut
    return found


def _shift(graph: Rewriting, node: Node, source: Node, cuts: Sequence[Cut]) -> ShiftedArray | None:
    """An equation as a shift of the source that all its operands are cut from, if it is one."""
    named = source.type.mentions() | node.type.mentions()
    if named.union(*(symbols(c.start) for c in cuts)) - graph.sizes.keys():
        return None
    spans = [_span(c, graph.sizes) for c in cuts]
    k = max(range(len(cuts)), key=lambda k: len(spans[k]))
    before, behind = _border(cuts[:k], spans[:k]), _border(cuts[k + 1 :], spans[k + 1 :])
    length = evaluate(source.tensor.shape[cuts[k].axis], graph.sizes)
    few = 0 < len(before.elements) + len(behind.elements) <= MAX_BORDER_ELEMENTS
    first = not before.elements or spans[k].start == 0
    last = not behind.elements or spans[k].stop == length
    if not (few and first and last):
        return None
    return ShiftedArray(node, source.name, before, cuts[k], behind)


def _span(cut: Cut, sizes: Mapping[str, int]) -> range:
    start = evaluate(cut.start, sizes)
    return range(start, start + evaluate(cut.size, sizes))


def _border(cuts: Sequence[Cut], spans: Sequence[range]) -> Border:
    return Border(tuple(k for span in spans for k in span), tuple(cuts))


@dataclass
class Borders:
    """A graph in which some arrays are `parts` of longer ones; `done` holds (array, axis)."""

    graph: Rewriting
    parts: dict[str, Part]
    done: set[tuple[str, int]]

    def root(self, shift: ShiftedArray) -> Part:
        """The longer array whose part is shifted; the array itself if it is cut along the axis."""
        name, cuts = self.parts.get(shift.source, (shift.source, ()))
        return (shift.source, ()) if any(c.axis == shift.axis for c in cuts) else (name, cuts)

    def groups(self) -> Iterator[tuple[str, int, list[ShiftedArray]]]:
        """Yield the shifts of one array along one axis; first those that others are shifts of."""
        found = [s for n in self.graph.nodes.values() if (s := shift_of(self.graph, n))]
        by_root: dict[tuple[str, int], list[ShiftedArray]] = {}
        for s in found:
            by_root.setdefault((self.root(s)[0], s.axis), []).append(s)
        sources = {s.source for s in found}
        order = sorted(by_root.items(), key=lambda g: all(s.node.name not in sources for s in g[1]))
        yield from ((root, axis, group) for (root, axis), group in order)

    def share(self) -> str | None:
        """Extend one more array and make shifts parts of it; return a remark, or None."""
        for root, axis, group in self.groups():
            before = max((s.before for s in group), key=lambda b: len(b.elements))
            behind = max((s.behind for s in group), key=lambda b: len(b.elements))
            fit = [
                s
                for s in group
                if before.elements[len(before.elements) - len(s.before.elements) :]
                == s.before.elements
                and behind.elements[: len(s.behind.elements)] == s.behind.elements
            ]
            if (root, axis) in self.done or len(fit) < 2:
                continue
            self.done.add((root, axis))
            if fuel().burn("shifts of an array → parts of a longer one", root):
                self.extend(root, axis, before, behind, fit)
                return f"{root}: {len(fit)} shifts are parts of it with a border on axis {axis}"
        return None

    def extend(
        self, root: str, axis: int, before: Border, behind: Border, shifts: Sequence[ShiftedArray]
    ) -> None:
        """Put borders around an array, and cut its shifts from the result."""
        g, node = self.graph, self.graph[root]
        own, domain = g.read(root), node.domain
        ends = [
            [g.emit(c, (own,), domain, f"{root}_end", whole=True) for c in border.cuts]
            for border in (before, behind)
        ]
        op = Concat(axis=axis, materialized=True)
        whole = g.emit(op, (*ends[0], own, *ends[1]), domain, f"{root}_all", whole=True)
        for s in shifts:
            skipped = len(before.elements) - len(s.before.elements)
            start = lin([(skipped, 1), (s.part.start, 1)])
            first = Cut(axis=axis, start=start, size=s.node.tensor.shape[axis])
            cuts = (first, *self.root(s)[1])
            read = whole
            for c in cuts[:-1]:
                read = g.emit(c, (read,), domain, f"{root}_part", whole=True)
            g.put(replace(s.node, op=cuts[-1], args=(read,)))
            self.parts[s.node.name] = whole.name, cuts
        middle = Cut(axis=axis, start=len(before.elements), size=node.tensor.shape[axis])
        self.parts[root] = whole.name, (middle,)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether several arrays are concatenations."""
    return sum(isinstance(n.op, Concat) for n in graph.nodes.values()) > 1


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make shifts of one array parts of a longer one."""
    borders = Borders(Rewriting.of(graph, cx.sizes), {}, set())
    remarks = list(iter(borders.share, None))
    cx.remark(*remarks)
    return borders.graph.graph.live() if remarks else graph


SHARED_BORDERS = Pass("shared_borders", run, applies)
