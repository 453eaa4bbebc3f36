"""single: a dim of one point orders nothing, and goes.

    w[i<I,e<E] = merge(c, w_next[i,e-1], w_next[i-1,E-1], ..)   E = 1   →   w[i<I] = merge(c, ..)

With one epoch of one minibatch, learning is then over the same points as acting, and what both
compute is computed once. An output keeps an axis of one element for each dim that it loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from recurra.ir.expr import Expr, Sym, evaluate, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice, index_symbols
from recurra.ir.op import LETTERS
from recurra.ir.types import Domain, Range, Type
from recurra.ops.control import Call, Merge
from recurra.ops.movement import Expand
from recurra.ops.source import Input
from recurra.rewrite.compile_context import Axes, CompileContext, Pass
from recurra.rewrite.fuel import fuel
from recurra.rewrite.granularity import loops


def single(graph: Graph, sizes: Mapping[str, int]) -> tuple[Graph, list[Axes]]:
    """The graph without dims of one point, and where the dims of its outputs are."""
    gone = [d for d in of_one_point(graph, sizes) if fuel().burn("a dim of one point → none", d)]
    at: dict[str, Expr | int] = {}
    for d in gone:
        r = graph.declared[d].range
        at[d] = r.lo
        if isinstance(r.hi, Sym):
            at[r.hi.name] = sizes[r.hi.name]
    work = _Single(graph, at, frozenset(gone))
    return work.graph_without(), [work.axes(graph[o]) for o in graph.outputs]


def fewer_dims(axes: Sequence[Axes], single: Sequence[Axes]) -> list[Axes]:
    """Where the dims of outputs are after `single`, from where they were."""
    pairs = zip(axes, single, strict=True)
    return [(kept, (*(d for d in new if d), *names)) for (_, names), (kept, new) in pairs]


def of_one_point(graph: Graph, sizes: Mapping[str, int]) -> list[str]:
    """Dims of one point along which something recurs: all but the outermost of them.

    Host functions and inputs keep their dims, which the outside knows; so do equations over more or
    less than the points of a dim, b<B+1.
    """
    ordered = loops(graph)
    kept: set[str] = set()
    whole = {d.name: d.range for d in graph.dims}
    for n in graph.nodes.values():
        kept |= {r.dim for r in n.domain if not _same(r, whole[r.dim], sizes)}
        if isinstance(n.op, (Call, Input)):
            kept |= set(n.domain.dims)
        for a in n.args:
            for e, r in zip(a.index, graph[a.name].domain, strict=True):
                if isinstance(e, Slice) and (isinstance(n.op, Merge) or not _whole(e, r, sizes)):
                    kept.add(r.dim)
    recur = [d.range for d in graph.dims if ordered[d.name]]
    return [r.dim for r in recur[1:] if r.size(sizes) == 1 and r.dim not in kept]


def _same(r: Range, dim: Range, sizes: Mapping[str, int]) -> bool:
    """Has an equation the points of a dim?"""
    if (symbols(r.lo) | symbols(r.hi)) - sizes.keys():
        return False
    return (evaluate(r.lo, sizes), evaluate(r.hi, sizes)) == (
        evaluate(dim.lo, sizes),
        evaluate(dim.hi, sizes),
    )


def _whole(s: Slice, r: Range, sizes: Mapping[str, int]) -> bool:
    """Is it the one point that there is?"""
    if s.pad is not None or (index_symbols(s) | symbols(r.lo)) - sizes.keys():
        return False
    env = dict(sizes)
    return (evaluate(s.lo, env), evaluate(s.count, env)) == (evaluate(r.lo, env), 1)


@dataclass
class _Single:
    """The rewriting of one graph: dims in `gone` are at `at`."""

    graph: Graph
    at: Mapping[str, Expr | int]
    gone: frozenset[str]
    made: dict[str, Node] = field(default_factory=dict)

    def axes(self, n: Node) -> Axes:
        """Where the dims of an output are: those that go, as axes ahead of its own."""
        ahead = tuple(d for d in n.domain.dims if d in self.gone)
        kept = tuple(d for d in n.domain.dims if d not in self.gone)
        return kept, (*ahead, *[""] * len(n.type.shape))

    def graph_without(self) -> Graph:
        if not self.gone:
            return self.graph
        for n in self.graph.nodes.values():
            self.made[n.name] = self.node(n)
        outputs = tuple(self.output(self.graph[o]) for o in self.graph.outputs)
        dims = tuple(d for d in self.graph.dims if d.name not in self.gone)
        return Graph(self.made, outputs, dims)

    def domain(self, d: Domain) -> Domain:
        return Domain(
            tuple(
                Range(r.dim, substitute(r.hi, self.at), substitute(r.lo, self.at))
                for r in d
                if r.dim not in self.gone
            )
        )

    def node(self, n: Node) -> Node:
        domain = self.domain(n.domain)
        args = tuple(self.read(a, domain) for a in n.args)
        type_ = n.type.at(self.at) if isinstance(n.type, Type) else n.type
        return replace(n, op=n.op.at(self.at), args=args, domain=domain, type=type_)

    def read(self, a: Ref, within: Domain) -> Ref:
        """The read without the dims that go; an axis of one element is a copy along it."""
        pairs = list(zip(a.index, self.graph[a.name].domain, strict=True))
        ref = Ref(a.name, tuple(e for e, r in pairs if r.dim not in self.gone)).at(self.at)
        cut = [r.dim for e, r in pairs if isinstance(e, Slice)]
        if not any(d in self.gone for d in cut):
            return ref
        ones = {k for k, d in enumerate(cut) if d in self.gone}
        rank = len(cut) + len(self.graph[a.name].type.shape)
        return self.copied(ref, ones, rank, within)

    def copied(self, ref: Ref, ones: set[int], rank: int, within: Domain) -> Ref:
        """`ref` with axes of one element put in, as an equation of its own."""
        axes = LETTERS[:rank]
        rest = "".join(c for k, c in enumerate(axes) if k not in ones)
        op = Expand(labels=f"{rest}->{axes}", sizes=(1,) * len(ones))
        used = set().union(*map(index_symbols, ref.index))
        domain = Domain(tuple(r for r in within if r.dim in used))
        n = self.graph[ref.name]
        cut = iter([s.size for s in ref.slices])
        shape = n.type.at(self.at).shape if isinstance(n.type, Type) else ()
        own = iter(shape)
        lead = rank - len(shape)
        sizes = tuple(1 if k in ones else next(cut if k < lead else own) for k in range(rank))
        name = self.graph.fresh(f"{ref.name}_one", self.made)
        self.made[name] = Node(name, op, (ref,), domain, Type(n.type.dtype, sizes), n.loc)
        return Ref(name, domain.identity)

    def output(self, n: Node) -> str:
        """An output with its axes of one element, ahead of its own."""
        ones = sum(d in self.gone for d in n.domain.dims)
        if not ones:
            return n.name
        new = self.made[n.name]
        read = Ref(n.name, new.domain.identity)
        return self.copied(read, set(range(ones)), ones + len(n.type.shape), new.domain).name


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether an inner dim of one point recurs."""
    ranges = (d.range for d in graph.dims[1:])
    inner = (r for r in ranges if not r.mentions() - cx.sizes.keys())
    return any(r.size(cx.sizes) == 1 for r in inner) and bool(of_one_point(graph, cx.sizes))


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Drop inner dims of one point, such as one epoch."""
    new, axes = single(graph, cx.sizes)
    cx.axes = fewer_dims(cx.axes, axes)
    return new


SINGLE = Pass("single", run, applies)
