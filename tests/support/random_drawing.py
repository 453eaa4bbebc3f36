"""A random program while it is drawn: domains, reads that are legal, recurrences that close.

Legal by construction: an equation reads older ones anywhere inside their domain; what depends on a
recurrence that is still open is read only at or behind the current point of its dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from recurra.ir.dims import Dim
from recurra.ir.expr import (
    TRUE,
    Expr,
    all_of,
    compare,
    evaluate,
    maximum,
    minimum,
    mod,
    negate,
    symbols,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Type
from recurra.ops import elementwise as el
from recurra.ops.control import Merge
from recurra.ops.reduction import Sum
from recurra.ops.source import Const

LARGEST = 12  # causal reads hold for every size of their dim up to here; constants are at most 3


@dataclass(frozen=True)
class Case:
    """A program and the sizes it is run at."""

    graph: Graph
    sizes: dict[str, int]

    def __str__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"# what goes wrong\nsizes {head}\n{self.graph}\n---"

    __repr__ = __str__


def ragged(graph: Graph, sizes: dict[str, int]) -> bool:
    """Does the length of some axis vary with a dim?"""
    types = [n.type for n in graph.nodes.values()]
    types += [graph.read_type(a) for n in graph.nodes.values() for a in n.args]
    return any(symbols(s) - sizes.keys() for t in types for s in t.shape)


@dataclass(frozen=True)
class Recurrence:
    """A merge whose later branches are still to be written."""

    name: str
    dim: str
    sign: int  # +1: from the smallest point up


@dataclass
class Program:
    """A program while it is drawn. `waits`: the open recurrences that an equation depends on."""

    draw: st.DrawFn
    sizes: dict[str, int]
    dims: tuple[Range, ...]
    shapes: list[tuple[int, ...]]
    nodes: dict[str, Node] = field(default_factory=dict)
    waits: dict[str, frozenset[Recurrence]] = field(default_factory=dict)
    open: list[Recurrence] = field(default_factory=list)
    kinds: Sequence[Callable[[Program, Domain], None]] = ()
    draws: int = 0

    # ---- small helpers

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    @property
    def graph(self) -> Graph:
        return Graph(self.nodes, (), tuple(map(Dim, self.dims)))

    def type(self, ref: Ref) -> Any:
        return self.graph.read_type(ref)

    def range(self, dim: str) -> Range:
        return next(r for r in self.dims if r.dim == dim)

    def add(self, op: Op, args: Sequence[Ref], domain: Domain, type_: Type | None = None) -> str:
        """A new equation, named after its op."""
        name = f"{op.name}{len(self.nodes)}"
        type_ = op.infer(*(self.type(a) for a in args)) if type_ is None else type_
        self.nodes[name] = Node(name, op, tuple(args), domain, type_)
        self.waits[name] = frozenset().union(*(self.waits[a.name] for a in args))
        return name

    # ---- domains

    def domain(self, needed: set[str]) -> Domain:
        """Some dims, `needed` among them, mostly over their whole range."""
        out: list[Range] = []
        for r in self.dims:
            if r.dim in needed or self.chance(40):
                t: Any = r.hi
                ends = [(0, t)] * 6 + [(1, t), (0, t - 1), (0, t + 1), (0, 2)]
                lo, hi = self.pick(ends)
                out.append(Range(r.dim, hi, lo))
        return Domain(tuple(out))

    def points(
        self, domain: Domain, names: set[str], where: Expr, sizes: dict[str, int]
    ) -> Iterator[dict]:
        """The points of a domain where `where` holds, as far as `names` and it tell them apart."""
        wanted = names | symbols(where)
        spans = [
            range(evaluate(r.lo, sizes), evaluate(r.hi, sizes)) if r.dim in wanted else range(1)
            for r in domain
        ]
        for p in product(*spans):
            env = {**sizes, **dict(zip(domain.dims, p, strict=True))}
            if evaluate(where, env):
                yield env

    # ---- reads

    def legal(
        self, e: Index, source: Node, k: int, domain: Domain, where: Expr, strict: bool
    ) -> bool:
        """Is every point read inside the source, and behind the sink where the source must be?"""
        r = source.domain.ranges[k]
        names = index_symbols(e)
        if (names - self.sizes.keys()) - set(domain.dims):
            return False
        for env in self.points(domain, names, where, self.sizes):
            lo, hi = evaluate(r.lo, env), evaluate(r.hi, env)
            if any(not lo <= q < hi for q in reached(e, env)):
                return False
            if isinstance(e, Slice) and evaluate(e.hi, env) < evaluate(e.lo, env):
                return False
        held = [x for x in self.waits[source.name] if x.dim == r.dim]
        return all(
            self.behind(e, r.dim, x.sign, domain, where, strict and x == self.open[-1])
            for x in held
        )

    def behind(
        self, e: Index, dim: str, sign: int, domain: Domain, where: Expr, strict: bool
    ) -> bool:
        if dim not in domain or index_symbols(e) - self.sizes.keys() - {dim}:
            return False
        bound = str(self.range(dim).hi)
        for size in range(1, LARGEST):
            sizes = {**dict.fromkeys(self.sizes, 5), bound: size}
            for env in self.points(domain, {dim}, where, sizes):
                if any(sign * (env[dim] - q) < strict for q in reached(e, env)):
                    return False
        return True

    def indices(self, r: Range) -> list[Index]:
        t, n = r.sym, self.range(r.dim).hi
        near: list[Any] = [t - 1, t - 2, t + 1, t + 2, t + 3]
        far: list[Any] = [
            0,
            n - 1,
            1,
            t // 2,
            mod(t, 2),
            n - 1 - t,
            maximum(t - 1, 0),
            minimum(t + 1, n - 1),
        ]
        return [t, t, t, t, *near, *near, *far, *(x.sym for x in self.dims)]

    def slices(self, r: Range, ragged: bool) -> list[Slice]:
        t, n = r.sym, self.range(r.dim).hi
        static: list[tuple[Any, ...]] = [
            (0, n),
            (0, n),
            (r.lo, r.hi),
            (1, n),
            (0, n - 1),
            (0, n, 2),
        ]
        static += [(t, t + 2), (t - 1, t + 1), (t - 2, t + 1)]
        loose: list[tuple[Any, ...]] = [
            (t, minimum(t + 3, n)),
            (0, t + 1),
            (t, n),
            (maximum(t - 2, 0), t + 1),
        ]
        loose += [(0, t), (t + 1, n), (t, n, 2)]
        return [Slice(*s) for s in static + (loose if ragged else [])]

    def read(
        self,
        name: str,
        domain: Domain,
        where: Expr = TRUE,
        *,
        slices: int = 30,
        ragged: int = 0,
        strict: bool = False,
    ) -> Ref | None:
        """A legal read of an equation at the points of `domain`, or None."""
        source = self.nodes[name]
        index: list[Index] = []
        for k, r in enumerate(source.domain):
            options: list[Index] = list(self.indices(r))
            if self.chance(slices) and not any(r.dim in symbols(s) for s in source.type.shape):
                options = [*self.slices(r, self.chance(ragged))]
            good = [e for e in options if self.legal(e, source, k, domain, where, strict)]
            if not good:
                return None
            index.append(self.pick(good))
        return Ref(name, tuple(index))

    def operand(self, domain: Domain, rank: int = 3, **how: Any) -> Ref:
        """A read of some equation; a constant where nothing fits."""
        for _ in range(4):
            names = list(self.nodes)
            ref = self.read(self.pick([*names, *names[-4:]]), domain, **how)
            if ref is not None and self.type(ref).rank <= rank and self.type(ref).dtype == "f64":
                return ref
        return Ref(self.constant(self.pick(self.shapes)), ())

    def constant(self, shape: tuple[int, ...]) -> str:
        value = self.draw(st.integers(-3, 3)) / 2
        return self.add(Const(value=value, dtype="f64", shape=shape), (), Domain())

    def within(self, domain: Domain, args: Sequence[Ref], op: Op) -> Domain:
        """The dims that an equation mentions, and sometimes one that it does not."""
        if self.chance(10):
            return domain
        used = op.mentions().union(*(index_symbols(e) for a in args for e in a.index))
        used |= {x.dim for a in args for x in self.waits[a.name]}
        return Domain(tuple(r for r in domain if r.dim in used))

    # ---- equations

    def equation(self) -> None:
        """One more equation of a random kind."""
        domain = self.domain({r.dim for r in self.open})
        kind = self.pick(self.kinds)
        kind(self, domain)

    def put(self, op: Op, args: Sequence[Ref], domain: Domain) -> str:
        return self.add(op, args, self.within(domain, args, op))

    def begin(self) -> None:
        """Opens a recurrence: its first branch is known."""
        dim = self.pick([r.dim for r in self.dims])
        domain = self.domain({dim, *(r.dim for r in self.open)})
        shape = self.pick(self.shapes)
        sign = self.pick((1, 1, -1))
        x = Recurrence("", dim, sign)
        conditions = disjoint(self.conditions(domain[dim], sign))
        init = self.initial(domain, conditions[0], shape)
        op = Merge(when=conditions)
        name = self.add(op, (init,) * len(conditions), domain, Type("f64", shape))
        x = replace(x, name=name)
        self.open.append(x)
        self.waits[name] = frozenset(self.open)

    def initial(self, domain: Domain, where: Expr, shape: tuple[int, ...]) -> Ref:
        names = [n for n, x in self.nodes.items() if x.type == Type("f64", shape)]
        if names and self.chance(80):
            ref = self.read(self.pick(names), domain, where, slices=0)
            if ref is not None:
                return ref
        return Ref(self.constant(shape), ())

    def conditions(self, r: Range, sign: int) -> list[Expr]:
        t = r.sym
        lo: Any = r.lo
        hi: Any = r.hi
        last = hi - 1
        edge = lo if sign > 0 else last
        one = compare("==", t, edge)
        two = compare("<", t, lo + 2) if sign > 0 else compare(">", t, last - 2)
        even = compare("==", mod(t, 2), 0)
        end = compare("==", t, last if sign > 0 else r.lo)
        return list(
            self.pick(
                ([one], [one], [one], [two], [one, even], [two, even], [one, end], [one, two])
            )
        )

    def close(self) -> None:
        """Writes the later branches of the recurrence opened last."""
        x = self.open[-1]
        node = self.nodes[x.name]
        args = [node.args[0]]
        op: Any = node.op
        for where in op.when[1:]:
            args.append(self.step(x, node, where))
        self.nodes[x.name] = replace(node, args=tuple(args))
        self.open.pop()
        for n in self.waits:
            self.waits[n] -= {x}

    def step(self, x: Recurrence, node: Node, where: Expr) -> Ref:
        """What a later branch reads: something of the loop's body at an earlier point."""
        names = [n for n, y in self.nodes.items() if x in self.waits[n] and y.type == node.type]
        fresh = self.mixed(x, node)
        for name in [self.pick([fresh, fresh, *names]), fresh, x.name]:
            ref = self.read(name, node.domain, where, slices=0, strict=True)
            if ref is not None:
                return ref
        type_: Any = node.type
        return Ref(self.constant(type_.shape), ())

    def mixed(self, x: Recurrence, node: Node) -> str:
        """tanh(x + something), over the domain of x."""
        others = [n for n in list(self.nodes)[-6:] if self.nodes[n].type.dtype == "f64"]
        ref = None
        if others:
            ref = self.read(self.pick(others), node.domain, slices=50, ragged=20)
        if ref is None or (self.ragged(ref) and 0 in self.type(ref).shape):
            return self.add(el.Sin(), (Ref(x.name, node.domain.identity),), node.domain)
        total = ref
        if self.type(ref).rank:
            op = Sum(axes=tuple(range(self.type(ref).rank)))
            small = self.within(node.domain, (ref,), op)
            total = Ref(self.add(op, (ref,), small), small.identity)
        own = Ref(x.name, node.domain.identity)
        axes = "abc"[: len(node.type.shape)]
        both_ = self.add(
            el.Add(labels=f",{axes}->{axes}" if axes else ""), (total, own), node.domain
        )
        return self.add(el.HyperbolicTangent(), (Ref(both_, node.domain.identity),), node.domain)

    def ragged(self, ref: Ref) -> bool:
        return any(symbols(s) - self.sizes.keys() for s in self.type(ref).shape)


def reached(e: Index, env: dict[str, int]) -> Sequence[int]:
    if isinstance(e, Slice):
        return range(evaluate(e.lo, env), evaluate(e.hi, env), e.step)
    return (evaluate(e, env),)


def disjoint(conditions: list[Expr]) -> tuple[Expr, ...]:
    """First true wins; the last branch is the rest."""
    out: list[Expr] = []
    rest: list[Expr] = []
    for c in conditions:
        out.append(all_of(c, *rest))
        rest.append(negate(c))
    return (*out, all_of(*rest))
