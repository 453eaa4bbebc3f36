"""Random legal programs: recurrences up and down over one to three dims, and all that reads them.

Legal by construction: an equation reads older ones anywhere inside their domain; what depends on a
recurrence that is still open is read only at or behind the current point of its dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from recurra.ir.expr import (
    TRUE,
    Expr,
    Sym,
    both,
    compare,
    evaluate,
    maximum,
    minimum,
    mod,
    negate,
    symbols,
)
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Op, join_labels
from recurra.ir.types import Domain, Range, Type
from recurra.ir.verify import verify
from recurra.ops import elementwise as el
from recurra.ops.contraction import Einsum
from recurra.ops.control import Merge
from recurra.ops.indexing import OneHot, Pick, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Pad, Transpose
from recurra.ops.reduction import Max, Min, Sum
from recurra.ops.scan import CumSum, DiscountedSum
from recurra.ops.softmax import LogSoftmax, Softmax
from recurra.ops.source import Const, Uniform, Value

LARGEST = 8  # causal reads hold for every size of their dim up to here


@dataclass(frozen=True)
class Case:
    """A program and the sizes it is run at."""

    graph: Graph
    sizes: dict[str, int]

    def __str__(self) -> str:
        head = ", ".join(f"{k}={v}" for k, v in self.sizes.items())
        return f"# {head}\n{self.graph}"

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
    draws: int = 0

    # ---- small helpers

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    @property
    def graph(self) -> Graph:
        return Graph(self.nodes, (), self.dims)

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
        kind = self.pick(KINDS)
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
        last: Any = r.hi - 1  # type: ignore
        edge: Any = r.lo if sign > 0 else last
        one = compare("==", t, edge)
        two = compare("<", t, r.lo + 2) if sign > 0 else compare(">", t, last - 2)  # type: ignore
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
        for where in node.op.when[1:]:  # type: ignore
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
        return Ref(self.constant(node.type.shape), ())  # type: ignore

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
        return self.add(el.Tanh(), (Ref(both_, node.domain.identity),), node.domain)

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
        out.append(both(c, *rest))
        rest.append(negate(c))
    return (*out, both(*rest))


# ---- kinds of equations


def unary(p: Program, domain: Domain) -> None:
    op = p.pick((el.Tanh, el.Sin, el.Neg, el.Abs, el.Sigmoid))()
    p.put(op, (p.operand(domain, ragged=20),), domain)


def _labels(p: Program, a: Type, b: Type) -> tuple[str, str, dict[str, Any]]:
    """Labels of two operands: axes of equal size may be one."""
    first = "abcd"[: a.rank]
    sizes = dict(zip(first, a.shape, strict=True))
    second = ""
    for n in b.shape:
        shared = [c for c in first if sizes[c] == n and c not in second]
        if shared and p.chance(75):
            second += p.pick(shared)
        else:
            second += "efgh"[sum(c in "efgh" for c in second)]
            sizes[second[-1]] = n
    return first, second, sizes


def binary(p: Program, domain: Domain) -> None:
    x, y = p.operand(domain, 2, ragged=20), p.operand(domain, 2, ragged=20)
    first, second, sizes = _labels(p, p.type(x), p.type(y))
    out = "".join(p.draw(st.permutations(sorted(sizes))))
    kind = p.pick((el.Add, el.Sub, el.Mul, el.Maximum, el.Minimum))
    if len(out) > 3:
        return einsum(p, domain)
    p.put(kind(labels=join_labels((first, second), out)), (x, y), domain)
    return None


def einsum(p: Program, domain: Domain) -> None:
    x, y = p.operand(domain, 2), p.operand(domain, 2)
    first, second, sizes = _labels(p, p.type(x), p.type(y))
    out = [c for c in sizes if p.chance(60)][:3]
    out = p.draw(st.permutations(out))
    name = p.put(Einsum(labels=f"{first},{second}->{''.join(out)}"), (x, y), domain)
    own = p.nodes[name].domain
    p.add(el.Tanh(), (Ref(name, own.identity),), own)


def _filled(p: Program, ref: Ref, axes: Sequence[int], domain: Domain) -> bool:
    """Do these axes have an element at every point?"""
    for a in axes:
        n: Any = p.type(ref).shape[a]
        for env in p.points(domain, symbols(n), TRUE, p.sizes):
            if evaluate(n, env) < 1:
                return False
    return True


def reduction(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=75, ragged=40)
    rank = p.type(ref).rank
    axes = tuple(k for k in range(rank) if p.chance(65))
    kind = p.pick((Sum, Sum, Max, Min))
    if kind is not Sum and not _filled(p, ref, axes, domain):
        kind = Sum
    name = p.put(kind(axes=axes), (ref,), domain)
    if p.chance(30):
        own = p.nodes[name].domain
        p.add(el.Tanh(), (Ref(name, own.identity),), own)


def total(p: Program, domain: Domain) -> None:
    """A reduction over the whole range of some dims of an equation: what a fold streams."""
    names = [n for n, x in p.nodes.items() if len(x.domain) and x.type.dtype == "f64"]
    ref = p.read(p.pick(names), domain, slices=60) if names else None
    if ref is None or p.type(ref).rank > 3:
        return reduction(p, domain)
    axes = range(p.type(ref).rank)
    kind = p.pick((Sum, Sum, Max)) if _filled(p, ref, axes, domain) and not p.ragged(ref) else Sum
    slices = len(ref.slices)
    kept = {k for k in axes if k >= slices and p.chance(40)}
    p.put(kind(axes=tuple(k for k in axes if k not in kept)), (ref,), domain)
    return None


def along(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=60, ragged=30)
    rank = p.type(ref).rank
    if not rank:
        return unary(p, domain)
    axis = p.draw(st.integers(0, rank - 1))
    kinds: list[Callable[..., Op]] = [Softmax, LogSoftmax, CumSum, Flip]
    if not _filled(p, ref, [axis], domain):
        kinds = kinds[2:]
    kinds.append(lambda axis: DiscountedSum(gamma=0.5, axis=axis))
    p.put(p.pick(kinds)(axis=axis), (ref,), domain)
    return None


def moves(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2)
    t = p.type(ref)
    if not t.rank or p.chance(30):
        n = p.pick([1, 2, 3, *(r.hi for r in p.dims)])
        out = p.pick(["ab"[: t.rank] + "z", "z" + "ab"[: t.rank]])
        p.put(Expand(labels=f"{'ab'[: t.rank]}->{out}", sizes=(n,)), (ref,), domain)
        return
    axis = p.draw(st.integers(0, t.rank - 1))
    n = t.shape[axis]
    kinds: list[Op] = [
        Transpose(order=tuple(range(t.rank))[::-1]),
        Pad(axis=axis, before=1, after=0),
    ]
    if isinstance(n, int) and n > 1:
        kinds.append(Cut(axis=axis, start=1, size=n - 1))
    op = p.pick(kinds)
    if p.chance(20):
        p.put(Concat(axis=axis), (ref, ref), domain)
    else:
        p.put(op, (ref,), domain)


def pick(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, slices=50)
    if not p.type(ref).rank:
        return unary(p, domain)
    axis = p.draw(st.integers(0, p.type(ref).rank - 1))
    n: Any = p.type(ref).shape[axis]
    dims = [r.sym for r in domain]
    options: list[Any] = [0, 1, *dims, *dims, *(x - 1 for x in dims), *(x % 2 for x in dims)]
    inside = [at for at in options if _on_axis(p, at, n, domain)]
    if not inside:
        return unary(p, domain)
    p.put(Pick(axis=axis, at_=p.pick(inside)), (ref,), domain)
    return None


def _on_axis(p: Program, at: Any, n: Any, domain: Domain) -> bool:
    every = p.points(domain, symbols(at) | symbols(n), TRUE, p.sizes)
    return all(0 <= evaluate(at, env) < evaluate(n, env) for env in every)


def take(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2)
    if not p.type(ref).rank or not isinstance(p.type(ref).shape[0], int):
        return unary(p, domain)
    at: Any = p.pick([r.sym for r in domain] or [1])
    n = p.type(ref).shape[0]
    expr = mod(at + p.draw(st.integers(0, 3)), n)
    value = Value(expr=expr)
    small = p.within(domain, (), value)
    i = Ref(p.add(value, (), small), small.identity)
    if p.chance(30):
        hot = p.add(OneHot(size=n, axis=0, to="f64"), (i,), small)
        rest = "bc"[: p.type(ref).rank - 1]
        p.put(Einsum(labels=f"a,a{rest}->{rest}"), (Ref(hot, small.identity), ref), domain)
    else:
        rest = "bc"[: p.type(ref).rank - 1]
        p.put(Take(labels=f"a{rest},->{rest}", axis="a"), (ref, i), domain)
    return None


def uniform(p: Program, domain: Domain) -> None:
    p.draws += 1
    dims = [r.sym for r in domain]
    shape = p.pick(p.shapes) if p.chance(50) else ()
    room = 1 if shape else 2
    op = Uniform(
        id=p.draws, key=tuple(dims[:-room]), counter=tuple(dims[-room:]), shape=shape, dtype="f64"
    )
    p.put(op, (), domain)


def value(p: Program, domain: Domain) -> None:
    names = [r.sym for r in domain] + [Sym(n) for n in p.sizes]
    x, y = p.pick(names), p.pick(names)
    p.put(Value(expr=p.pick([x, x + y, x * 2 + 1, x - y, x % 3]), dtype="f64"), (), domain)


def where(p: Program, domain: Domain) -> None:
    ref = p.operand(domain, 2, ragged=10)
    axes = "ab"[: p.type(ref).rank]
    own = p.within(domain, (ref,), Merge(when=()))
    zero = Ref(p.constant(()), ())
    flat = f"{axes},->{axes}" if axes else ""
    test = Ref(p.add(el.Less(labels=flat), (ref, zero), own), own.identity)
    p.put(el.Where(labels=f"{axes},,{axes}->{axes}" if axes else ""), (test, zero, ref), own)


def merge(p: Program, domain: Domain) -> None:
    """A choice by the point, no recurrence."""
    if not len(domain):
        return unary(p, domain)
    r = p.pick(domain.ranges)
    conditions = disjoint(p.conditions(r, p.pick((1, -1))))
    types = {x.type for x in p.nodes.values() if x.type.dtype == "f64" and not _loose(p, x.type)}
    type_ = p.pick(sorted(types, key=str))
    names = [n for n, x in p.nodes.items() if x.type == type_]
    args: list[Ref] = []
    for c in conditions:
        ref = p.read(p.pick(names), domain, c, slices=0)
        args.append(Ref(p.constant(type_.shape), ()) if ref is None else ref)
    p.add(Merge(when=conditions), args, domain)
    return None


def _loose(p: Program, t: Type) -> bool:
    return any(symbols(s) - p.sizes.keys() for s in t.shape)


KINDS = (
    unary, binary, binary, binary, einsum, reduction, reduction, total, total, total, along,
    moves, pick, take, uniform, uniform, value, where, merge, merge, Program.equation,
)  # fmt: skip
KINDS = KINDS[:-1]


@st.composite
def programs(draw: st.DrawFn, ragged: bool = True) -> Case:
    """A legal program of 4 to 25 equations and its sizes."""
    dims = tuple(Range(d, Sym(d.upper())) for d in draw(st.sampled_from(ORDERS)))
    small = st.integers(1, 4)
    sizes = {str(r.hi): draw(small) for r in dims}
    m, n = draw(small), draw(small)
    p = Program(draw, sizes, dims, [(), (), (m,), (n,), (m, n)])
    uniform(p, p.domain(set()))
    for _ in range(draw(st.integers(3, 14))):
        action = draw(st.integers(0, 9))
        if action <= 1 and len(p.open) < 3:
            p.begin()
        elif action == 2 and p.open:
            p.close()
        else:
            p.equation()
    while p.open:
        p.close()
    names = [n for n, x in p.nodes.items() if not _loose(p, x.type)]
    outputs = draw(st.lists(st.sampled_from(names), min_size=0, max_size=3))
    graph = Graph(p.nodes, (*outputs, names[-1]), dims).live()
    return Case(verify(graph), sizes)


ORDERS = ("t", "t", "it", "it", "ti", "bit", "itb", "tbi")
