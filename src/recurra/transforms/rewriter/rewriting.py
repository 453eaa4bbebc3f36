"""Rewriting: a graph while it is rewritten, equation by equation."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurra.errors import Loc
from recurra.ir.dims import Dim
from recurra.ir.expr import Expr, substitute
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_symbols
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import Domain, is_shift


def compose(reader: Ref, domain: Domain, target: Ref) -> Ref | None:
    """Compose `reader`, over `domain`, with `target`, which it reads; None if no read says it."""
    by: dict[str, Expr | int] = {}
    slices: dict[str, Slice] = {}
    for r, e in zip(domain, reader.index, strict=True):
        if isinstance(e, Slice):
            slices[r.dim] = e
        else:
            by[r.dim] = e
    index: list[Index] = []
    order: list[str] = []
    own = False
    for e in target.index:
        cut = [d for d in slices if d in index_symbols(e)]
        if not cut:
            own = own or isinstance(e, Slice)
            index.append(e.at(by) if isinstance(e, Slice) else substitute(e, by))
            continue
        (d,) = cut[:1]
        shift = None if isinstance(e, Slice) or len(cut) > 1 else is_shift(e, d)
        if shift is None or own:  # the reader's axes lead those of the target
            return None
        s = slices[d]
        index.append(replace(s, lo=s.lo + shift, hi=s.hi + shift))
        order.append(d)
    if order != list(slices):  # an axis would vanish or move
        return None
    return Ref(target.name, tuple(index))


@dataclass
class Rewriting:
    """A graph while rules run on it."""

    nodes: dict[str, Node]
    outputs: tuple[str, ...]
    dims: tuple[Dim, ...]
    sizes: Mapping[str, int]
    readers: dict[str, dict[str, None]] = field(default_factory=dict)  # in an order of their own
    todo: deque[str] = field(default_factory=deque)
    queued: set[str] = field(default_factory=set)
    fired: dict[str, int] = field(default_factory=dict)
    keys: dict[Any, str] = field(default_factory=dict)
    counter: dict[str, int] = field(default_factory=dict)
    ops: set[type[Op]] = field(default_factory=set)  # of all equations so far
    loc: Loc | None = None  # the line of the equation that is being rewritten

    @classmethod
    def of(cls, graph: Graph, sizes: Mapping[str, int], dims: Sequence[Dim] = ()) -> Rewriting:
        """Return a graph to be rewritten, with other `dims` if there are any."""
        g = cls({}, graph.outputs, tuple(dims) or graph.dims, sizes)
        for n in graph.nodes.values():
            g.put(n)
        return g

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def graph(self) -> Graph:
        return Graph(self.nodes, self.outputs, self.dims)

    def producer(self, ref: Ref, op: type[Op]) -> Node | None:
        """The equation behind an identity read, if it is an `op`."""
        n = self.nodes[ref.name]
        return n if isinstance(n.op, op) and ref.index == n.domain.identity else None

    def source(self, ref: Ref) -> Node:
        return self.nodes[ref.name]

    def type(self, ref: Ref) -> Any:
        return self.nodes[ref.name].read_type(ref)

    def read(self, name: str) -> Ref:
        return Ref(name, self.nodes[name].domain.identity)

    def labels(self, node: Node) -> tuple[tuple[str, ...], str]:
        """The labels of the axes of each operand, and of the result, of an op that has labels."""
        op: Any = node.op
        if isinstance(op, Elementwise):
            return op.parts(tuple(self.type(a).rank for a in node.args))
        return op.parts()

    def domain(self, args: Sequence[Ref], op: Op, within: Domain) -> Domain:
        """The dims of `within` that operands and attributes mention."""
        return within.of(
            set(op.mentions()).union(*(index_symbols(e) for a in args for e in a.index))
        )

    def emit(
        self, op: Op, args: Sequence[Ref], within: Domain, stem: str, whole: bool = False
    ) -> Ref:
        """A new equation (or an old one that says the same), and its read.

        Its domain is what it mentions of `within`, or with `whole` all of it.
        """
        domain = within if whole else self.domain(args, op, within)
        type_ = op.infer(*(self.type(a) for a in args))
        key = (op, tuple(args), domain)
        old = self.keys.get(key)
        if old is not None and op.pure and self.says(old, key):
            return self.read(old)
        node = Node(self.fresh(stem), op, tuple(args), domain, type_, self.loc)
        self.put(node)
        self.keys[key] = node.name
        return self.read(node.name)

    def says(self, name: str, key: Any) -> bool:
        """Is `name` still the equation that was filed under `key`?"""
        n = self.nodes.get(name)
        return n is not None and (n.op, n.args, n.domain) == key

    def fresh(self, stem: str) -> str:
        k = self.counter.get(stem, 1)
        name = stem if k == 1 else f"{stem}_{k}"
        while name in self.nodes:
            k += 1
            name = f"{stem}_{k}"
        self.counter[stem] = k + 1
        return name

    def on_cycle(self, name: str, within: Sequence[str] = ()) -> bool:
        """Does the equation depend on itself, at the same point of the dims in `within`?"""
        return self.reaches(name, name, within)

    def reaches(self, name: str, other: str, within: Sequence[str] = ()) -> bool:
        """Does the equation depend on another, at the same point of the dims in `within`?"""
        seen: set[str] = set()
        todo = self.needs(name, within)
        while todo:
            n = todo.pop()
            if n == other:
                return True
            if n not in seen and n in self.nodes:
                seen.add(n)
                todo += self.needs(n, within)
        return False

    def needs(self, name: str, within: Sequence[str] = ()) -> list[str]:
        """The names that an equation reads, less those at an earlier point of a dim in `within`."""
        if not within:
            return [a.name for a in self.nodes[name].args]
        out: list[str] = []
        for a in self.nodes[name].args:
            source = self.nodes[a.name].domain if a.name in self.nodes else Domain()
            shifts = (
                is_shift(e, r.dim)
                for r, e in zip(source, a.index, strict=False)
                if r.dim in within and not isinstance(e, Slice)
            )
            if not any(s is not None and s < 0 for s in shifts):
                out.append(a.name)
        return out

    def put(self, node: Node) -> None:
        old = self.nodes.get(node.name)
        if old is not None:
            for a in old.args:
                self.readers[a.name].pop(node.name, None)
        self.nodes[node.name] = node
        self.ops.add(type(node.op))
        self.readers.setdefault(node.name, {})
        for a in node.args:
            self.readers.setdefault(a.name, {})[node.name] = None
        self.push(node.name)
        for r in self.readers[node.name]:
            self.push(r)

    def push(self, name: str) -> None:
        if name not in self.queued:
            self.queued.add(name)
            self.todo.append(name)

    def forward(self, old: Node, to: Ref) -> bool:
        """Makes every reader of `old` read `to`; False where a read cannot say it."""
        if old.name in self.outputs and not self.take_output(old, to):
            return False
        changed = False
        for name in list(self.readers[old.name]):
            reader = self.nodes[name]
            args = list(reader.args)
            for k, a in enumerate(args):
                if a.name == old.name:
                    new = compose(a, old.domain, to)
                    if new is not None:
                        args[k] = new
            if tuple(args) != reader.args:
                changed = True
                self.put(replace(reader, args=tuple(args)))
        if changed:
            self.push(old.name)  # it may be dead, and what it read is then read by fewer
        return changed

    def take_output(self, old: Node, to: Ref) -> bool:
        """An output may change its name only if the whole domain stays."""
        target = self.nodes[to.name]
        if to.index != target.domain.identity or target.domain != old.domain:
            return bool(self.readers[old.name])
        self.outputs = tuple(to.name if o == old.name else o for o in self.outputs)
        return True


def is_const(state: Rewriting, ref: Ref, value: float | None = None) -> float | None:
    """The number behind a read of a constant (equal to `value`, if that is given)."""
    op: Any = state.nodes[ref.name].op
    if op.name != "const" or (value is not None and op.value != value):
        return None
    return op.value


def reach(node: Node) -> set[str]:
    """The dims that an equation's operands and attributes mention."""
    return set(node.op.mentions()).union(*(index_symbols(e) for a in node.args for e in a.index))
