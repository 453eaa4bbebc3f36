"""Read: a read of an equation, what it is, and how a new equation is made from several."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, Self, TypeVar

from recurra.analysis.tracer import Tracer
from recurra.errors import RecurraError, here, users_frame
from recurra.ir import arrays
from recurra.ir import expr as ex
from recurra.ir.expr import Expr
from recurra.ir.graph import Graph, Index, Ref, Slice, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import Domain, Range, Type, is_shift
from recurra.report.html import code_html


class Read:
    """A value at every point of `domain`."""

    def __init__(self, tracer: Tracer, ref: Ref, indexed: bool = False):
        self.tracer, self._ref, self.indexed = tracer, ref, indexed
        self._seen = len(tracer.renamed)
        self.chained = False  # elements of a read, which may have no name of the user's
        self.mean_of_nothing = False  # a mean of what has no axis

    @property
    def ref(self) -> Ref:
        """The read, by the name that the equation has now."""
        for names in self.tracer.renamed[self._seen :]:
            if self._ref.name in names:
                self._ref = Ref(names[self._ref.name], self._ref.index)
        self._seen = len(self.tracer.renamed)
        return self._ref

    @property
    def graph(self) -> Graph:
        return Graph(self.tracer.nodes, ())

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def called(self) -> str:
        """The variable of the user's that holds it, if there is one, else what it reads: "(..)"
        for an equation that he has not named."""
        frame = users_frame()
        mine = {k: v for k, v in (frame.f_locals if frame else {}).items() if isinstance(v, Read)}
        held = next((k for k, v in mine.items() if v is self), None)
        if held is not None or not self.indexed:
            return held or self._own_name
        whole = (k for k, v in mine.items() if not v.indexed and v.name == self.name)
        return str(Ref(next(whole, self._own_name), self.ref.index))

    @property
    def _own_name(self) -> str:
        """The name of the equation, if it has one of the user's."""
        named = self.tracer.final | set(self.tracer.logs.values())
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
        """The dims it varies with, where the read falls into its source: x[t-1] is over 1 <= t."""
        return self._domain

    @cached_property
    def _domain(self) -> Domain:
        source = self.graph[self.ref.name].domain
        known = set(self.tracer.dim_names())
        ranges: dict[str, Range] = {}
        for r, e in zip(source, self.ref.index, strict=True):
            for d in index_symbols(e) & known:
                if d == r.dim and not isinstance(e, Slice) and is_shift(e, d) == 0:
                    ranges[d] = r
                else:
                    ranges[d] = _within(ranges.get(d) or self.tracer.range(d), r, e)
        return self.tracer.domain(set(ranges), ranges)

    def __repr__(self) -> str:
        dims = ", ".join(self.domain.dims)
        return f"{self.type} over ({dims})" if dims else str(self.type)

    def _repr_html_(self) -> str:
        """The equation or its branches so far, and the lines that wrote them."""
        node, branches = self.tracer.nodes[self.name], self.tracer.branches.get(self.name)
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
    """The part of `extent` where `index` is a point of `source`, as far as constants can tell."""
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


def union(tracer: Tracer, args: tuple[Read, ...], op: Op) -> Domain:
    """The dims of an equation over `args`; where they have several ranges, a point lies in all."""
    dims = op.mentions() & set(tracer.dim_names())
    ranges: dict[str, Range] = {}
    for a in args:
        if a.tracer is not tracer:
            raise RecurraError(
                f"{a.name} belongs to another program",
                facts=f"it is {a!r}, of a context whose dims are {', '.join(a.tracer.dim_names())}",
                hint="write both in one context, or hand it over: program.run(), then rc.input",
                loc=here(),
            )
        for r in a.domain:
            old = ranges.setdefault(r.dim, r)
            if old != r:
                ranges[r.dim] = Range(r.dim, ex.minimum(old.hi, r.hi), ex.maximum(old.lo, r.lo))
        dims |= {r.dim for r in a.domain}
    return tracer.domain(dims, ranges)


class Operand(arrays.Tensor, Protocol):
    """A tensor as its methods use it, which are written before its class is."""

    chained: bool
    mean_of_nothing: bool

    def __init__(self, tracer: Tracer, ref: Ref, indexed: bool = False) -> None: ...
    @property
    def kind(self) -> type[Self]: ...
    @property
    def tracer(self) -> Tracer: ...
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
