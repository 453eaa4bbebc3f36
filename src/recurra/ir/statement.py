"""Statements: the level below equations, at which order, storage and code are decided.

A statement computes one expression at every point of its domain and writes each value to one place
of one array. An equation that is defined by branches becomes several statements, each with its own
domain, that write disjoint boxes of the same array, so that nothing selects a branch at run time.

    array u[t<T,i<I]: f32[]
    u[0, i<I] = u0[i]
    u[t<1..T, 0] = const
    u[t<1..T, i<1..I] = mul[t,i]

Arrays have the names of the equations that they hold. Values are assigned once, so every dependence
leads from the statement that writes a place to those that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from recurra.errors import Loc
from recurra.ir.dims import Declarations, Dim
from recurra.ir.expr import TRUE, Expr, Sym, all_of
from recurra.ir.graph import Ref, Slice, index_symbols
from recurra.ir.op import Op
from recurra.ir.types import AnyType, Domain, Range
from recurra.report.html import code_html


@dataclass(frozen=True)
class Array:
    """The values of one equation: a value of `type` at each point of `domain`."""

    name: str
    domain: Domain
    type: AnyType
    loc: Loc | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"array {self.name}{self.domain}: {self.type}"


@dataclass(frozen=True)
class DataCondition:
    """A Boolean that the program computes, and the value that it must have."""

    ref: Ref
    holds: bool

    @property
    def dims(self) -> set[str]:
        """The dims that it depends on."""
        return set[str]().union(*map(index_symbols, self.ref.index))

    def __str__(self) -> str:
        return f"{self.ref}" if self.holds else f"~{self.ref}"


@dataclass(frozen=True)
class Statement:
    """write = op(operands), at the points of `domain` at which `where` holds.

    The index of `write` is affine and injective. If the statement `accumulates`, the monoid of the
    op combines the value with the one stored there; dims that the index omits are reduced over.
    At points where one of `decided_by` does not hold, nobody reads the value, and the statement may
    be skipped; if it `polls` these conditions itself, they are the last of its `args`.
    """

    name: str
    op: Op
    args: tuple[Ref, ...]
    domain: Domain
    type: AnyType  # of one value
    write: Ref
    equation: str  # the equation that it is a part of
    where: Expr = TRUE
    accumulates: bool = False
    decided_by: tuple[DataCondition, ...] = ()
    polls: bool = False
    loc: Loc | None = field(default=None, compare=False, repr=False)

    @property
    def conditions(self) -> tuple[Expr, tuple[DataCondition, ...]]:
        """The conditions under which it runs, on dims and on data."""
        return self.where, self.decided_by

    @property
    def operands(self) -> tuple[Ref, ...]:
        """The operands of the op: `args` without the conditions."""
        return self.args[: -len(self.decided_by)] if self.polls else self.args

    @property
    def places(self) -> tuple[Expr | int, ...]:
        """The index that it writes, along each dim of the array."""
        return tuple(e for e in self.write.index if not isinstance(e, Slice))

    @property
    def array(self) -> str:
        """The name of the array that it writes."""
        return self.write.name

    def __str__(self) -> str:
        conditions = [] if self.where == TRUE else [str(self.where)]
        conditions += map(str, self.decided_by)
        condition = f"  if {' & '.join(conditions)}" if conditions else ""
        sign = "+=" if self.accumulates else "="
        return f"{self.target} {sign} {self.expression}{condition}"

    @property
    def is_copy(self) -> bool:
        """Does it copy its operand?"""
        return getattr(self.op, "when", None) == (TRUE,)

    def condition(self, index: int) -> Expr:
        """The condition under which operand `index` is read."""
        when: tuple[Expr, ...] = getattr(self.op, "when", ())
        return all_of(self.where, when[index]) if index < len(when) else self.where

    @property
    def target(self) -> str:
        """The write as text, with the range of every dim where it first occurs."""
        left = {r.dim: r for r in self.domain}
        places: list[str] = []
        for e in self.places:
            r = left.pop(e.name, None) if isinstance(e, Sym) else None
            places.append(_range_text(r) if r is not None else str(e))
        rest = "".join(f" over {_range_text(r)}" for r in left.values())
        return self.array + (f"[{', '.join(places)}]" if places else "") + rest

    @property
    def expression(self) -> str:
        """The right side as text; for a copy or an accumulation, just the operands."""
        operands = list(map(str, self.operands))
        if self.accumulates or self.is_copy:
            return ", ".join(operands)
        return f"{self.op.name}({', '.join(operands + self.op.attributes())})"


def _range_text(extent: Range) -> str:
    """The text of a range: `t<T`, `t<1..T` if it does not begin at 0, or its only point."""
    if extent.is_point:
        return str(extent.lo)
    return f"{extent.dim}<{'' if extent.lo == 0 else f'{extent.lo}..'}{extent.hi}"


@dataclass(frozen=True)
class StatementGraph(Declarations):
    """Statements by name, in the order of the equations they come from, and their arrays."""

    arrays: Mapping[str, Array]
    statements: Mapping[str, Statement]
    outputs: tuple[str, ...] = ()
    dims: tuple[Dim, ...] = ()

    def __str__(self) -> str:
        head = [f"dims {', '.join(map(str, self.dims))}"] if self.dims else []
        lines = [*map(str, self.arrays.values()), *map(str, self.statements.values())]
        return "\n".join([*head, *lines, f"return {', '.join(self.outputs)}"])

    def _repr_html_(self) -> str:
        return code_html(str(self))

    def __getitem__(self, name: str) -> Statement:
        return self.statements[name]

    def running(self, name: str) -> str | None:
        """The accumulating statement that a statement reads the total of, or None."""
        operands = (self.statements.get(a.name) for a in self.statements[name].args)
        return next((s.name for s in operands if s is not None and s.accumulates), None)

    @cached_property
    def writers(self) -> Mapping[str, tuple[Statement, ...]]:
        """The statements that write each array."""
        out: dict[str, list[Statement]] = {a: [] for a in self.arrays}
        for s in self.statements.values():
            out[s.array].append(s)
        return {a: tuple(found) for a, found in out.items()}

    @cached_property
    def guarded(self) -> bool:
        """Does any statement run under a condition?"""
        return any(s.where != TRUE or s.decided_by for s in self.statements.values())

    @cached_property
    def whole(self) -> frozenset[str]:
        """The arrays that a single statement writes, each element at its own point.

        Elements that are not demanded may be skipped.
        """
        single = (found[0] for found in self.writers.values() if len(found) == 1)
        domains = ((s, self.arrays[s.array].domain) for s in single)
        return frozenset(s.array for s, d in domains if s.domain == d and s.places == d.identity)
