"""Graph: a system of recurrence equations, one per name.

    dims b<B, t<T
    x0[b<B]: f32[4] = uniform(id=1, counter=(b, 0))
    x[b<B,t<T]: f32[4] = merge(x0, d[b,t-1], when=(t == 0, t > 0))
    d[b<B,t<T]: f32[4] = mul(x, c, labels='a,->a')
    return d

Equations refer to each other by name, so a recurrence is just a name on both sides. The same name
is the statement of the schedule, the variable of the program and the row of the profile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from keyword import iskeyword
from math import nan
from typing import Any

from recurra.errors import Loc, ShapeError
from recurra.ir.dims import Declarations, Dim, Role, is_reserved
from recurra.ir.expr import Expr, evaluate, substitute, symbols
from recurra.ir.frozen import Frozen
from recurra.ir.op import Op, show
from recurra.ir.types import AnyType, Domain, Range, Tuple, Type
from recurra.ir.user_objects import Resource
from recurra.report.html import code_html


@dataclass(frozen=True)
class Slice(Frozen):
    """lo <= q < hi in steps of `step`; becomes a leading axis of the value read.

    With `pad`, the axis always has that many elements: elements past `hi` read as zero, or, if
    `loose`, as any finite number.
    """

    lo: Expr | int
    hi: Expr | int
    step: int = 1
    pad: Expr | int | None = None
    loose: bool = False

    def __str__(self) -> str:
        text, word = f"{self.lo}:{self.hi}", "room" if self.loose else "pad"
        if self.pad is not None:
            return f"{text}:{word}({self.pad}{f', {self.step}' if self.step != 1 else ''})"
        if self.loose:
            return f"{text}:{word}"
        return text if self.step == 1 else f"{text}:{self.step}"

    @property
    def count(self) -> Expr | int:
        """The number of points that are read."""
        gap: Any = self.hi - self.lo
        return gap if self.step == 1 else (gap + self.step - 1) // self.step

    @property
    def size(self) -> Expr | int:
        """The length of the axis."""
        return self.count if self.pad is None else self.pad

    def at(self, by: Mapping[str, Expr | int]) -> Slice:
        pad = None if self.pad is None else substitute(self.pad, by)
        ends = substitute(self.lo, by), substitute(self.hi, by)
        return Slice(*ends, self.step, pad, self.loose)


Index = Expr | int | Slice


def index_at(index: Index, by: Mapping[str, Expr | int]) -> Index:
    return index.at(by) if isinstance(index, Slice) else substitute(index, by)


def index_symbols(index: Index) -> frozenset[str]:
    return symbols(index.lo) | symbols(index.hi) if isinstance(index, Slice) else symbols(index)


def spelled(name: str) -> str:
    """The name of an equation in the text of a graph: quoted unless it is an identifier."""
    word = name.isascii() and name.isidentifier() and not iskeyword(name)
    return name if word else repr(name)


@dataclass(frozen=True)
class Ref(Frozen):
    """A read of equation `name`, one index per dim of its domain."""

    name: str
    index: tuple[Index, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"[{','.join(map(str, self.index))}]" if self.index else "")

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        return tuple(e for e in self.index if isinstance(e, Slice))

    def parts(self, source: Domain) -> tuple[dict[str, Expr | int], dict[str, Slice]]:
        """The point indices and the slices of the read, by the dims of its source."""
        index = dict(zip(source.dims, self.index, strict=True))
        points = {d: e for d, e in index.items() if not isinstance(e, Slice)}
        return points, {d: e for d, e in index.items() if isinstance(e, Slice)}

    def at(self, by: Mapping[str, Expr | int]) -> Ref:
        return Ref(self.name, tuple(index_at(e, by) for e in self.index))

    def with_index(self, position: int, index: Index) -> Ref:
        """The read with another index at one position."""
        return Ref(self.name, (*self.index[:position], index, *self.index[position + 1 :]))


@dataclass(frozen=True)
class Node:
    """name[domain]: type = op(args)"""

    name: str
    op: Op
    args: tuple[Ref, ...]
    domain: Domain
    type: AnyType
    loc: Loc | None = field(default=None, compare=False, repr=False)
    locs: tuple[Loc | None, ...] = field(default=(), compare=False, repr=False)
    """The source location of each branch of a definition by branches; () if unknown."""

    @property
    def ref(self) -> Ref:
        """The read of each of its points at that point."""
        return Ref(self.name, self.domain.identity)

    @property
    def lines(self) -> tuple[Loc | None, ...]:
        """The source location of each operand: that of its branch if known, else the node's."""
        return self.locs or (self.loc,) * len(self.args)

    @property
    def tensor(self) -> Type:
        """The type of an equation whose value is one tensor."""
        assert isinstance(self.type, Type), f"{self.name} is {self.type}"
        return self.type

    def with_operand(self, position: int, ref: Ref) -> Node:
        """The equation with another operand at one position."""
        return replace(self, args=(*self.args[:position], ref, *self.args[position + 1 :]))

    def read_type(self, ref: Ref) -> AnyType:
        """The type of the value that a reference to this equation yields."""
        if not ref.slices and not self.type.mentions():
            return self.type
        by, _ = ref.parts(self.domain)
        lead = tuple(s.size for s in ref.slices)
        if isinstance(self.type, Tuple):
            assert not lead, f"{ref} stacks the results of a call"
            return self.type
        ragged = [d for d in self.domain.dims if d not in by and d in self.type.mentions()]
        if ragged:
            raise ShapeError.at_user_line(
                f"{ref} stacks rows of different length",
                facts=f"{self.name} is {self.type}, which varies with {', '.join(ragged)}",
                hint="read one point of it, or pad its rows to one length",
            )
        return replace(self.type, shape=(*lead, *self.type.at(by).shape))

    def text(self, identity: Callable[[Ref], bool]) -> str:
        args = [
            spelled(a.name) + ("" if identity(a) else str(a).removeprefix(a.name))
            for a in self.args
        ]
        body = ", ".join(args + self.op.attributes())
        return f"{spelled(self.name)}{self.domain}: {self.type} = {self.op.name}({body})"


