"""The padding rules of ops that move elements.

The valid part of an axis always starts at 0, so an op that moves it must move it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from recurra.ir.expr import Expr, Sym, maximum, mul
from recurra.ir.op import LETTERS, join_labels
from recurra.ops import elementwise as el
from recurra.ops.indexing import OneHot, Pick, Place, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Pad, Reshape, Transpose
from recurra.ops.permutation import Permutation
from recurra.ops.random import Uniform
from recurra.ops.source import Const, Value
from recurra.transforms.padding.fills import contracted
from recurra.transforms.padding.padded_axes import (
    ANY,
    FINITE,
    Fill,
    PaddedEquation,
    PaddedOperand,
    Padding,
    constant_fill,
    join,
)


def flip(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """y[k] = x[length - 1 - k]; the padding stays at the end."""
    op = padding.op(Flip)
    if operand.fill[op.axis] is None:
        return PaddedEquation(op, (operand.ref,), operand.fill)
    length = operand.valid[op.axis]
    at = maximum(length - 1 - Sym(padding.iota), 0)
    value = Value(expr=at, bind=((padding.iota, padding.size(operand, op.axis), 0),))
    index = padding.emit(value, (), "turned")
    axes = LETTERS[: operand.rank]
    c = axes[op.axis]
    take = Take(labels=f"{axes},Z->{axes.replace(c, 'Z')}", axis=c)
    fill = list(operand.fill)
    fill[op.axis] = FINITE if operand.finite and padding.never_empty(length) else ANY
    return PaddedEquation(take, (operand.ref, index), fill)


def transpose(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    op = padding.op(Transpose)
    return PaddedEquation(op, (operand.ref,), [operand.fill[k] for k in op.order])


def reshape(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """Only the first changed axis may have padding; its valid part stays in front."""
    op = padding.op(Reshape)
    lead, tail = _shared(operand.valid, op.shape)
    have, want = len(operand.valid) - tail, len(op.shape) - tail
    padded = list(padding.g.type(operand.ref).shape)
    old, new = padded[lead:have], list(op.shape[lead:want])
    fill: list[Fill | None] = [None] * len(new)
    first_fill, *other_fills = operand.fill[lead:have] or (None,)
    if first_fill is not None or any(f is not None for f in other_fills):
        first, *rest = new
        if any(f is not None for f in other_fills) or any(map(padding.varies, rest)):
            padding.refuse(
                f"{padding.graph.read_type(padding.n.args[0])} and {padding.n.type} "
                "share no leading axis",
                "transpose the axis whose length changes to the front",
            )
        new[0], total = padding.static(first) if rest else _product(old), _product(old)
        if total != _product(new):
            padding.refuse(f"the padded sizes {total} and {_product(new)} differ")
        fill[0] = first_fill
    new_op = Reshape(shape=(*padded[:lead], *new, *padded[have:]))
    fills = (*operand.fill[:lead], *fill, *operand.fill[have:])
    return PaddedEquation(new_op, (operand.ref,), fills)


def _shared(one: Sequence[object], other: Sequence[object]) -> tuple[int, int]:
    """Count the sizes that two shapes share at the start and, of the rest, at the end."""
    pairs = list(zip(one, other, strict=False))
    lead = next((k for k, (m, n) in enumerate(pairs) if m != n), len(pairs))
    pairs = list(zip(one[lead:][::-1], other[lead:][::-1], strict=False))
    return lead, next((k for k, (m, n) in enumerate(pairs) if m != n), len(pairs))


def _product(sizes: Sequence[Expr | int]) -> Expr | int:
    return reduce(mul, sizes, 1)


def cut(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """A cut of fixed length is in the valid part; a longer one may read zeros behind the end."""
    op = padding.op(Cut)
    fill = list(operand.fill)
    f, fill[op.axis] = fill[op.axis], None
    if not padding.varies(op.size):
        return PaddedEquation(op, (operand.ref,), fill)
    size = padding.static(op.size)
    top = padding.static(op.start)
    beyond = padding.excess(operand, top + size - padding.size(operand, op.axis))
    if beyond != 0:
        wide = Pad(axis=op.axis, before=0, after=beyond)
        ref = padding.emit(wide, (operand.ref,), f"{operand.ref.name}_wide")
        operand, fill = replace(operand, ref=ref), _joined(fill, 0.0)
    to_the_end = op.start + op.size == operand.valid[op.axis]
    fill[op.axis] = (join(f, 0.0) if f is not None else 0.0) if to_the_end else ANY
    return PaddedEquation(replace(op, size=size), (operand.ref,), fill)


def pad(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The elements behind the valid part hold the value already, or are made to."""
    op = padding.op(Pad)
    fill = _joined(operand.fill, constant_fill(op.value))
    static = not padding.varies(op.before) and not padding.varies(op.after)
    if operand.fill[op.axis] is None and static:
        return PaddedEquation(op, (operand.ref,), fill)
    size = padding.static(padding.n.tensor.shape[op.axis])
    new, ref = padding.move_valid_part(operand, op.axis, op.before, size, op.value)
    fill[op.axis] = constant_fill(op.value)
    return PaddedEquation(new, (ref,), fill)


