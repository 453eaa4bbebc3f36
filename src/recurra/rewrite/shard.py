"""shard: rows of a dim are split over workers, who run one program, each on rows of its own.

    u = uniform(counter=(b, t))               u = uniform(counter=(B*shard+b, t))
    n = value(B*T)                        →   n = value(B*shards*T)
    s = sum(x[0:B,0:T], axes=(0, 1))          p = sum(x[0:B,0:T], axes=(0, 1));  s = allreduce(p)

From here on B is how many rows a worker has. Host functions still see all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recurra.errors import Loc, ScheduleError
from recurra.ir.expr import Sym, mul, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, full_length, index_symbols
from recurra.ir.op import Symbolic
from recurra.ir.types import Range, Tuple, Type
from recurra.ops.collective import SHARD, SHARDS, AllReduce
from recurra.ops.control import Call, Item, Merge
from recurra.ops.indexing import Pick
from recurra.ops.reduction import Reduction
from recurra.rewrite.compile_context import CompileContext, Pass, Shard
from recurra.rewrite.granularity import batch_dims, loops


@dataclass(frozen=True)
class Refusal:
    """Why a dim cannot be split, and where."""

    why: str
    loc: Loc | None = None


def choose(graph: Graph, sizes: Mapping[str, int], workers: int) -> Shard:
    """The first dim that orders nothing and can be split; raises ScheduleError if there is none.

    Dims that are axes of some equation come before those along which inputs are only reduced.
    """
    for name in (SHARD, SHARDS):
        if name in sizes or name in graph.declared:
            raise ScheduleError(
                f"a program that is split over workers has no dim or bound {name!r}",
                facts=f"{SHARD} is which of the {SHARDS} a worker is",
                hint="take another name",
            )
    named: dict[str, Refusal] = {}
    ordered = loops(graph)
    for d in dict.fromkeys((*batch_dims(graph, sizes), *graph.declared)):
        first = next((n for n in graph.nodes.values() if n.name in ordered[d]), None)
        found = (
            refusal(graph, sizes, d, workers)
            if first is None
            else Refusal(f"{first.name} runs along it in order", first.loc)
        )
        if isinstance(found, Shard):
            return found
        named[d] = found
    raise ScheduleError(
        f"the program cannot be split over {workers} workers",
        facts="; ".join(f"{d}: {r.why}" for d, r in named.items()) or "it has no dims",
        hint="rows that workers share nothing of but sums can be split: write a dim for workers "
        "where something is done with all rows of one",
        loc=next((r.loc for r in named.values() if r.loc is not None), None),
    )


def refusal(graph: Graph, sizes: Mapping[str, int], dim: str, workers: int) -> Shard | Refusal:
    """How a dim is split, or why it cannot be."""
    r = graph.declared[dim].range
    if r.lo != 0 or not isinstance(r.hi, Sym):
        return Refusal(f"it counts from {r.lo} to {r.hi}")
    n = r.size(sizes)
    if n % workers:
        return Refusal(f"{workers} does not divide {r.hi} = {n}")
    for node in graph.nodes.values():
        why = _why_not(graph, sizes, node, r, r.hi.name)
        if why is not None:
            return Refusal(f"{node.name} {why}", node.loc)
    return Shard(dim, r.hi.name, workers)


def _why_not(graph: Graph, sizes: Mapping[str, int], n: Node, r: Range, bound: str) -> str | None:
    """What an equation does with the rows that a worker cannot do with its own."""
    for x in n.domain:
        if x != r and (x.dim == r.dim or bound in symbols(x.lo) | symbols(x.hi)):
            return f"is over {x}"
    if not isinstance(n.type, Tuple) and not isinstance(n.op, Item) and bound in n.type.mentions():
        return f"is an array of all rows, {n.type}"
    for a in n.args:
        why = _read(graph, sizes, n, a, r, bound)
        if why is not None:
            return why
    return _attributes(n, r, bound)


def _read(
    graph: Graph, sizes: Mapping[str, int], n: Node, a: Ref, r: Range, bound: str
) -> str | None:
    """What is wrong with a read: of a row it is the own one, of all it goes into a sum."""
    axis = -1
    for e, x in zip(a.index, graph[a.name].domain, strict=True):
        axis += isinstance(e, Slice)
        if x.dim != r.dim:
            if {r.dim, bound} & index_symbols(e):
                return f"reads {a}"
        elif isinstance(e, Slice):
            joins = isinstance(n.op, Reduction) and axis in n.op.axes and bool(n.op.monoid)
            hosts = isinstance(n.op, Call) and r.dim in n.op.batch_dims and axis == 0
            if not full_length(e, x, sizes) or not (joins or hosts):
                return f"reads {a} as one array"
        elif e != Sym(r.dim):
            return f"reads another row, {a}"
    return None


def _attributes(n: Node, r: Range, bound: str) -> str | None:
    """Attributes may say which row it is, where they are numbers."""
    if isinstance(n.op, (Call, Item)) or not n.op.mentions() & {r.dim, bound}:
        return None
    if isinstance(n.op, Pick):
        return None if n.op.at_ == Sym(r.dim) else f"picks {n.op.at_}"
    if isinstance(n.op, Merge) or not isinstance(n.op, Symbolic):
        return f"is {n.op}"
    bind = getattr(n.op, "bind", ())
    return f"is {n.op}" if any(bound in symbols(size) for _, size, _ in bind) else None


def shard(graph: Graph, s: Shard) -> Graph:
    """The program of one worker, for its own bounds, `Shard.sizes`."""
    b, B = Sym(s.dim), Sym(s.bound)
    row, rows = mul(Sym(SHARD), B) + b, mul(Sym(SHARDS), B)
    nodes: dict[str, Node] = {}
    for n in graph.nodes.values():
        if isinstance(n.op, Symbolic) and n.op.mentions() & {s.dim, s.bound}:
            n = replace(n, op=n.op.at({s.dim: row, s.bound: rows}))
        if isinstance(n.op, Pick) and not own_rows(graph, n, n.op, s.bound):
            n = replace(n, op=n.op.at({s.dim: row}))
        if isinstance(n.op, Reduction) and reads_all(graph, n.args[0], s.dim):
            own = replace(n, name=graph.fresh(f"{n.name}_own", nodes))
            assert n.op.monoid is not None
            assert isinstance(n.type, Type)
            nodes[own.name] = own
            op = AllReduce(monoid_of=n.op.monoid)
            n = replace(n, op=op, args=(Ref(own.name, own.domain.identity),))
        nodes[n.name] = n
    return Graph(nodes, graph.outputs, graph.dims)


def own_rows(graph: Graph, n: Node, op: Pick, bound: str) -> bool:
    """Is it picked from what a worker has, not from numbers of all rows that all workers have?"""
    t = graph.read_type(n.args[0])
    return bound in symbols(t.shape[op.axis])


def reads_all(graph: Graph, a: Ref, dim: str) -> bool:
    """Does a read take all rows?"""
    return any(
        r.dim == dim and isinstance(e, Slice)
        for e, r in zip(a.index, graph[a.name].domain, strict=True)
    )


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether there are several workers."""
    return cx.workers > 1


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Make the program that of one of several workers, for its own rows."""
    cx.shard = choose(graph, cx.sizes, cx.workers)
    cx.sizes = cx.shard.sizes(cx.sizes)
    cx.remark(cx.shard)
    return shard(graph, cx.shard)


SPLIT_ROWS = Pass("shard", run, applies)
