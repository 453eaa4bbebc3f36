"""The fills of padded axes past their valid length, and how to mask, cut and grow axes.

A value of type f32[t+1,4] over t<T becomes one of type f32[T,4]; its first axis is valid up to t+1,
and the elements beyond are its fill: one known number, finite numbers, or any. A fill holds at
every position on the other axes. Known fills are propagated through equations, so that a mask is
emitted only if needed.

Finite math: a sum with a term that is not finite is not finite, so 0 · x may be taken for 0 in the
padding of an axis that is never empty, for any x that has no padding itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from math import isfinite, isnan
from typing import NoReturn, TypeVar

from recurra.errors import ShapeError
from recurra.ir.expr import Expr, Sym, compare, evaluate, maximum, minimum, substitute, symbols
from recurra.ir.graph import Graph, Node, Ref, Slice
from recurra.ir.op import LETTERS, Op, join_labels
from recurra.ir.types import Domain, Range
from recurra.ops.elementwise import Where
from recurra.ops.movement import Cut, Pad
from recurra.ops.source import Const, Value
from recurra.polyhedral import isl
from recurra.transforms.rewriter.rewriting import Rewriting, shape_of


class Unknown(Enum):
    """Padding that is not one known number."""

    FINITE = "finite"
    ANY = "any"


Fill = float | Unknown
FINITE, ANY = Unknown.FINITE, Unknown.ANY
Kind = TypeVar("Kind", bound=Op)


def finite(fill: Fill) -> bool:
    return isfinite(fill) if not isinstance(fill, Unknown) else fill is FINITE


def constant_fill(number: float) -> Fill:
    """The fill that is one number."""
    return ANY if isnan(number) else number


def join(*fills: Fill) -> Fill:
    """The fill that covers several fills."""
    if len(set(fills)) == 1:
        return fills[0]
    return FINITE if all(map(finite, fills)) else ANY


@dataclass(frozen=True)
class PaddedOperand:
    """A read of a padded equation: the `valid` length and the `fill` of each axis.

    The fill of an axis without padding is None.
    """

    ref: Ref
    valid: tuple[Expr | int, ...]
    fill: tuple[Fill | None, ...]

    @property
    def ragged(self) -> bool:
        return any(f is not None for f in self.fill)

    @property
    def rank(self) -> int:
        return len(self.fill)

    @property
    def finite(self) -> bool:
        """True if all of its padding is finite."""
        return all(f is None or finite(f) for f in self.fill)


@dataclass(frozen=True)
class PaddedEquation:
    """A rewritten equation: its op, its operands, and the fill of each axis of its result."""

    op: Op
    args: tuple[Ref, ...]
    fill: Sequence[Fill | None]


@dataclass
class Padding:
    """The graph while equation `n` is padded; rules emit equations for it through this."""

    graph: Graph
    sizes: Mapping[str, int]
    g: Rewriting
    dims: set[str]
    iota: str
    n: Node
    # of each equation: its fills, the equations written for it, its lengths in the program
    fills: dict[str, tuple[Fill | None, ...]] = field(default_factory=dict)
    extra: dict[str, list[str]] = field(default_factory=dict)
    lengths: dict[str, tuple[Expr | int, ...]] = field(default_factory=dict)

    def op(self, *kinds: type[Kind]) -> Kind:
        """Return the op of the equation, which is one of some kinds."""
        assert isinstance(self.n.op, kinds), self.n
        return self.n.op

    def refuse(self, why: str, hint: str = "") -> NoReturn:
        """Raise ShapeError about the equation, with the reads that have a varying length."""
        read = [str(a) for a in self.n.args if any(map(self.varies, self._sizes(a)))]
        facts = f"it reads {', '.join(read)}" if read else f"it is {self.n.type}"
        raise ShapeError(f"{self.n.op.name}: {why}", facts=facts, hint=hint, loc=self.n.loc)

    def _sizes(self, ref: Ref) -> Iterator[Expr | int]:
        """The sizes of the axes that a read has."""
        return chain((s.size for s in ref.slices), shape_of(self.graph[ref.name].type))

    def varies(self, expr: Expr | int) -> bool:
        """Tell whether a size mentions dims."""
        return bool(symbols(expr) & self.dims)

    def static(self, expr: Expr | int) -> Expr | int:
        """Return `expr`, or its largest value over the domain of the equation if it varies."""
        if not self.varies(expr):
            return expr
        top = isl.largest(expr, self.n.domain)
        return top if top is not None else self._number(expr)

    def _number(self, expr: Expr | int) -> int:
        """The largest value of `expr` for the given sizes."""
        by = dict(self.sizes)
        box = self.n.domain.of(symbols(expr))
        ranges = tuple(Range(r.dim, evaluate(r.hi, by), evaluate(r.lo, by)) for r in box)
        top = isl.largest(substitute(expr, by), Domain(ranges))
        if not isinstance(top, int):
            self.refuse(f"the length {expr} has no largest value that can be written down")
        return top

    def excess(self, operand: PaddedOperand, expr: Expr | int) -> Expr | int:
        """Return max(expr, 0) of a size, simplified by the points at which `operand` is read."""
        mine = self.n.domain.ranges
        other = (r for r in self.g[operand.ref.name].domain if r.dim not in self.n.domain)
        top = isl.largest(expr, Domain((*mine, *other)))
        return maximum(expr, 0) if top is None else top

    def is_before_end(self, at: Expr | int, length: Expr | int) -> bool:
        """Tell whether a position is before the end of an axis at every point."""
        return isl.always(compare("<", at, length), self.n.domain)

    def never_empty(self, length: Expr | int) -> bool:
        return self.is_before_end(0, length)

    def size(self, operand: PaddedOperand, axis: int) -> Expr | int:
        return self.g.type(operand.ref).shape[axis]

    def constant(self, x: PaddedOperand) -> float | None:
        """Return the number that all elements of `x` are, padding included."""
        op = self.g[x.ref.name].op
        if isinstance(op, Const) and all(f is None or f == op.value for f in x.fill):
            return op.value
        return None

    def states(self, xs: Sequence[PaddedOperand], labels: Sequence[str], label: str) -> list[Fill]:
        """Return the fill of each operand in the padding of `label`."""
        length = next(
            x.valid[s.index(label)] for x, s in zip(xs, labels, strict=True) if label in s
        )
        pairs = zip(xs, labels, strict=True)
        return [self.fill(x, s.index(label) if label in s else None, length) for x, s in pairs]

    def fill(self, operand: PaddedOperand, axis: int | None, length: Expr | int) -> Fill:
        """Return the fill of an operand in the padding of an axis of some length.

        `axis` is None if the operand lacks it.
        """
        f = None if axis is None else operand.fill[axis]
        if f is not None:
            return f
        value = self.constant(operand)
        if value is not None:
            return constant_fill(value)
        return FINITE if operand.finite and self.never_empty(length) else ANY

    def emit(self, op: Op, args: Sequence[Ref], stem: str) -> Ref:
        """Emit an equation before the one that is padded, at the same source line."""
        ref = self.g.emit(op, args, self.n.domain, stem)
        if ref.name not in self.fills and ref.name not in self.graph.nodes:
            self.fills[ref.name] = ()
            self.extra.setdefault(self.n.name, []).append(ref.name)
            self.g.nodes[ref.name] = replace(self.g[ref.name], loc=self.n.loc)
        return ref

    def within(self, domain: Domain, emit: Callable[[], PaddedOperand]) -> PaddedOperand:
        """Call `emit` with its equations over another domain."""
        n, self.n = self.n, replace(self.n, domain=domain)
        operand = emit()
        self.n = n
        return operand

    def outside(
        self, operand: PaddedOperand, reader: PaddedOperand, domain: Domain
    ) -> PaddedOperand:
        """Read `operand`, emitted over the domain of the source of `reader`, where `reader` is."""
        by = dict(zip(domain.dims, reader.ref.index, strict=True))
        index = tuple(by[r.dim] for r in self.g[operand.ref.name].domain)
        return PaddedOperand(Ref(operand.ref.name, index), reader.valid, operand.fill)

    def masked(self, operand: PaddedOperand, axis: int, value: float) -> PaddedOperand:
        """Set the padding of an axis to `value`."""
        if operand.fill[axis] is None or operand.fill[axis] == value:
            return operand
        source = self.g[operand.ref.name]
        valid = self.lengths.get(operand.ref.name)
        if valid and _renames(
            operand.ref, source.domain
        ):  # one mask of the source for all its readers
            inner = PaddedOperand(self.g.read(source.name), valid, operand.fill)
            y = self.within(source.domain, lambda: self.masked(inner, axis, value))
            return self.outside(y, operand, source.domain)
        axes = LETTERS[: operand.rank]
        where = Where(labels=join_labels((axes[axis], axes, ""), axes))
        inside = compare("<", Sym(self.iota), operand.valid[axis])
        bind = ((self.iota, self.size(operand, axis), 0),)
        mask = self.emit(Value(expr=inside, dtype="bool", bind=bind), (), "valid")
        other = self.emit(Const(value=value, dtype=self.g.type(operand.ref).dtype), (), "fill")
        ref = self.emit(where, (mask, operand.ref, other), f"{operand.ref.name}_masked")
        return self.with_fill(operand, ref, axis, constant_fill(value))

    def with_fill(self, operand: PaddedOperand, ref: Ref, axis: int, value: Fill) -> PaddedOperand:
        """Return `operand` as `ref`, in which padding along `axis` was set to `value`."""
        fill = [f if f is None else join(f, value) for f in operand.fill]
        fill[axis] = None if operand.fill[axis] is None else value
        self.lengths[ref.name] = operand.valid
        return PaddedOperand(ref, operand.valid, tuple(fill))

    def with_padded_size(
        self, operand: PaddedOperand, axis: int, size: Expr | int
    ) -> PaddedOperand:
        """Give an axis another padded size, no less than its valid length."""
        gap = size - self.size(operand, axis)
        if gap == 0:
            return operand
        name = operand.ref.name
        lead = [k for k, e in enumerate(operand.ref.index) if isinstance(e, Slice)]
        if axis < len(lead):
            s: object = operand.ref.slices[axis]
            ref = operand.ref.with_index(lead[axis], replace(s, pad=size))
            return replace(operand, ref=ref)
        after = self.excess(operand, gap)
        if after != 0:
            f = operand.fill[axis]
            pad = Pad(axis=axis, before=0, after=after)
            ref = self.emit(pad, (operand.ref,), f"{name}_grown")
            operand = self.with_fill(operand, ref, axis, 0.0 if f is None else join(f, 0.0))
        if self.size(operand, axis) != size:
            cut = Cut(axis=axis, start=0, size=size)
            ref = self.emit(cut, (operand.ref,), f"{operand.ref.name}_cut")
            operand = replace(operand, ref=ref)
        return operand

    def with_common_sizes(
        self, xs: Sequence[PaddedOperand], labels: Sequence[str]
    ) -> list[PaddedOperand]:
        """Return operands with one padded size for every label."""
        out = list(xs)
        for c in dict.fromkeys("".join(labels)):
            at = {k: s.index(c) for k, s in enumerate(labels) if c in s}
            padded = [k for k, axis in at.items() if out[k].fill[axis] is not None]
            if padded:
                size = least([self.size(out[k], at[k]) for k in padded])
                for k in padded:
                    out[k] = self.with_padded_size(out[k], at[k], size)
        return out

    def move_valid_part(
        self, operand: PaddedOperand, axis: int, before: Expr | int, size: Expr | int, value: float
    ) -> tuple[Op, Ref]:
        """Return the op, and its operand, that moves the valid part to `before`.

        The axis has `size` elements then, with `value` elsewhere.
        """
        operand = self.masked(operand, axis, value)
        have = self.size(operand, axis)
        lead: object = self.static(before)
        after = self.excess(operand, size - have - (0 if self.varies(before) else before))
        wide = Pad(axis=axis, before=lead, after=after, value=value)
        if lead - before == 0 and lead + have + after == size:
            return wide, operand.ref
        ref = operand.ref
        if lead != 0 or after != 0:
            ref = self.emit(wide, (ref,), f"{ref.name}_wide")
        return Cut(axis=axis, start=lead - before, size=size), ref


def least(sizes: Sequence[Expr | int]) -> Expr | int:
    """Return one of several upper bounds of the same length: a constant if there is one."""
    constants = [s for s in sizes if isinstance(s, int)]
    return min(constants) if constants else minimum(*dict.fromkeys(sizes))


def unused_name(graph: Graph) -> str:
    """Return a name for the position along an axis that is no dim and no bound."""
    name = "k"
    while name in graph.symbols:
        name += "_"
    return name


def _renames(ref: Ref, domain: Domain) -> bool:
    """Tell whether a read only renames the dims of its source."""
    plain = all(isinstance(e, Sym) for e in ref.index) and len(set(ref.index)) == len(domain)
    return plain and ref.index != domain.identity
