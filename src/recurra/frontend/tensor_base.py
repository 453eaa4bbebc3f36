"""Read: the base class of tensors, a read of an equation; and the union of their domains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, Self, TypeVar

from recurra.analysis.graph_builder import GraphBuilder
from recurra.errors import RecurraError, users_frame
from recurra.ir import array_protocols
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.graph import Graph, Index, Ref, Slice, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Type, is_shift
from recurra.report.html import code_html


class Read:
    """A read of an equation, which has a value at every point of `domain`."""

    def __init__(self, builder: GraphBuilder, ref: Ref, indexed: bool = False):
        self.builder, self._ref, self.indexed = builder, ref, indexed
        self._renames = len(builder.renamed)  # the number of renames applied to `_ref`
        self.chained = False  # an element of a read, x[t][1], which no variable may hold
        self.mean_of_nothing = False  # a mean of a tensor without axes

    @property
    def ref(self) -> Ref:
        """The read, by the current name of the equation."""
        for names in self.builder.renamed[self._renames :]:
            if self._ref.name in names:
                self._ref = Ref(names[self._ref.name], self._ref.index)
        self._renames = len(self.builder.renamed)
        return self._ref

    @property
    def graph(self) -> Graph:
        return Graph(self.builder.nodes, ())

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def called(self) -> str:
        """The user's variable that holds it, else the text of the read: "(..)" for an equation
        without a name."""
        frame = users_frame()
        reads = {k: v for k, v in (frame.f_locals if frame else {}).items() if isinstance(v, Read)}
        variable = next((k for k, v in reads.items() if v is self), None)
        if variable is not None or not self.indexed:
            return variable or self._own_name
        whole = (k for k, v in reads.items() if not v.indexed and v.name == self.name)
        return str(Ref(next(whole, self._own_name), self.ref.index))

    @property
    def _own_name(self) -> str:
        """The name that the user gave the equation, or "(..)"."""
        named = self.builder.final | set(self.builder.logs.values())
        return self.name if self.name in named else "(..)"

    @property
    def type(self) -> Type:
        return self._type

    @cached_property
    def _type(self) -> Type:
        found = self.graph.read_type(self.ref)
        assert isinstance(found, Type), f"{self.ref} is the results of a call"
        return found

    @property
    def shape(self) -> tuple[Expr | int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def domain(self) -> Domain:
        """The points at which the read is inside its source: x[t-1] is over 1 <= t."""
        return self._domain

    @cached_property
    def _domain(self) -> Domain:
        source = self.graph[self.ref.name].domain
        known = set(self.builder.dim_names())
        ranges: dict[str, Range] = {}
        for r, e in zip(source, self.ref.index, strict=True):
            for d in index_symbols(e) & known:
                if d == r.dim and not isinstance(e, Slice) and is_shift(e, d) == 0:
                    ranges[d] = r
                else:
                    ranges[d] = _within(ranges.get(d) or self.builder.range(d), r, e)
        return self.builder.domain(set(ranges), ranges)

    def __repr__(self) -> str:
        dims = ", ".join(self.domain.dims)
        return f"{self.type} over ({dims})" if dims else str(self.type)

    def _repr_html_(self) -> str:
        """The read, its equation or its branches so far, and their source lines, as HTML."""
        node, branches = self.builder.nodes[self.name], self.builder.branches.get(self.name)
        if branches is None:
            lines = [(node.text(self.graph.is_identity), node.loc)]
        else:
            point = self.graph.read(self.name)
            lines = [(f"{point} = {x.value} where {x.when}", x.loc) for x in branches]
        text = "\n".join(f"{line}   # {loc}" if loc else line for line, loc in lines)
        return code_html(f"# {self.ref}: {self!r}\n{text}")

    def __hash__(self) -> int:
        return id(self)


def _within(extent: Range, source: Range, index: Index) -> Range:
    """The part of `extent` where `index` lies within `source`, for indices that are shifts."""
    first, last = (index.lo, index.hi) if isinstance(index, Slice) else (index, index)
    lo, hi = extent.lo, extent.hi
    if (c := is_shift(first, extent.dim)) is not None:
        lo = _tighter(ex.maximum, lo, ex.lin([(source.lo, 1), (c, -1)]))
    if (c := is_shift(last, extent.dim)) is not None:
        end = ex.lin([(source.hi, 1), (c, -1)])
        hi = _tighter(
            ex.minimum, hi, ex.lin([(end, 1), (1, 1)]) if isinstance(index, Slice) else end
        )
    return Range(extent.dim, hi, lo)


def _tighter(pick: Callable[..., Expr | int], left: Expr | int, right: Expr | int) -> Expr | int:
    best = pick(left, right)
    return left if isinstance(best, ex.Ext) and best != left else best


def union(builder: GraphBuilder, args: tuple[Read, ...], op: Op) -> Domain:
    """The domain of an equation of `args`: the union of their dims, the intersection of ranges."""
    dims = op.mentions() & set(builder.dim_names())
    ranges: dict[str, Range] = {}
    for a in args:
        if a.builder is not builder:
            raise RecurraError.at_user_line(
                f"{a.name} belongs to another program",
                facts=f"it is {a!r}, of a context whose dims are "
                f"{', '.join(a.builder.dim_names())}",
                hint="write both in one context, or hand it over: program.run(), then rc.input",
            )
        for r in a.domain:
            old = ranges.setdefault(r.dim, r)
            if old != r:
                ranges[r.dim] = Range(r.dim, ex.minimum(old.hi, r.hi), ex.maximum(old.lo, r.lo))
        dims |= {r.dim for r in a.domain}
    return builder.domain(dims, ranges)


class Operand(array_protocols.Tensor, Protocol):
    """The interface of tensors for their methods, which modules below the class implement."""

    chained: bool
    mean_of_nothing: bool

    def __init__(self, builder: GraphBuilder, ref: Ref, indexed: bool = False) -> None: ...
    @property
    def kind(self) -> type[Self]: ...
    @property
    def builder(self) -> GraphBuilder: ...
    @property
    def ref(self) -> Ref: ...
    @property
    def indexed(self) -> bool: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def name(self) -> str: ...
    @property
    def called(self) -> str: ...
    @property
    def domain(self) -> Domain: ...

    def detach(self) -> Self: ...
    def abs(self) -> Self: ...
    def exp(self) -> Self: ...
    def log(self) -> Self: ...
    def sqrt(self) -> Self: ...
    def __mod__(self, other: object, /) -> Self: ...
    def __floordiv__(self, other: object, /) -> Self: ...
    def __or__(self, other: object, /) -> Self: ...
    def __invert__(self) -> Self: ...


Tensor = TypeVar("Tensor", bound=Operand)
