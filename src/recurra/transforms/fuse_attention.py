"""Make softmax(q·k)·v over a range of the past one op, if the backend has a kernel for it.

    s[t<T]: f32[2,t+1] = einsum(q, k[0:t+1], labels='gd,nd->gn')
    p[t<T]: f32[2,t+1] = softmax(s, axis=1)
    y[t<T]: f32[2,4] = einsum(p, v[0:t+1], labels='gn,nd->gd')
 →  y[t<T]: f32[2,4] = attention(q, k[0:t+1], v[0:t+1], scores='gd,nd->gn', values=.., axis=1)

Attention is found by its structure: between the products there may be a cap, c·tanh(s/c), and a
mask that hides positions. If scores are changed in another way, or read elsewhere, they stay. The
pass runs before `strip_mine`, which would split the softmax; prompts are in chunks by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from recurra.cost.attention import AttentionKernel
from recurra.cost.thresholds import (
    LENGTH_SAMPLES,
    MAX_STRIP_BYTES,
    MIN_STRIP_POINTS,
    MIN_STRIPPED_POINTS,
    STRIP_POINTS,
)
from recurra.ir.expr import evaluate, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import Type
from recurra.ops import elementwise as el
from recurra.ops.attention import FAR, Attention
from recurra.ops.contraction import Einsum
from recurra.ops.softmax import Softmax
from recurra.ops.source import Const
from recurra.polyhedral.extent import at_sizes
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel
from recurra.transforms.vectorize.plan import ordered_dims


@dataclass(frozen=True)
class FoundAttention:
    """One attention: the equation `y` that becomes the op, its operands, and the dead equations."""

    y: Node
    op: Attention
    args: tuple[Ref, ...]
    gone: tuple[str, ...]

    @property
    def range(self) -> Slice:
        return self.args[1].slices[0]


@dataclass(frozen=True)
class AttentionChoice:
    """The decision on one attention, with the nanoseconds of both ways."""

    found: FoundAttention
    kernel: AttentionKernel
    alone: float
    tiled: float
    requested: bool | None

    @property
    def is_fused(self) -> bool:
        return self.alone < self.tiled if self.requested is None else self.requested

    def __str__(self) -> str:
        how = f"{self.kernel.name} {self.alone / 1e3:.0f} µs, equations {self.tiled / 1e3:.0f} µs"
        what = f"one call of {self.kernel.name}" if self.is_fused else "equations"
        asked = " as asked" if self.requested is not None else ""
        k = self.found.args[1]
        return f"attention {self.found.y.name} over {k}: {what}{asked} ({how})"


def fuse_attention(
    graph: Graph, sizes: Mapping[str, int], kernel: AttentionKernel, requested: bool | None = None
) -> tuple[Graph, list[AttentionChoice]]:
    """Return the graph with attentions in loops as one op if asked for, or cheaper than tiles.

    Also returns the decisions.
    """
    ordered = ordered_dims(graph)

    def is_in_loop(found: FoundAttention) -> bool:
        dims = (symbols(found.range.lo) | symbols(found.range.hi)) & ordered.keys()
        return bool(dims) and all(found.y.name in ordered[d] for d in dims)

    choices = [
        price(graph, sizes, kernel, f, requested) for f in attentions(graph) if is_in_loop(f)
    ]
    for c in choices:
        y = c.found.y
        if c.is_fused and fuel().burn("softmax(q·k)·v → attention", y.name):
            nodes = {n: x for n, x in graph.nodes.items() if n not in c.found.gone}
            nodes[y.name] = replace(y, op=c.found.op, args=c.found.args)
            graph = replace(graph, nodes=nodes)
    return graph.live(), choices


def attentions(graph: Graph) -> list[FoundAttention]:
    """Return the attentions over ranges, in the order of the graph; no two share an equation."""
    found = (_attention_at(graph, n) for n in graph.nodes.values() if isinstance(n.op, Einsum))
    return [f for f in found if f is not None]


def _attention_at(graph: Graph, node: Node) -> FoundAttention | None:
    """The attention that ends with an equation, the sum of weighted values, if one does."""
    assert isinstance(node.op, Einsum)
    ins, out = node.op.parts()
    if len(ins) != 2:
        return None
    for k, a in enumerate(node.args):
        p = inner(graph, node, a, Softmax)
        if p is None or not node.args[1 - k].slices:
            continue
        assert isinstance(p.op, Softmax)
        if ins[k][p.op.axis] in out:
            continue
        found = _of_weights(graph, node, f"{ins[k]},{ins[1 - k]}->{out}", p, node.args[1 - k])
        if found is not None:
            return found
    return None


def _of_weights(
    graph: Graph, node: Node, values: str, softmax: Node, ref: Ref
) -> FoundAttention | None:
    assert isinstance(softmax.op, Softmax)
    gone, reader, at = [softmax.name], softmax, softmax.args[0]
    hide = _masking(graph, reader, at)
    if hide is not None:
        gone.append(hide.name)
        reader, at = hide, hide.args[1]
    cap, names, at = _cap(graph, reader, at)
    gone += names
    s = inner(graph, graph[names[-1]] if names else reader, at, Einsum)
    if s is None or len(s.args) != 2:
        return None
    assert isinstance(s.op, Einsum)
    (first, second), out = s.op.parts()
    q, k, labels = s.args[0], s.args[1], s.op.labels
    if out[softmax.op.axis] in first:  # the operand that has the range comes second
        q, k, labels = k, q, f"{second},{first}->{out}"
    mask = "" if hide is None else _mask(graph, hide, out)
    op = Attention(scores=labels, values=values, axis=softmax.op.axis, cap=cap, mask=mask)
    if q.slices or k.slices != ref.slices or len(k.slices) != 1 or not op.roles().attend:
        return None
    roles = op.roles()
    if roles.k[0] != roles.n or roles.v[0] != roles.n:  # other axes do not run along the range
        return None
    seen = () if hide is None else (hide.args[0],)
    return FoundAttention(node, op, (q, k, ref, *seen), (*gone, s.name))


def inner(graph: Graph, node: Node, ref: Ref, kind: type[Op]) -> Node | None:
    """Return the equation behind a read, if its op is a `kind` and nothing else reads it."""
    x = graph[ref.name]
    alone = len(graph.readers[x.name]) == 1 and x.name not in graph.outputs
    mine = isinstance(x.op, kind) and ref.index == x.domain.identity and x.domain == node.domain
    return x if mine and alone else None


def _masking(graph: Graph, node: Node, ref: Ref) -> Node | None:
    """The equation that masks scores: a choice of them or a number that gets no weight."""
    x = inner(graph, node, ref, el.Where)
    if x is None:
        return None
    fill = graph[x.args[2].name].op
    (_, own, _), out = _labels(graph, x)
    far = isinstance(fill, Const) and FAR * 1e8 <= fill.value <= FAR / 10
    return x if far and own == out else None


def _mask(graph: Graph, hide: Node, scores: str) -> str:
    (mine, _, _), out = _labels(graph, hide)
    return "".join(scores[out.index(c)] for c in mine)


def _labels(graph: Graph, node: Node) -> tuple[tuple[str, ...], str]:
    assert isinstance(node.op, Elementwise)
    types = [graph.read_type(a) for a in node.args]
    return node.op.parts(tuple(t.rank for t in types if isinstance(t, Type)))


def _cap(graph: Graph, node: Node, ref: Ref) -> tuple[float, list[str], Ref]:
    """The c of c · tanh(s / c), the equations of it, and s; 0 and `ref` if there is no cap."""
    outer = _by_number(graph, node, ref, el.Mul)
    if outer is None:
        return 0.0, [], ref
    times, cap, of = outer
    tanh = inner(graph, times, of, el.HyperbolicTangent)
    if tanh is None:
        return 0.0, [], ref
    (x,) = tanh.args
    for kind in (el.Div, el.Mul):
        below = _by_number(graph, tanh, x, kind)
        if below is not None:
            less, number, s = below
            ratio = number / cap if kind is el.Div else number * cap
            if cap > 0 and abs(ratio - 1) < 1e-6:
                return cap, [times.name, tanh.name, less.name], s
    return 0.0, [], ref


def _by_number(
    graph: Graph, node: Node, ref: Ref, kind: type[Op]
) -> tuple[Node, float, Ref] | None:
    """x ∘ c: the equation, c, and the read of x."""
    x = inner(graph, node, ref, kind)
    if x is None:
        return None
    (mine, other), out = _labels(graph, x)
    pairs = [(x.args[0], x.args[1], mine)]
    if kind is el.Mul:
        pairs.append((x.args[1], x.args[0], other))
    for of, by, labels in pairs:
        number = graph[by.name].op
        if isinstance(number, Const) and number.shape == () and labels == out:
            return x, number.value, of
    return None


def price(
    graph: Graph,
    sizes: Mapping[str, int],
    kernel: AttentionKernel,
    found: FoundAttention,
    requested: bool | None,
) -> AttentionChoice:
    """Return the price of an attention at an average step, as one call and as equations."""
    points, most = lengths(sizes, found)
    row = 0
    for a in found.args[1:3]:
        source = graph[a.name]
        row += source.tensor.nbytes(sizes) * _side_by_side(sizes, found, source)
    tile = STRIP_POINTS
    while tile > MIN_STRIP_POINTS and tile * row > 2 * MAX_STRIP_BYTES:
        tile //= 2
    tile = most if most < MIN_STRIPPED_POINTS else tile
    alone, tiled = kernel.alone(points, most, row), kernel.in_tiles(points, tile, row)
    return AttentionChoice(found, kernel, alone, tiled, requested)


def _side_by_side(sizes: Mapping[str, int], found: FoundAttention, source: Node) -> int:
    """The points of a source that are read at one step: rows of a batch."""
    moving = symbols(found.range.lo) | symbols(found.range.hi)
    _, along = found.args[1].parts(source.domain)
    free = [r for r in at_sizes(source.domain, sizes) if r.dim not in moving | along.keys()]
    return prod(r.size({}) for r in free if not r.mentions())


def lengths(sizes: Mapping[str, int], attention: FoundAttention) -> tuple[float, int]:
    """Return the length of the range at an average step, and the largest."""
    box = at_sizes(attention.y.domain, sizes)
    moving = sorted((symbols(attention.range.lo) | symbols(attention.range.hi)) & set(box.dims))
    found: list[int] = []
    for k in range(LENGTH_SAMPLES):
        env = dict(sizes)
        for r in box:
            if r.dim in moving:
                lo, hi = evaluate(r.lo, sizes), evaluate(r.hi, sizes) - 1
                env[r.dim] = lo + (hi - lo) * k // (LENGTH_SAMPLES - 1)
        found.append(evaluate(attention.range.size, env))
    return sum(found) / len(found), max(found)


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether there is attention, and a kernel for it."""
    may = cx.target.attention_kernel is not None and cx.tuning.fused_attention is not False
    return may and bool(attentions(graph))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make softmax(q·k)·v over a range of the past one op if the backend's kernel is faster."""
    if cx.target.attention_kernel is None:
        return graph
    new, choices = fuse_attention(
        graph, cx.sizes, cx.target.attention_kernel, cx.tuning.fused_attention
    )
    cx.remark(*choices)
    return new


FUSE_ATTENTION = Pass("fuse_attention", run, applies)
