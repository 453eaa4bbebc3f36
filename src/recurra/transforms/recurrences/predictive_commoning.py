"""Predictive commoning: read a value that was computed at another point, not compute it again.

    u[t<T-1] = f(x[t+1])                                   f[t+1], where f[t<T] = f(x)
    v[t<T] = f(x)                                     →

    x[t<T] = merge(a, y[t-1], when=(t == 0, t >= 1))
    v[t<T] = f(x)                                          v[t<T] = merge(f(a), z[t-1], ..)
    z[t<T] = f(y)                                     →    z[t<T] = f(y)

Examples are a value function of one state and the next, and the force at the end of one step and
the beginning of the next (Allen and Kennedy, 2002, section 8.3; Alpern, Wegman and Zadeck, 1988,
for branches). Chains of equations are followed from their operands on. The value that is read
instead is kept for a step, which must cost less than the chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recurra.cost.model import compute_ns, keep_ns
from recurra.cost.prices import Prices
from recurra.ir.expr import TRUE, Expr, Sym, evaluate, fixed_value
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, fresh_name, index_symbols
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import Domain, Range, Tuple, is_shift
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.reduction import Reduction
from recurra.ops.source import Input
from recurra.polyhedral.boxes import bounding_domain, hull
from recurra.polyhedral.dependence import always_inside
from recurra.transforms.compile_context import CompileContext, Pass
from recurra.transforms.rewriter.optimization_fuel import fuel

Shift = tuple[int, ...]  # one for each dim of a domain


@dataclass(frozen=True)
class Formula:
    """An op and its operands, up to a shift: y[t] = formula at t + shift."""

    op: Op
    args: tuple[Ref, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """An equation, which is a formula at a shift."""

    name: str
    shift: Shift


@dataclass
class Commoning:
    """The equalities of a graph: equations as reads of others, or as merges of such reads."""

    graph: Graph
    sizes: Mapping[str, int]
    equal: dict[str, Ref | Node] = field(default_factory=dict[str, "Ref | Node"])
    new: dict[str, Node] = field(default_factory=dict[str, Node])
    domains: dict[str, Domain] = field(default_factory=dict[str, Domain])  # that have grown
    known: dict[Formula, Member] = field(default_factory=dict[Formula, Member])

    def search(self) -> bool:
        """Look for equal equations until there are no more; tell whether there are any."""
        nodes = [n for n in self.graph.nodes.values() if _may_be_equal(n)]
        alike = Counter((n.op, n.domain.dims) for n in nodes)
        nodes = [n for n in nodes if alike[n.op, n.domain.dims] > 1]
        while True:
            before = len(self.equal)
            self.find_shifted(nodes)
            for n in nodes:
                if n.name not in self.equal and (merged := self.as_merge(n)) is not None:
                    self.equal[n.name] = merged
            if len(self.equal) == before:
                return bool(self.equal)

    def find_shifted(self, nodes: Sequence[Node]) -> None:
        """Note the equations that equal others at a fixed distance."""
        groups: dict[Formula, list[Member]] = {}
        for n in nodes:
            if n.name not in self.equal:
                formula, shift = _formula(n.op, map(self.read, n.args), n.domain.dims)
                groups.setdefault(formula, []).append(Member(n.name, shift))
        for formula, members in groups.items():
            members.sort(key=lambda m: sum(map(abs, m.shift)))
            first = self.known[formula] = members[0]
            for m in members[1:]:
                ref = self.ref(first, m.shift, formula.dims)
                grown = self.grown(first.name, ref, self.domain(m.name))
                if grown is not None:
                    self.equal[m.name], self.domains[first.name] = ref, grown

    def as_merge(self, node: Node) -> Node | None:
        """An equation as a merge, if it reads one and equals a known equation on its branches."""
        merges = [m for a in node.args if (m := self.merge(a)) is not None]
        whens = {m.op.when for m in merges if isinstance(m.op, Merge)}
        if len(whens) != 1 or node.op.mentions() & set(node.domain.dims):
            return None
        (when,), out, moved = whens, list[Ref](), False
        for k, condition in enumerate(when):
            args = [m.args[k] if (m := self.merge(a)) else self.read(a) for a in node.args]
            ref = self.known_at(node, args, bounding_domain(node.domain, condition, self.sizes))
            moved |= ref is not None and ref.index != node.domain.identity
            if ref is None and (ref := self.at_one_point(node, args, condition)) is None:
                return None
            out.append(ref)
        return replace(node, op=Merge(when), args=tuple(out), locs=()) if moved else None

    def known_at(self, node: Node, args: Iterable[Ref], domain: Domain) -> Ref | None:
        """The read of a known equation that equals the op of a node on some operands."""
        formula, shift = _formula(node.op, args, node.domain.dims)
        member = self.known.get(formula)
        if member is None or member.name == node.name:
            return None
        ref = self.ref(member, shift, node.domain.dims)
        return ref if always_inside(ref.index, self.domain(member.name), domain) else None

    def at_one_point(self, node: Node, args: Sequence[Ref], when: Expr) -> Ref | None:
        """Add an equation of operands at the one point at which a branch is taken."""
        at = {d: e for d in node.domain.dims if (e := fixed_value(when, d)) is not None}
        args = [a.at(at) for a in args]
        used = set[str]().union(*(index_symbols(e) for a in args for e in a.index))
        domain = node.domain.of(used)
        if not at or set(domain.dims) & at.keys():
            return None
        name = fresh_name(f"{node.name}_first", {*self.graph.nodes, *self.new})
        self.new[name] = Node(name, node.op, tuple(args), domain, node.type, node.loc)
        return Ref(name, domain.identity)

    def merge(self, ref: Ref) -> Node | None:
        """The merge of several branches behind an identity read, if one is."""
        n = self.equal.get(ref.name, self.graph[ref.name])
        if isinstance(n, Ref) or not isinstance(n.op, Merge) or len(n.args) < 2:
            return None
        return n if ref.index == n.domain.identity else None

    def domain(self, name: str) -> Domain:
        """The points of an equation, with those that its readers added."""
        return self.domains.get(name) or (self.new.get(name) or self.graph[name]).domain

    def ref(self, member: Member, shift: Shift, dims: Sequence[str]) -> Ref:
        """The read of a member that gives its formula at a shift."""
        own = self.domain(member.name)
        gaps = zip(own, shift, member.shift, strict=True)
        return Ref(member.name, tuple(r.sym + (a - b) for r, a, b in gaps))

    def grown(self, name: str, ref: Ref, reader: Domain) -> Domain | None:
        """The points of an equation with those that a reader needs, if they are a box."""
        own, ranges = self.domain(name), list[Range]()
        if always_inside(ref.index, own, reader):
            return own
        for r, e, s in zip(own, ref.index, reader, strict=True):
            by = is_shift(e, s.dim) or 0
            read = Range(r.dim, s.hi + by, s.lo + by)
            joined = hull([r, read], self.sizes)
            if joined is None or not _touch(r, read, self.sizes):
                return None
            ranges.append(joined)
        changed = [r for r, s in zip(ranges, own, strict=True) if r != s]
        whole = {d.name: d.range for d in self.graph.dims}
        inside = all(hull([r, whole[r.dim]], self.sizes) == whole[r.dim] for r in changed)
        return Domain(tuple(ranges)) if len(changed) == 1 and inside else None

    def read(self, ref: Ref) -> Ref:
        """Follow a read through equations that equal reads of others."""
        n = self.equal.get(ref.name)
        if not isinstance(n, Ref):
            return ref
        return self.read(_through(ref, self.graph[ref.name].domain, n))

    def chain(self, name: str) -> set[str]:
        """The equations that need not be computed if one is read from elsewhere."""
        out, todo = set[str](), [name]
        while todo:
            n = todo.pop()
            if n not in out and n in self.equal:
                out.add(n)
                todo += (a.name for a in self.graph[n].args)
        return out

    def ends(self) -> list[str]:
        """The equations that equal others, and that equations which do not read."""
        graph = self.graph
        return [
            n
            for n in self.equal
            if n in graph.outputs or any(r.name not in self.equal for r, _ in graph.readers[n])
        ]

    def applied(self, names: Iterable[str]) -> Graph:
        """The graph in which some equations are read from elsewhere, or merged of such reads."""
        graph, merges, new = self.graph, dict[str, Node](), dict[str, Node]()
        refs: dict[str, Ref] = {}
        for name in names:
            equal, n = self.equal[name], graph[name]
            if isinstance(equal, Node):
                merges[name] = equal
            elif name in graph.outputs:
                merges[name] = replace(n, op=Merge((TRUE,)), args=(self.read(equal),))
            else:
                refs[name] = self.read(equal)
        for n in (*graph.nodes.values(), *self.new.values()):
            n = merges.get(n.name, n)
            args = tuple(
                _through(a, graph[a.name].domain, refs[a.name]) if a.name in refs else a
                for a in n.args
            )
            new[n.name] = replace(n, args=args)
        seen, todo = set[str](), [self.read(a).name for n in names for a in _reads(self.equal[n])]
        while todo:
            name = todo.pop()
            if name in seen or not (name in self.domains or name in self.new):
                continue
            seen.add(name)
            args = tuple(map(self.read, new[name].args))  # at all of these points they are there
            new[name] = replace(new[name], args=args, domain=self.domain(name))
            todo += (a.name for a in args)
        return Graph(new, graph.outputs, graph.dims).live()


def _may_be_equal(node: Node) -> bool:
    """Tell whether an equation may equal another one at a distance."""
    op, shape = node.op, node.type.mentions()
    if not op.pure or op.drawn or isinstance(op, (Merge, Input)) or isinstance(node.type, Tuple):
        return False
    return bool(node.domain) and not shape & set(node.domain.dims)


def _formula(op: Op, args: Iterable[Ref], dims: Sequence[str]) -> tuple[Formula, Shift]:
    """The formula of an op on some operands, and its shift."""
    args, own = tuple(args), op.mentions()
    gaps: dict[str, int] = {}
    for d in dims:
        found = (is_shift(e, d) for a in args for e in a.index if d not in own)
        gaps[d] = next((c for c in found if c is not None), 0)
    back = {d: Sym(d) - c for d, c in gaps.items() if c}
    formula = Formula(op, tuple(a.at(back) for a in args), tuple(dims))
    return formula, tuple(gaps.values())


def _through(ref: Ref, domain: Domain, target: Ref) -> Ref:
    """A read of an equation as one of another that it equals at a fixed distance."""

    def moved(index: Index, by: int) -> Index:
        if isinstance(index, Slice):
            return replace(index, lo=index.lo + by, hi=index.hi + by)
        return index + by

    gaps = (is_shift(e, r.dim) or 0 for e, r in zip(target.index, domain, strict=True))
    return Ref(target.name, tuple(moved(e, c) for e, c in zip(ref.index, gaps, strict=True)))


def _reads(equal: Ref | Node) -> tuple[Ref, ...]:
    return (equal,) if isinstance(equal, Ref) else equal.args


def _touch(left: Range, right: Range, sizes: Mapping[str, int]) -> bool:
    """Tell whether there is no gap between two ranges."""
    first = max(evaluate(left.lo, sizes), evaluate(right.lo, sizes))
    return first <= min(evaluate(left.hi, sizes), evaluate(right.hi, sizes))


def is_profitable(commoning: Commoning, name: str, cx: CompileContext) -> bool:
    """Tell whether computing an equation, and what only it reads, costs more than keeping it."""
    graph, prices = commoning.graph, cx.target.prices
    chain = [graph[n] for n in commoning.chain(name)]
    calls = sum(_is_kernel(n, prices) for n in chain)  # others cost no more than their work
    spent = sum(compute_ns(graph, n, cx.sizes, prices) for n in chain) + calls * prices.statement
    return spent > keep_ns(graph[name], cx.sizes, prices=prices)


def _is_kernel(node: Node, prices: Prices) -> bool:
    """Tell whether an equation is a kernel of its own, unlike elementwise work and movement."""
    if isinstance(node.op, Elementwise):
        return False
    return isinstance(node.op, (Einsum, Reduction)) or prices.of(node.op.name) > prices.plain


def applies(graph: Graph, cx: CompileContext) -> bool:
    """Tell whether a point is read at a fixed distance."""
    return any(
        is_shift(e, r.dim)
        for n in graph.nodes.values()
        for a in n.args
        for e, r in zip(a.index, graph[a.name].domain, strict=True)
    )


def run(graph: Graph, cx: CompileContext) -> Graph:
    """Read what was computed at another point instead of computing it again."""
    commoning = Commoning(graph, cx.sizes)
    if not commoning.search():
        return graph
    law = "computed at two points → read at another"
    names = [n for n in commoning.ends() if is_profitable(commoning, n, cx) and fuel().burn(law, n)]
    for n in names:
        cx.remark(f"{n}: {', '.join(map(str, _reads(commoning.equal[n])))}")
    return commoning.applied(names) if names else graph


PREDICTIVE_COMMONING = Pass("predictive_commoning", run, applies)
