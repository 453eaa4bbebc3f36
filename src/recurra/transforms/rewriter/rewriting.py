"""Rewriting: a graph that is changed equation by equation."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurra.errors import Loc
from recurra.ir.dims import Dim
from recurra.ir.expr import Expr
from recurra.ir.graph import Graph, Index, Node, Ref, Slice, index_at, index_symbols
from recurra.ir.op import Elementwise, Op
from recurra.ir.types import Domain, Type, is_shift
from recurra.ops.source import Const


def compose(reader: Ref, domain: Domain, target: Ref) -> Ref | None:
    """Replace a read of an equation over `domain` by `target`, which is equal to that equation.

    None if no single read has the same axes.
    """
    points, slices = reader.parts(domain)
    index: list[Index] = []
    order: list[str] = []
    has_axes = False
    for e in target.index:
        sliced = [d for d in slices if d in index_symbols(e)]
        if not sliced:
            has_axes = has_axes or isinstance(e, Slice)
            index.append(index_at(e, points))
            continue
        (d,) = sliced[:1]
        shift = None if isinstance(e, Slice) or len(sliced) > 1 else is_shift(e, d)
        if shift is None or has_axes:  # the reader's axes lead those of the target
            return None
        s = slices[d]
        index.append(replace(s, lo=s.lo + shift, hi=s.hi + shift))
        order.append(d)
    if order != list(slices):  # an axis would vanish or move
        return None
    return Ref(target.name, tuple(index))


@dataclass
class Rewriting:
    """A graph that rules rewrite, with the readers of each equation and a worklist."""

    nodes: dict[str, Node]
    outputs: tuple[str, ...]
    dims: tuple[Dim, ...]
    sizes: Mapping[str, int]
    readers: dict[str, dict[str, None]] = field(default_factory=dict)  # ordered sets
    todo: deque[str] = field(default_factory=deque)
    queued: set[str] = field(default_factory=set)
    keys: dict[Any, str] = field(default_factory=dict)  # (op, args, domain) -> equation
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
        """Return the equation behind an identity read, if its operator is an `op`."""
        n = self.nodes[ref.name]
        return n if isinstance(n.op, op) and ref.index == n.domain.identity else None

    def type(self, ref: Ref) -> Any:
        return self.nodes[ref.name].read_type(ref)

    def read(self, name: str) -> Ref:
        return Ref(name, self.nodes[name].domain.identity)

    def labels(self, node: Node) -> tuple[tuple[str, ...], str]:
        """Return the labels of each operand's axes, and of the result's, of a labeled op."""
        op: Any = node.op
        if isinstance(op, Elementwise):
            return op.parts(tuple(self.type(a).rank for a in node.args))
        return op.parts()

    def emit(
        self, op: Op, args: Sequence[Ref], within: Domain, stem: str, whole: bool = False
    ) -> Ref:
        """Add an equation, or find an equal one, and return its read.

        Its domain has the dims of `within` that it mentions, or with `whole` all of them.
        """
        mentioned = (index_symbols(e) for a in args for e in a.index)
        domain = within if whole else within.of(set(op.mentions()).union(*mentioned))
        key = (op, tuple(args), domain)
        old = self.keys.get(key)
        if old is not None and op.pure and self.has_key(old, key):
            return self.read(old)
        type_ = op.infer(*(self.type(a) for a in args))
        node = Node(self.fresh(stem), op, tuple(args), domain, type_, self.loc)
        self.put(node)
        self.keys[key] = node.name
        return self.read(node.name)

    def constant(self, node: Node, value: float | bool, stem: str) -> Ref:
        """Add a constant of the type of an equation, and return its read."""
        op = Const(value=value, dtype=node.tensor.dtype, shape=node.tensor.shape)
        return self.emit(op, (), node.domain, stem)

    def has_key(self, name: str, key: Any) -> bool:
        """Tell whether an equation is still the one that was filed under `key`."""
        n = self.nodes.get(name)
        return n is not None and (n.op, n.args, n.domain) == key

    def fresh(self, stem: str) -> str:
        """Return the stem, or the first of stem_2, stem_3, .. that names no equation."""
        k = self.counter.get(stem, 1)
        name = stem if k == 1 else f"{stem}_{k}"
        while name in self.nodes:
            k += 1
            name = f"{stem}_{k}"
        self.counter[stem] = k + 1
        return name

    def on_cycle(self, name: str, within: Sequence[str] = ()) -> bool:
        """Tell whether an equation depends on itself, at the same point of the dims `within`."""
        return self.reaches(name, name, within)

    def reaches(self, name: str, other: str, within: Sequence[str] = ()) -> bool:
        """Tell whether an equation depends on another, at the same point of the dims `within`."""
        seen: set[str] = set()
        todo = self._operands(name, within)
        while todo:
            n = todo.pop()
            if n == other:
                return True
            if n not in seen and n in self.nodes:
                seen.add(n)
                todo += self._operands(n, within)
        return False

    def _operands(self, name: str, within: Sequence[str]) -> list[str]:
        """Names that an equation reads, except those at an earlier point of a dim in `within`."""
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
        """Add an equation, or replace that of the same name; queue it and its readers."""
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
        """Queue an equation for the rules, unless it is queued."""
        if name not in self.queued:
            self.queued.add(name)
            self.todo.append(name)

    def forward(self, old: Node, to: Ref) -> bool:
        """Make every reader of `old` read `to`; False if none can."""
        if old.name in self.outputs and not self._redirect_output(old, to):
            return False
        changed = False
        for name in list(self.readers[old.name]):
            reader = self.nodes[name]
            args = list(reader.args)
            for k, a in enumerate(args):
                if a.name == old.name:
                    args[k] = compose(a, old.domain, to) or a
            if tuple(args) != reader.args:
                changed = True
                self.put(replace(reader, args=tuple(args)))
        if changed:
            self.push(old.name)  # it may be dead, and what it read is then read by fewer
        return changed

    def _redirect_output(self, old: Node, to: Ref) -> bool:
        """Rename an output if its whole domain stays; False if nothing is left to do."""
        target = self.nodes[to.name]
        if to.index != target.domain.identity or target.domain != old.domain:
            return bool(self.readers[old.name])
        self.outputs = tuple(to.name if o == old.name else o for o in self.outputs)
        return True


def is_const(graph: Rewriting, ref: Ref, value: float | None = None) -> float | None:
    """Return the number behind a read of a constant (equal to `value`, if that is given)."""
    op: Any = graph[ref.name].op
    if op.name != "const" or (value is not None and op.value != value):
        return None
    return op.value


def shape_of(type_: Any) -> tuple[Expr | int, ...]:
    """Return the shape of a tensor, and () for other types."""
    return type_.shape if isinstance(type_, Type) else ()


def mentioned_symbols(node: Node) -> set[str]:
    """Return the dims and bounds that an equation's operands and attributes mention."""
    return set(node.op.mentions()).union(*(index_symbols(e) for a in node.args for e in a.index))