def _joined(fills: Sequence[Fill | None], fill: Fill) -> list[Fill | None]:
    """The fill of each axis that has padding, joined with another."""
    return [None if f is None else join(f, fill) for f in fills]


def concat(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """Operands with padding before the last are moved to their places and added."""
    op = padding.op(Concat)
    axes = LETTERS[: xs[0].rank]
    alone = [axes.replace(axes[op.axis], LETTERS[-1 - k]) for k in range(len(xs))]
    xs = tuple(padding.with_common_sizes(xs, alone))
    columns = zip(*(x.fill for x in xs), strict=True)
    fill = [None if None in f else join(*f) for f in columns]
    if all(x.fill[op.axis] is None for x in xs[:-1]):
        fill[op.axis] = xs[-1].fill[op.axis]
        return PaddedEquation(op, tuple(x.ref for x in xs), fill)
    size = padding.static(padding.n.tensor.shape[op.axis])
    add = el.Or() if padding.n.tensor.dtype == "bool" else el.Add()
    start = 0
    parts = []
    for x in xs:
        moved, ref = padding.move_valid_part(x, op.axis, start, size, 0.0)
        parts.append(padding.emit(moved, (ref,), "part"))
        start = start + x.valid[op.axis]
    while len(parts) > 2:
        parts = [padding.emit(add, parts[:2], "joined"), *parts[2:]]
    fill = [None if f is None else contracted([join(f, 0.0)]) for f in fill]
    fill[op.axis] = 0.0
    return PaddedEquation(add, tuple(parts), fill)


def pick(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """Zero outside the valid length."""
    op = padding.op(Pick)
    f, length = operand.fill[op.axis], operand.valid[op.axis]
    if f is not None and f != 0 and not padding.is_before_end(op.at_, length):
        operand = padding.masked(operand, op.axis, 0.0)
    kept = [f for k, f in enumerate(operand.fill) if k != op.axis]
    return PaddedEquation(op, (operand.ref,), _joined(kept, 0.0))


def place(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """Zero at all places but one."""
    op = padding.op(Place)
    fill, inside = _joined(operand.fill, 0.0), padding.is_before_end(op.at_, op.size)
    new: Fill = 0.0 if inside else join(0.0, padding.fill(operand, None, op.size))
    fill.insert(op.axis, new)
    return PaddedEquation(replace(op, size=padding.static(op.size)), (operand.ref,), fill)


def take(padding: Padding, source: PaddedOperand, places: PaddedOperand) -> PaddedEquation:
    """Padding of the index reads element 0; a position past the valid length the last element."""
    op = padding.op(Take)
    lx, li, out = op.parts()
    source, places = padding.with_common_sizes((source, places), (lx, li))
    for k in range(places.rank):
        places = padding.masked(places, k, 0.0)
    axis = lx.index(op.axis)
    if source.fill[axis] is not None:
        length = source.valid[axis]
        if not padding.never_empty(length):
            source = padding.masked(source, axis, 0.0)
        places = _before(padding, places, length)
    fill: list[Fill | None] = [source.fill[lx.index(c)] if c in lx else ANY for c in out]
    return PaddedEquation(op, (source.ref, places.ref), fill)


def _before(padding: Padding, operand: PaddedOperand, length: Expr | int) -> PaddedOperand:
    """Positions, at most the last of an axis."""
    type_ = padding.g.type(operand.ref)
    last = padding.emit(Value(expr=length - 1, dtype=type_.dtype), (), "last")
    axes = LETTERS[: operand.rank]
    minimum = el.Minimum(labels=join_labels((axes, ""), axes))
    ref = padding.emit(minimum, (operand.ref, last), f"{operand.ref.name}_inside")
    return replace(operand, ref=ref)


def one_hot(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    op = padding.op(OneHot)
    fill: list[Fill | None] = [None if f is None else FINITE for f in operand.fill]
    fill.insert(op.axis, FINITE)
    return PaddedEquation(replace(op, size=padding.static(op.size)), (operand.ref,), fill)


def expand(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """Copies past the valid length are copies still."""
    op = padding.op(Expand)
    src, out = op.labels.split("->")
    new = iter(op.sizes)
    fill = [
        operand.fill[src.index(c)] if c in src else padding.fill(operand, None, next(new))
        for c in out
    ]
    new_op = replace(op, sizes=tuple(map(padding.static, op.sizes)))
    return PaddedEquation(new_op, (operand.ref,), fill)


def const(padding: Padding) -> PaddedEquation:
    op = padding.op(Const)
    shape = tuple(map(padding.static, op.shape))
    return PaddedEquation(replace(op, shape=shape), (), [constant_fill(op.value)] * len(shape))


def symbolic(padding: Padding) -> PaddedEquation:
    """Numbers along a padded axis simply go on."""
    op = padding.op(Value, Uniform, Permutation)
    bind = tuple((dim, padding.static(size), axis) for dim, size, axis in op.bind)
    return PaddedEquation(replace(op, bind=bind), (), [FINITE] * padding.n.tensor.rank)
