"""Split the rows of a dim over workers, which all run one program, each on rows of its own.

    u = uniform(counter=(b, t))               u = uniform(counter=(B*shard+b, t))
    n = value(B*T)                        →   n = value(B*shards*T)
    s = sum(x[0:B,0:T], axes=(0, 1))          p = sum(x[0:B,0:T], axes=(0, 1));  s = allreduce(p)

Afterwards B is the number of rows of a worker, also in an array of all rows that is computed row by
row, y[t<T]: f32[B] = square(x[0:B,t]). Host functions still get all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from recurra.analysis.diagnostics import display_name, tokens
from recurra.errors import Loc, ScheduleError, here
from recurra.ir.dims import Role
from recurra.ir.expr import Sym, mul, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, full_length, index_symbols
from recurra.ir.op import Elementwise, Symbolic
from recurra.ir.order import topological
from recurra.ir.types import Range, Tuple
from recurra.ops.collective import SHARD, SHARDS, AllReduce
from recurra.ops.control import Call, Item, Merge
from recurra.ops.indexing import Pick
from recurra.ops.movement import Expand
from recurra.ops.reduction import Reduction
from recurra.ops.source import Const
from recurra.transforms.compile_context import CompileContext, Pass, Shard
from recurra.transforms.rewriter.rewriting import shape_of
from recurra.transforms.vectorize.plan import batch_dims, ordered_dims

APART = (
    "rows that workers share nothing of but sums can be split: write a dim for workers where "
    "something is done with all rows of one"
)


@dataclass(frozen=True)
class Refusal:
    """The reason for which a dim cannot be split, the source line, and a hint."""

    why: str
    loc: Loc | None = None
    hint: str | None = None


def choose(graph: Graph, sizes: Mapping[str, int], workers: int) -> Shard:
    """Return the first unordered dim that can be split; raises ScheduleError if there is none.

    Dims that are axes of some equation come before those along which inputs are only reduced.
    """
    for name in (SHARD, SHARDS):
        if name in sizes or name in graph.declared:
            raise ScheduleError.at_user_line(
                f"a program that is split over workers has no dim or bound {name!r}",
                facts=f"{SHARD} is which of the {SHARDS} a worker is",
                hint="take another name",
            )
    named: dict[str, Refusal] = {}
    ordered, inner = ordered_dims(graph), tokens(graph)
    for d in dict.fromkeys((*batch_dims(graph, sizes), *graph.declared)):
        first = next((n for n in graph.nodes.values() if n.name in ordered[d] - inner), None)
        found = (
            refusal(graph, sizes, d, workers)
            if first is None
            else Refusal(f"{display_name(graph, first.name)} runs along it in order", first.loc)
        )
        if isinstance(found, Shard):
            return found
        named[d] = found
    written = {d.name for d in graph.dims if d.role is Role.WRITTEN}
    why = [f"{d}: {r.why}" for d, r in named.items() if d in written]
    raise ScheduleError(
        f"the program cannot be split over {workers} workers",
        facts="; ".join(why) or "it has no dims",
        hint=next((r.hint for r in named.values() if r.hint is not None), APART),
        loc=next((r.loc for r in named.values() if r.loc is not None), None) or here(),
    )


def refusal(graph: Graph, sizes: Mapping[str, int], dim: str, workers: int) -> Shard | Refusal:
    """Return the split of a dim, or the reason why there is none."""
    r = graph.declared[dim].range
    if r.lo != 0 or not isinstance(r.hi, Sym):
        return Refusal(f"it counts from {r.lo} to {r.hi}")
    rows = RowAxes(graph, r)
    for node in graph.nodes.values():
        why = _why_not(rows, sizes, node, r, r.hi.name)
        if why is not None:
            return Refusal(f"{display_name(graph, node.name)} {why}", node.loc)
    if over := r.size(sizes) % workers:
        n = r.size(sizes)
        fewer = next((w for w in range(min(workers, n), 1, -1) if n % w == 0), None)
        hint = f"compile with {{{r.hi}: {n - over + workers}}}"
        hint = f"workers={fewer}, or {hint}" if fewer else hint
        return Refusal(f"{workers} does not divide {r.hi} = {n}", hint=hint)
    return Shard(dim, r.hi.name, workers)


@dataclass
class RowAxes:
    """The axes of arrays along all rows, computed row by row; `known` maps names to axes."""

    graph: Graph
    rows: Range
    known: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        nodes = self.graph.nodes.values()
        rowwise = [
            n.name for n in nodes if isinstance(n.op, (Const, Expand, Reduction, Elementwise))
        ]
        for name in topological(rowwise, lambda n: [a.name for a in self.graph[n].args]):
            axis = self._propagated(self.graph[name])
            if axis is not None and name not in self.graph.outputs:
                self.known[name] = axis

    def of(self, ref: Ref) -> int | None:
        """Return the axis of a read that runs along all rows."""
        ranges = 0
        for e, x in zip(ref.index, self.graph[ref.name].domain, strict=True):
            if isinstance(e, Slice) and x.dim == self.rows.dim:
                return ranges
            ranges += isinstance(e, Slice)
        return ranges + self.known[ref.name] if ref.name in self.known else None

    def is_reduced(self, node: Node) -> bool:
        """Tell whether an equation reduces all rows, by a monoid."""
        return (
            isinstance(node.op, Reduction)
            and bool(node.op.monoid)
            and self.of(node.args[0]) in node.op.axes
        )

    def _propagated(self, node: Node) -> int | None:
        """The axis along all rows that an op keeps from its operands."""
        shape = shape_of(node.type)
        if self.rows.dim in node.domain or shape.count(self.rows.hi) != 1:
            return None
        axis, found = shape.index(self.rows.hi), [self.of(a) for a in node.args]
        ranks = tuple(len(shape_of(self.graph.read_type(a))) for a in node.args)
        match node.op:
            case Const() | Expand():
                return axis if found in ([], [None]) else None
            case Reduction(axes=axes):
                kept = [k for k in range(ranks[0]) if k not in axes]
                return axis if kept[axis] == found[0] else None
            case Elementwise():
                ins, out = node.op.parts(ranks)
                own = [-1 if k is None else k for k in found]
                return axis if own == [s.find(out[axis]) for s in ins] else None
            case _:
                return None


def _why_not(
    rows: RowAxes, sizes: Mapping[str, int], node: Node, extent: Range, bound: str
) -> str | None:
    """The reason why a worker cannot compute an equation for its own rows alone, if any."""
    for x in node.domain:
        if x != extent and (x.dim == extent.dim or bound in symbols(x.lo) | symbols(x.hi)):
            return f"is over {x}"
    by_row = node.name in rows.known or isinstance(node.type, Tuple) or isinstance(node.op, Item)
    if not by_row and bound in node.type.mentions():
        return f"is an array of all rows, {node.type}"
    for a in node.args:
        why = _read(rows, sizes, node, a, extent, bound)
        if why is not None:
            return why
    return None if node.name in rows.known else _attributes(node, extent, bound)


def _read(
    rows: RowAxes, sizes: Mapping[str, int], node: Node, ref: Ref, extent: Range, bound: str
) -> str | None:
    """The reason why a read is not of the own row, nor a sum over all rows, if any."""
    by_row = rows.is_reduced(node) or node.name in rows.known
    for e, x in zip(ref.index, rows.graph[ref.name].domain, strict=True):
        if x.dim != extent.dim:
            if {extent.dim, bound} & index_symbols(e):
                return f"reads {ref}"
        elif isinstance(e, Slice):
            op = node.op
            host = isinstance(op, Call) and extent.dim in op.batch_dims and rows.of(ref) == 0
            if not full_length(e, x, sizes) or not (by_row or host):
                return f"reads {ref} as one array"
        elif e != Sym(extent.dim):
            return f"reads another row, {ref}"
    if ref.name in rows.known and not by_row and not isinstance(node.op, Pick):
        return f"reads {ref} as one array"
    return None


def _attributes(node: Node, extent: Range, bound: str) -> str | None:
    """The reason why an attribute may not mention the row: it may only as a number."""
    if isinstance(node.op, (Call, Item)) or not node.op.mentions() & {extent.dim, bound}:
        return None
    if isinstance(node.op, Pick):
        return None if node.op.at_ == Sym(extent.dim) else f"picks {node.op.at_}"
    if isinstance(node.op, Merge) or not isinstance(node.op, Symbolic):
        return f"is {node.op}"
    bind = getattr(node.op, "bind", ())
    return f"is {node.op}" if any(bound in symbols(size) for _, size, _ in bind) else None


def shard_rows(graph: Graph, shard: Shard) -> Graph:
    """Return the program of one worker, for its own bounds, `Shard.sizes`."""
    b, B = Sym(shard.dim), Sym(shard.bound)
    row, rows = mul(Sym(SHARD), B) + b, mul(Sym(SHARDS), B)
    arrays = RowAxes(graph, graph.declared[shard.dim].range)
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if n.name in arrays.known:
            nodes[n.name] = n
            continue
        if isinstance(n.op, Symbolic) and n.op.mentions() & {shard.dim, shard.bound}:
            n = replace(n, op=n.op.at({shard.dim: row, shard.bound: rows}))
        if isinstance(n.op, Pick):  # from an array of all rows that all workers have
            shape = graph.read_type(n.args[0]).shape
            if shard.bound not in symbols(shape[n.op.axis]):
                n = replace(n, op=n.op.at({shard.dim: row}))
        if isinstance(n.op, Reduction) and arrays.is_reduced(n):
            own = replace(n, name=graph.fresh(f"{n.name}_own", nodes))
            assert n.op.monoid is not None
            nodes[own.name] = own
            op = AllReduce(monoid_of=n.op.monoid)
            n = replace(n, op=op, args=(Ref(own.name, own.domain.identity),))
        nodes[n.name] = n
    return Graph(nodes, graph.outputs, graph.dims)


def reads_all(graph: Graph, ref: Ref, dim: str) -> bool:
    """Tell whether a read is of all rows."""
    return any(
        r.dim == dim and isinstance(e, Slice)
        for e, r in zip(ref.index, graph[ref.name].domain, strict=True)
    )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether there are several workers."""
    return cx.workers > 1


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Turn the program into that of one of several workers, for its own rows."""
    cx.shard = choose(graph, cx.sizes, cx.workers)
    cx.sizes = cx.shard.sizes(cx.sizes)
    cx.remark(cx.shard)
    return shard_rows(graph, cx.shard)


SHARD_ROWS = Pass("shard", run, applies)
