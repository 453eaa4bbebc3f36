"""The rule of each op for padded operands, after which the valid part of the result is right.

An op without a rule refuses operands whose lengths change with a dim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from recurra.ir.op import LETTERS, Elementwise, Op, Reduction, fresh_label
from recurra.ops.attention import Attention
from recurra.ops.contraction import Einsum
from recurra.ops.control import Call
from recurra.ops.indexing import ArgSort, OneHot, Pick, Place, SearchSorted, Take
from recurra.ops.movement import Concat, Cut, Expand, Flip, Pad, Reshape, Transpose
from recurra.ops.ordering import CumMax, Scatter, Sort, TopK
from recurra.ops.permutation import Permutation
from recurra.ops.random import Uniform
from recurra.ops.reduction import ArgMax, Fold, identity, lowest
from recurra.ops.scan import CumProd, CumSum, DiscountedSum, Discounts
from recurra.ops.softmax import LogSoftmax, Softmax
from recurra.ops.source import Const, Value
from recurra.ops.window import Overlap, Windows
from recurra.transforms.early_exit.ragged_axes import neutral_fills, reads_only_earlier
from recurra.transforms.padding import data_movement as moves
from recurra.transforms.padding.fills import contracted, pointwise, reduced
from recurra.transforms.padding.padded_axes import (
    ANY,
    FINITE,
    Fill,
    PaddedEquation,
    PaddedOperand,
    Padding,
    finite,
)

PadRule = Callable[..., PaddedEquation]


def rule_of(op: type[Op]) -> PadRule | None:
    """Return the rule of an op, or of its family."""
    return next((RULES[c] for c in op.__mro__ if c in RULES), None)


def _each(fills: Iterable[Fill | None], fill: Fill) -> list[Fill | None]:
    """A fill for each axis that has padding."""
    return [None if f is None else fill for f in fills]


def _summed(fills: Iterable[Fill | None]) -> list[Fill | None]:
    """The fill of each axis after a sum over other axes."""
    return [None if f is None else contracted([f]) for f in fills]


def _without(operand: PaddedOperand, axes: Collection[int]) -> list[Fill | None]:
    """The fills of the axes that are left if some are reduced."""
    return [f for k, f in enumerate(operand.fill) if k not in axes]


def _same_op(
    padding: Padding, operand: PaddedOperand, fill: Sequence[Fill | None]
) -> PaddedEquation:
    """The equation with its op unchanged, on one operand."""
    return PaddedEquation(padding.n.op, (operand.ref,), fill)


def _elementwise(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """Axes keep their lengths by their labels."""
    op = padding.op(Elementwise)
    ins, out = op.parts(tuple(x.rank for x in xs))
    xs = tuple(padding.with_common_sizes(xs, ins))
    dtypes = [padding.g.type(x.ref).dtype for x in xs]
    fill = [pointwise(op, padding.states(xs, ins, c), dtypes, [c in s for s in ins]) for c in out]
    return PaddedEquation(op, tuple(x.ref for x in xs), fill)


def _neutral(padding: Padding, operand: PaddedOperand) -> PaddedOperand:
    """The operand with the neutral element in the padding that the op would mix with values."""
    op = padding.n.op
    if reads_only_earlier(op):  # the padding comes behind all that is read
        return operand
    for _, axis, value in neutral_fills(op, padding.g.type(operand.ref).dtype):
        operand = padding.masked(operand, axis, value)
    return operand


def _reduction(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding of a reduced axis becomes the identity of the monoid."""
    op = padding.op(Reduction, Fold)
    if isinstance(op, Fold):
        monoid, axes = op.monoid_of, tuple(range(op.rank))
    else:
        monoid, axes = op.monoid, op.axes
    if monoid is None:
        padding.refuse("its partial results cannot be joined, so padding cannot be left out")
    neutral = identity(monoid, padding.g.type(operand.ref).dtype)
    masked = any(operand.fill[a] is not None for a in axes)
    operand = _neutral(padding, operand)
    kept = _without(operand, axes)
    fill = [None if f is None else reduced(f, monoid, neutral, masked) for f in kept]
    return _same_op(padding, operand, fill)


