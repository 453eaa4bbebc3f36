"""Padding through the ops that move elements: by label, by dim, by data.

The valid part of an axis always starts at 0, so whatever moves it must move it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from recurra.ir.expr import Sym, maximum, mul
from recurra.ir.op import LETTERS, join_labels
from recurra.ir.types import Type
from recurra.ops import elementwise as el
from recurra.ops.indexing import Take
from recurra.ops.movement import Pad, Reshape
from recurra.ops.source import Value
from recurra.transforms.padding.fills import contracted
from recurra.transforms.padding.state import ANY, FINITE, Fill, Made, Operand, Padding, join, known


def flip(p: Padding, x: Operand) -> Made:
    """y[k] = x[length - 1 - k]; the padding stays at the end."""
    op: Any = p.n.op
    if x.fill[op.axis] is None:
        return Made(op, (x.ref,), x.fill)
    length: Any = x.valid[op.axis]
    at = maximum(length - 1 - Sym(p.iota), 0)
    index = p.emit(Value(expr=at, bind=((p.iota, p.size(x, op.axis), 0),)), (), "turned")
    axes = LETTERS[: x.rank]
    c = axes[op.axis]
    take = Take(labels=f"{axes},Z->{axes.replace(c, 'Z')}", axis=c)
    fill = list(x.fill)
    fill[op.axis] = FINITE if x.finite and p.never_empty(length) else ANY
    return Made(take, (x.ref, index), fill)


def transpose(p: Padding, x: Operand) -> Made:
    op: Any = p.n.op
    return Made(op, (x.ref,), [x.fill[k] for k in op.order])


def reshape(p: Padding, x: Operand) -> Made:
    """Of the axes that change only the first may have padding: its valid part stays in front."""
    op: Any = p.n.op
    lead, tail = _shared(x.valid, op.shape)
    have, want = len(x.valid) - tail, len(op.shape) - tail
    padded = list(p.g.type(x.ref).shape)
    old, new = padded[lead:have], list(op.shape[lead:want])
    fill: list[Fill | None] = [None] * len(new)
    if any(f is not None for f in x.fill[lead:have]):
        first, *rest = new
        if any(f is not None for f in x.fill[lead + 1 : have]) or any(map(p.varies, rest)):
            p.refuse(
                f"{p.graph.read_type(p.n.args[0])} and {p.n.type} share no leading axis",
                "transpose the axis whose length changes to the front",
            )
        new[0] = p.static(first) if rest else _times(old)
        if _times(old) != _times(new):
            p.refuse(f"the padded sizes {_times(old)} and {_times(new)} differ")
        fill[0] = x.fill[lead]
    shape = (*padded[:lead], *new, *padded[have:])
    return Made(Reshape(shape=shape), (x.ref,), (*x.fill[:lead], *fill, *x.fill[have:]))


def _shared(a: Sequence[Any], b: Sequence[Any]) -> tuple[int, int]:
    """How many sizes two shapes share at the start and, of the rest, at the end."""
    pairs = list(zip(a, b, strict=False))
    lead = next((k for k, (m, n) in enumerate(pairs) if m != n), len(pairs))
    pairs = list(zip(a[lead:][::-1], b[lead:][::-1], strict=False))
    return lead, next((k for k, (m, n) in enumerate(pairs) if m != n), len(pairs))


def _times(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for s in sizes:
        total = mul(total, s)
    return total


def cut(p: Padding, x: Operand) -> Made:
    """A cut of fixed length lies in the valid part; a longer one may read zeros behind the end."""
    op: Any = p.n.op
    fill = list(x.fill)
    f, fill[op.axis] = fill[op.axis], None
    if not p.varies(op.size):
        return Made(op, (x.ref,), fill)
    size: Any = p.static(op.size)
    top: Any = p.static(op.start)
    beyond = p.excess(x, top + size - p.size(x, op.axis))
    if beyond != 0:
        wide = Pad(axis=op.axis, before=0, after=beyond)
        x = replace(x, ref=p.emit(wide, (x.ref,), f"{x.ref.name}_wide"))
        fill = [None if e is None else join(e, 0.0) for e in fill]
    to_the_end = op.start + op.size == x.valid[op.axis]
    fill[op.axis] = (join(f, 0.0) if f is not None else 0.0) if to_the_end else ANY
    return Made(replace(op, size=size), (x.ref,), fill)


def pad(p: Padding, x: Operand) -> Made:
    """What follows the valid part is the value already, or made so."""
    op: Any = p.n.op
    fill = [None if f is None else join(f, known(op.value)) for f in x.fill]
    if x.fill[op.axis] is None and not p.varies(op.before) and not p.varies(op.after):
        return Made(op, (x.ref,), fill)
    assert isinstance(p.n.type, Type)
    size = p.static(p.n.type.shape[op.axis])
    new, ref = p.placed(x, op.axis, op.before, size, op.value)
    fill[op.axis] = known(op.value)
    return Made(new, (ref,), fill)


def concat(p: Padding, *xs: Operand) -> Made:
    """Operands with padding before the last are moved to their places and added."""
    op: Any = p.n.op
    axes = LETTERS[: xs[0].rank]
    alone = [axes.replace(axes[op.axis], LETTERS[-1 - k]) for k in range(len(xs))]
    xs = tuple(p.agreed(xs, alone))
    columns = zip(*(x.fill for x in xs), strict=True)
    fill = [None if None in f else join(*f) for f in columns]
    if all(x.fill[op.axis] is None for x in xs[:-1]):
        fill[op.axis] = xs[-1].fill[op.axis]
        return Made(op, tuple(x.ref for x in xs), fill)
    assert isinstance(p.n.type, Type)
    size = p.static(p.n.type.shape[op.axis])
    add = el.Or() if p.n.type.dtype == "bool" else el.Add()
    start: Any = 0
    parts = []
    for x in xs:
        moved, ref = p.placed(x, op.axis, start, size, 0.0)
        parts.append(p.emit(moved, (ref,), "part"))
        start = start + x.valid[op.axis]
    while len(parts) > 2:
        parts = [p.emit(add, parts[:2], "joined"), *parts[2:]]
    fill = [None if f is None else contracted([join(f, 0.0)]) for f in fill]
    fill[op.axis] = 0.0
    return Made(add, tuple(parts), fill)


def pick(p: Padding, x: Operand) -> Made:
    """Zero outside the valid length."""
    op: Any = p.n.op
    f, length = x.fill[op.axis], x.valid[op.axis]
    if f is not None and f != 0 and not p.below(op.at_, length):
        x = p.masked(x, op.axis, 0.0)
    kept = [f for k, f in enumerate(x.fill) if k != op.axis]
    return Made(op, (x.ref,), [None if f is None else join(f, 0.0) for f in kept])


def place(p: Padding, x: Operand) -> Made:
    op: Any = p.n.op
    rest = [None if f is None else join(f, 0.0) for f in x.fill]
    inside = p.below(op.at_, op.size)
    new: Fill = 0.0 if inside else join(0.0, p.fill(x, None, op.size))
    fill = [*rest[: op.axis], new, *rest[op.axis :]]
    return Made(replace(op, size=p.static(op.size)), (x.ref,), fill)


def take(p: Padding, x: Operand, i: Operand) -> Made:
    """Padding of the index reads element 0; a position past the valid length the last element."""
    op: Any = p.n.op
    lx, li, out = op.parts()
    x, i = p.agreed((x, i), (lx, li))
    for k in range(i.rank):
        i = p.masked(i, k, 0.0)
    axis = lx.index(op.axis)
    if x.fill[axis] is not None:
        length: Any = x.valid[axis]
        if not p.never_empty(length):
            x = p.masked(x, axis, 0.0)
        i = _before(p, i, length)
    fill: list[Fill | None] = [x.fill[lx.index(c)] if c in lx else ANY for c in out]
    return Made(op, (x.ref, i.ref), fill)


def _before(p: Padding, i: Operand, length: Any) -> Operand:
    """Positions that are below a length."""
    type_ = p.g.type(i.ref)
    last = p.emit(Value(expr=length - 1, dtype=type_.dtype), (), "last")
    axes = LETTERS[: i.rank]
    minimum = el.Minimum(labels=join_labels((axes, ""), axes))
    return replace(i, ref=p.emit(minimum, (i.ref, last), f"{i.ref.name}_inside"))


def one_hot(p: Padding, i: Operand) -> Made:
    op: Any = p.n.op
    fill = [None if f is None else FINITE for f in i.fill]
    return Made(
        replace(op, size=p.static(op.size)), (i.ref,), [*fill[: op.axis], FINITE, *fill[op.axis :]]
    )


def expand(p: Padding, x: Operand) -> Made:
    """Copies past the valid length are copies still."""
    op: Any = p.n.op
    src, out = op.labels.split("->")
    new = iter(op.sizes)
    fill = [x.fill[src.index(c)] if c in src else p.fill(x, None, next(new)) for c in out]
    return Made(replace(op, sizes=tuple(map(p.static, op.sizes))), (x.ref,), fill)


def const(p: Padding) -> Made:
    op: Any = p.n.op
    shape = tuple(map(p.static, op.shape))
    return Made(replace(op, shape=shape), (), [known(op.value)] * len(shape))


def symbolic(p: Padding) -> Made:
    """Numbers along a padded axis simply go on."""
    op: Any = p.n.op
    bind = tuple((dim, p.static(size), axis) for dim, size, axis in op.bind)
    assert isinstance(p.n.type, Type)
    return Made(replace(op, bind=bind), (), [FINITE] * p.n.type.rank)