@dataclass(frozen=True)
class Graph(Declarations):
    """Equations by name, the names of the outputs, and all dims, in the user's order."""

    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        head = [f"dims {', '.join(map(str, self.dims))}"] if self.dims else []
        body = [n.text(self.is_identity) for n in self.nodes.values()]
        return "\n".join([*head, *body, f"return {', '.join(map(spelled, self.outputs))}"])

    def _repr_html_(self) -> str:
        return code_html(str(self))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def is_identity(self, ref: Ref) -> bool:
        return ref.index == self.nodes[ref.name].domain.identity

    def read(self, name: str) -> Ref:
        return self.nodes[name].ref

    def read_type(self, ref: Ref) -> AnyType:
        """The type of the value a reference yields: slices become leading axes."""
        return self.nodes[ref.name].read_type(ref)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names that an index may mention: dims, their parents, and bounds."""
        out = {*self.declared, *(d.parent for d in self.dims if d.parent is not None)}
        for d in self.dims:
            out |= d.range.mentions()
        for n in self.nodes.values():
            out |= n.op.mentions() - bound_names(n.op)
            out.update(*(r.mentions() for r in n.domain), *map(symbols, n.type.shape))
            out.update(*(index_symbols(e) for a in n.args for e in a.index))
        return frozenset(out)

    def fresh_dim(
        self,
        role: Role,
        parent: str,
        hi: Expr | int,
        *,
        stem: str | None = None,
        taken: Iterable[str] = (),
    ) -> Dim:
        """Return a new dim of `hi` points, for the caller to add to `dims`.

        Its name derives from that of its parent, or from `stem`, and is unique: it differs from
        all dims, bounds, equations, names in `taken`, and reserved words.
        """
        bound = set().union(*(bound_names(n.op) for n in self.nodes.values()))
        used = {*self.symbols, *self.nodes, *bound, *taken}
        name = f"{parent if stem is None else stem}{role.suffix}"
        while name in used or is_reserved(name):
            name += "_"
        return Dim(Range(name, hi), role, parent)

    def in_order(self, names: Collection[str]) -> list[str]:
        """Sort names of equations in the order of the graph."""
        return [n for n in self.nodes if n in names]

    @cached_property
    def readers(self) -> dict[str, list[tuple[Node, int]]]:
        """The readers of each equation, each with the number of its operand."""
        out: dict[str, list[tuple[Node, int]]] = {n: [] for n in self.nodes}
        for n in self.nodes.values():
            for k, a in enumerate(n.args):
                out[a.name].append((n, k))
        return out

    def resources(self) -> list[Resource[Any]]:
        """The user's arrays and functions that the equations hold."""
        return [x for n in self.nodes.values() for x in n.op.resources()]

    def numbers(self) -> list[str]:
        """The numeric attributes, such as learning rates, which are not part of the structure."""
        return [show(x) for n in self.nodes.values() for x in n.op.numbers().values()]

    def fingerprint(self) -> str:
        """The hash of the text, without the numeric attributes."""
        bare = {k: replace(n, op=n.op.with_numbers(nan)) for k, n in self.nodes.items()}
        return hashlib.sha256(str(replace(self, nodes=bare)).encode()).hexdigest()[:16]

    def update(self, nodes: Iterable[Node], outputs: tuple[str, ...] | None = None) -> Graph:
        """The graph with `nodes` added or replaced by name, and dead equations dropped."""
        every = {**self.nodes, **{n.name: n for n in nodes}}
        return Graph(every, self.outputs if outputs is None else outputs, self.dims).live()

    def live(self) -> Graph:
        """Drop the equations that no output and no effect depends on."""
        live: set[str] = set()
        todo = [*self.outputs, *(n.name for n in self.nodes.values() if not n.op.pure)]
        while todo:
            name = todo.pop()
            if name not in live:
                live.add(name)
                todo += [a.name for a in self.nodes[name].args]
        return Graph({k: n for k, n in self.nodes.items() if k in live}, self.outputs, self.dims)

    def fresh(self, stem: str, taken: Iterable[str] = ()) -> str:
        """A name that no equation has."""
        return fresh_name(stem, {*self.nodes, *taken})


def fresh_name(stem: str, taken: Container[str]) -> str:
    """The stem, or the first of stem_2, stem_3, .. that is not taken."""
    return next(
        name for name in chain([stem], (f"{stem}_{k}" for k in count(2))) if name not in taken
    )


def bound_names(op: Op) -> set[str]:
    """The names an operator binds to positions along an axis; they are local to it."""
    return {b[0] for b in getattr(op, "bind", ())}


def merge_condition(node: Node, index: int) -> Expr | None:
    """The condition under which operand `index` is read; None: always."""
    when: tuple[Expr, ...] | None = getattr(node.op, "when", None)
    return when[index] if when else None


def full_length(slice_: Slice, extent: Range, sizes: Mapping[str, int]) -> bool:
    """Does the slice read all of its source's range?"""
    if slice_.step != 1 or symbols(slice_.lo) - sizes.keys() or symbols(slice_.hi) - sizes.keys():
        return False
    pairs = ((slice_.lo, extent.lo), (slice_.hi, extent.hi))
    ends = all(evaluate(a, sizes) == evaluate(b, sizes) for a, b in pairs)
    return ends and (slice_.pad is None or evaluate(slice_.pad, sizes) == extent.size(sizes))