def _argmax(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding is the lowest number; of equals the first wins, which is valid."""
    operand = _neutral(padding, operand)
    kept = _without(operand, padding.op(ArgMax).axes)
    return _same_op(padding, operand, _each(kept, FINITE))


def _einsum(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """Over a padded label one operand must be zero there, and the others finite."""
    op = padding.op(Einsum)
    ins, out = op.parts()
    ops = padding.with_common_sizes(xs, ins)
    summed = [c for c in dict.fromkeys("".join(ins)) if c not in out]
    for c in summed:
        for k, s in enumerate(ins):
            if c in s and (f := ops[k].fill[s.index(c)]) is not None and not finite(f):
                ops[k] = padding.masked(ops[k], s.index(c), 0.0)
    for c in summed:
        has = [k for k, s in enumerate(ins) if c in s and ops[k].fill[s.index(c)] is not None]
        if has and not any(ops[k].fill[ins[k].index(c)] == 0 for k in has):
            k = min(has, key=lambda k: ops[k].rank)
            ops[k] = padding.masked(ops[k], ins[k].index(c), 0.0)
    fill = [contracted(padding.states(ops, ins, c)) for c in out]
    return PaddedEquation(op, tuple(x.ref for x in ops), fill)


def _discounted_sum(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    operand = _neutral(padding, operand)
    kept = _without(operand, (padding.op(DiscountedSum).axis,))
    return _same_op(padding, operand, _summed(kept))


def _softmax(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding has no weight."""
    op = padding.op(Softmax, LogSoftmax)
    fill: list[Fill | None] = [
        None if f is None else FINITE if finite(f) else ANY for f in operand.fill
    ]
    if operand.fill[op.axis] is None:
        return _same_op(padding, operand, fill)
    dtype = padding.g.type(operand.ref).dtype
    full = padding.never_empty(operand.valid[op.axis])
    bottom = lowest(dtype) if full else -6e4 if dtype == "f16" else -3e38
    is_finite = all(f is None or finite(f) for f in _without(operand, (op.axis,)))
    operand = padding.masked(operand, op.axis, bottom)
    if isinstance(op, LogSoftmax):
        return _same_op(padding, operand, _each(operand.fill, ANY))
    fill[op.axis] = (0.0 if full else FINITE) if is_finite else ANY
    return _same_op(padding, operand, fill)


def _attention(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """The padding of the range has no weight: the op gets the valid length."""
    op = padding.op(Attention)
    roles = op.roles()
    labels = (roles.q, roles.k, roles.v, roles.seen)[: len(xs)]
    ops = padding.with_common_sizes(xs, labels)
    for x, mine in zip(ops, labels, strict=True):
        if any(f is not None and c != roles.n for c, f in zip(mine, x.fill, strict=True)):
            padding.refuse("only the axis of what is attended to can have a length that changes")
    at = roles.k.index(roles.n)
    length = ops[1].valid[at]
    if not padding.never_empty(length):
        padding.refuse("its range may be empty, and then nothing has any weight")
    for j in (1, 2):
        f = ops[j].fill[labels[j].index(roles.n)]
        if f is not None and not finite(f):
            ops[j] = padding.masked(ops[j], labels[j].index(roles.n), 0.0)
    rank = len(roles.y)
    return PaddedEquation(replace(op, length=length), tuple(x.ref for x in ops), [None] * rank)


def _cumsum(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding comes last, so no valid element sees it; if reversed, it is neutral."""
    op = padding.op(CumSum)
    operand = _neutral(padding, operand)
    fill, f = _summed(operand.fill), operand.fill[op.axis]
    fill[op.axis] = None if f is None else FINITE if finite(f) else ANY
    return _same_op(padding, operand, fill)


def _cumprod(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding comes last, and a product of finite numbers may overflow."""
    return _same_op(padding, operand, _each(operand.fill, ANY))


def _cummax(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding comes last; a maximum is one of the elements."""
    return _same_op(padding, operand, _each(operand.fill, FINITE if operand.finite else ANY))


def _sorted(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding sorts last: NaN does, and so does the last of equals."""
    operand = _neutral(padding, operand)
    kind = FINITE if isinstance(padding.n.op, ArgSort) else ANY
    return _same_op(padding, operand, _each(operand.fill, kind))


def _searched(padding: Padding, source: PaddedOperand, values: PaddedOperand) -> PaddedEquation:
    """The padding comes last and is below no value: it is NaN, or the highest number."""
    op = padding.op(SearchSorted)
    lx, lv, out = op.parts()
    source, values = padding.with_common_sizes((source, values), (lx, lv))
    source = _neutral(padding, source)
    ragged = {
        c
        for x, s in ((source, lx), (values, lv))
        for c, f in zip(s, x.fill, strict=True)
        if f is not None
    }
    fill: list[Fill | None] = [FINITE if c in ragged else None for c in out]
    return PaddedEquation(op, (source.ref, values.ref), fill)


def _topk(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The padding is the lowest number; of equals the first wins, which is valid."""
    op = padding.op(TopK)
    if padding.varies(op.size):
        padding.refuse("so many elements as a dim says", hint="take a fixed number of them")
    operand = _neutral(padding, operand)
    kept = [None if k == op.axis else f for k, f in enumerate(operand.fill)]
    return _same_op(padding, operand, _each(kept, FINITE))


def _scatter(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """The padding of the places is off the axis, so nothing is put there."""
    op = padding.op(Scatter)
    axes = LETTERS[: xs[0].rank]
    places = axes.replace(axes[op.axis], fresh_label(axes))
    x, i, v = padding.with_common_sizes(xs, (axes, places, places))
    i = padding.masked(i, op.axis, -1)
    return PaddedEquation(op, (x.ref, i.ref, v.ref), _each(x.fill, ANY))


def _discounts(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    op = padding.op(Discounts)
    fill = _summed(operand.fill)
    fill.insert(op.axis, contracted([padding.fill(operand, None, op.size)]))
    return PaddedEquation(replace(op, size=padding.static(op.size)), (operand.ref,), fill)


def _windows(padding: Padding, operand: PaddedOperand) -> PaddedEquation:
    """The axes that are cut into windows have no padding; others keep theirs."""
    op = padding.op(Overlap, Windows)
    n = len(op.sizes)
    before, after = (n, 2 * n) if isinstance(op, Windows) else (2 * n, n)
    end = op.axis + before
    if any(f is not None for f in operand.fill[op.axis : end]):
        padding.refuse("its windows would reach into the padding")
    rest = _summed(operand.fill)
    return _same_op(padding, operand, [*rest[: op.axis], *[None] * after, *rest[end:]])


def _call(padding: Padding, *xs: PaddedOperand) -> PaddedEquation:
    """The function on the host gets the valid part."""
    op = padding.op(Call)
    lengths = (
        (k, axis, x.valid[axis])
        for k, x in enumerate(xs)
        for axis, f in enumerate(x.fill)
        if f is not None
    )
    new = replace(op, lengths=(*op.lengths, *lengths))
    return PaddedEquation(new, tuple(x.ref for x in xs), ())


RULES: dict[type[Op], PadRule] = {
    Elementwise: _elementwise,
    Reduction: _reduction,
    ArgMax: _argmax,
    Fold: _reduction,
    Einsum: _einsum,
    DiscountedSum: _discounted_sum,
    Discounts: _discounts,
    Overlap: _windows,
    Softmax: _softmax,
    Attention: _attention,
    LogSoftmax: _softmax,
    CumSum: _cumsum,
    CumProd: _cumprod,
    CumMax: _cummax,
    ArgSort: _sorted,
    Sort: _sorted,
    TopK: _topk,
    SearchSorted: _searched,
    Scatter: _scatter,
    Call: _call,
    Flip: moves.flip,
    Transpose: moves.transpose,
    Reshape: moves.reshape,
    Cut: moves.cut,
    Pad: moves.pad,
    Concat: moves.concat,
    Pick: moves.pick,
    Place: moves.place,
    Take: moves.take,
    OneHot: moves.one_hot,
    Expand: moves.expand,
    Const: moves.const,
    Value: moves.symbolic,
    Uniform: moves.symbolic,
    Permutation: moves.symbolic,
    Windows: _windows,
}
