"""rc.until: a bound that the data determine, row by row, while the program runs.

{T: rc.until(d, max=500)}    T[b,i] = 1 + the first t at which d[b,i,t] holds, at most 500
{T: rc.until(d)}             without a limit, if no tensor has to be kept at every t
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from recurra.analysis.dynamic_bounds import NEVER, Until
from recurra.errors import DomainError, here
from recurra.frontend.dims import Index
from recurra.frontend.index_arguments import is_condition, unwrap
from recurra.frontend.tensor_base import Read
from recurra.ir.dims import MAX_POINTS
from recurra.ir.expr import Expr, evaluate, symbols


def until(
    done: object, from_: object = 0, *, max: int | None = None, every: int | None = None
) -> Until:
    """A bound for `compile`: rows end after the first point at which `done` (bool[]) holds.

    Points before `from_` do not end a row; no row has more than `max` points. In the program, T is
    then the length of the current row (TimeRL §5.1). Without `max`, a run goes on until the data
    have ended every row; the program is refused if a tensor is kept at every point of the dim, as
    for reads of the whole past and for gradients.

    A loop checks after `every` steps whether any row goes on, which synchronizes with the device.
    Up to `every` - 1 steps past the last end may run; no result contains them. By default a CPU
    checks after each step, another device by cost (`transforms/early_exit/poll_interval.py`). Host
    functions are never called past the end: a loop with one checks after each step.

    Raises DomainError.
    """
    if not isinstance(done, Read) or done.type.dtype != "bool" or done.type.shape:
        raise DomainError.at_user_line(
            f"rc.until takes a tensor of truth values, not {done!r}",
            facts="it says at every point whether its row ends there: bool[]",
            hint="compare or reduce it first: rc.until(x > 0, max=100)",
        )
    if not done.graph.is_identity(done.ref):
        raise DomainError.at_user_line(
            f"rc.until reads {done.ref}",
            facts="a row ends at the point at which its own tensor holds",
            hint="give the tensor itself, without an index",
        )
    first = unwrap(from_)
    if not isinstance(first, (int, Expr)) or isinstance(first, bool) or is_condition(first):
        raise DomainError.at_user_line(
            f"rows cannot run from {from_!r}",
            facts="from_ is the first point that may end a row: a number or an index expression",
            hint="from_=0 is what is taken if none is named",
        )
    steps = 0 if every is None else _whole(every)
    if every is not None and steps < 1:
        raise DomainError.at_user_line(
            f"a loop cannot ask every {every!r} steps whether rows go on",
            facts="every is the number of steps between two questions, 1 or more",
            hint="leave it out: what is best where the program runs is taken",
        )
    if max is None:
        return Until(done, done.builder, first, NEVER, here(), steps)
    most = _whole(max)
    if not 1 <= most < NEVER:
        raise DomainError.at_user_line(
            f"the longest row cannot have {max!r} points",
            facts="tensors over a dim that the data end are given this much room",
            hint="max=100",
        )
    return Until(done, done.builder, first, most, here(), steps)


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate bounds that are expressions of others: {B: 2, T: 3, N: B * T}.

    Raises DomainError if a bound depends on one without a number, or is too large.
    """
    out = {name: v for name, v in given.items() if not isinstance(v, Index)}
    numbers = {name: n for name, v in out.items() if (n := _whole(v)) > 0}
    pending = {name: v.expr for name, v in given.items() if isinstance(v, Index)}
    while ready := [name for name, e in pending.items() if symbols(e) <= numbers.keys()]:
        for name in ready:
            out[name] = numbers[name] = evaluate(pending.pop(name), numbers)
    for name, e in pending.items():
        lacking = sorted(symbols(e) - numbers.keys())
        ended = [x for x in lacking if isinstance(given.get(x), Until)]
        raise DomainError.at_user_line(
            f"the bound {name} is {e}, and {', '.join(lacking)} has no number",
            facts=f"the data set {ended[0]}, row by row, while the program runs"
            if ended
            else f"the numbers are {', '.join(f'{n}={v}' for n, v in numbers.items()) or 'none'}",
            hint=f"give it a number itself: {name}: 10",
        )
    for name, n in numbers.items():
        if n > MAX_POINTS:
            raise DomainError.at_user_line(
                f"the bound {name} is {n}",
                facts=f"points are counted in 32 bits: there are {MAX_POINTS} at most",
                hint=f"give a smaller number: {name}: 1000",
            )
    return {name: out[name] for name in given}


def _whole(value: Any) -> int:
    """Return the value as an int, or -1 if it is no integer."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return -1
