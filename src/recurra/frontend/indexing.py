"""Indexing by brackets: x[b, i, t:T] reads over dims, and further brackets index the value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recurra.errors import DomainError, ShapeError, users_frame
from recurra.frontend import ordering, reshaping
from recurra.frontend.definitions import define
from recurra.frontend.index_arguments import Size, unwrap, wrap
from recurra.frontend.index_keys import index_of, place_of, written
from recurra.frontend.tensor_base import Operand, Read, Tensor
from recurra.frontend.tensor_conversion import convert
from recurra.ir import expr as ex
from recurra.ir.expr import Expr, symbols
from recurra.ir.graph import Ref, Slice, index_symbols
from recurra.ir.types import Domain, Range, is_float, is_shift
from recurra.ops import movement
from recurra.ops.elementwise import Mod
from recurra.ops.source import Value
from recurra.polyhedral import isl


def read(x: Tensor, keys: tuple[object, ...]) -> Tensor:
    """Evaluate x[keys]: index its dims if it is not indexed yet, else its value.

    x[..., 0] indexes the value and leaves all dims as they are.
    """
    source = x.graph[x.name].domain
    if x.indexed or not len(source) or keys[0] is ...:
        out = inner(x, keys)
        out.chained = x.indexed and len(source) > 0
        return out
    if x.chained and all(map(_is_constant, keys)) and not _is_in_variable(x):
        raise DomainError.at_user_line(
            f"{_written_keys(keys)} stands behind brackets that chose elements",
            facts="brackets of the result are points of its dims again, as of every tensor",
            hint="choose elements in one pair of brackets, x[t][1, 2]; to read a point of the "
            f"result give it a name: y = x[t][1], and y{_written_keys(keys)}",
        )
    rings = {k: ring for k, key in enumerate(keys) if (ring := _ring(key)) is not None}
    if len(keys) == len(source) and rings:
        return _on_rings(x, keys, source, rings)
    if len(keys) != len(source):
        raise DomainError.at_user_line(
            f"{x.called} is indexed with {len(keys)} expression{'s' * (len(keys) > 1)}",
            facts=f"its domain is {source}, with {len(source)} dims; more brackets index the value",
            hint=_brackets(x, keys, source),
        )
    forward = {k: _reversed(key, r) for k, (key, r) in enumerate(zip(keys, source, strict=True))}
    if any(forward.values()):
        axes = [k for k, key in enumerate(keys) if isinstance(key, slice)]
        whole = read(x, tuple(forward[k] or key for k, key in enumerate(keys)))
        out = reshaping.flip(whole, tuple(axes.index(k) for k, f in forward.items() if f))
        return x.kind(x.builder, out.ref, indexed=True)
    index = tuple(index_of(k, r) for k, r in zip(keys, source, strict=True))
    x.builder.know(set[str]().union(*map(index_symbols, index)))
    return x.kind(x.builder, Ref(x.name, index), indexed=True)


def _reversed(key: object, extent: Range) -> slice | None:
    """The forward range, 0 : t + 1, of a reversed one, `x[t::-1]`; None for other keys."""
    if not isinstance(key, slice) or type(key.step) is not int or key.step != -1:
        return None
    lo = extent.lo if key.stop is None else place_of(key.stop, extent) + 1
    hi = extent.hi if key.start is None else place_of(key.start, extent) + 1
    return slice(wrap(lo), wrap(hi))


def _ring(key: object) -> tuple[Expr | int, Expr | int] | None:
    """The index and the bound of a ring read, (i - 1, I) for `(i - 1) % I`; None for other keys."""
    if not isinstance(key, Read) or key.indexed or not isinstance(key.graph[key.name].op, Mod):
        return None
    index, size = (key.graph[a.name].op for a in key.graph[key.name].args)
    if not (isinstance(index, Value) and isinstance(size, Value)):
        return None
    return None if size.mentions() & set(key.builder.dim_names()) else (index.expr, size.expr)


def _on_rings(
    tensor: Tensor,
    keys: tuple[object, ...],
    source: Domain,
    rings: Mapping[int, tuple[Expr | int, Expr | int]],
) -> Tensor:
    """Read on several rings at once: x[(i - 1) % I, (j + 1) % J].

    It becomes y[(i - 1) % I, j] of y = x[i, (j + 1) % J], so that y serves reads at any i.
    """
    place, (e, size) = max(rings.items())
    own = source.ranges[place]
    alone = symbols(e) & frozenset(tensor.builder.dim_names()) == frozenset((own.dim,))
    if len(rings) == 1 or not alone or source != tensor.builder.domain(source.dims):
        return _around(tensor, keys, place, e, size)
    dims = tuple(wrap(sym) for sym in source.identity)
    rolled = _around(tensor, (*dims[:place], keys[place], *dims[place + 1 :]), place, e, size)
    if rolled.name == tensor.name:  # the index never wraps around
        at = rolled.ref.index[place]
        return read(
            tensor, (*keys[:place], at if isinstance(at, Slice) else wrap(at), *keys[place + 1 :])
        )
    whole = tensor.kind(tensor.builder, rolled.ref)
    return read(whole, (*keys[:place], wrap(own.sym), *keys[place + 1 :]))


def _around(
    tensor: Tensor, keys: tuple[object, ...], place: int, expr: Expr | int, size: Expr | int
) -> Tensor:
    """Read on one ring: x[(i - 1) % I] is x[i - 1] from i = 1 on, and x[i - 1 + I] before."""
    box = tensor.builder.domain(symbols(expr) & set(tensor.builder.dim_names()))
    early, late = ex.compare("<", expr, 0), ex.compare(">=", expr, size)
    near = (ex.compare(">=", expr + size, 0), ex.compare("<", expr - size, size))
    if not all(isl.always(c, box) for c in near):
        raise DomainError.at_user_line(
            f"({expr}) % {size} may lie more than once around",
            facts=f"it is {expr}, {expr + size} or {expr - size}, for every {size} of at least 1",
            hint=_roll_hint(tensor, keys, place, expr, size),
        )
    cases = ((early, expr + size), (late, expr - size), (ex.negate(ex.any_of(early, late)), expr))
    needed = [(when, e) for when, e in cases if not isl.always(ex.negate(when), box)]
    at = [(when, read(tensor, (*keys[:place], wrap(e), *keys[place + 1 :]))) for when, e in needed]
    if len(at) == 1:
        return at[0][1]
    chosen = choose(*at)
    return tensor.kind(tensor.builder, chosen.ref, indexed=True)


def _roll_hint(
    operand: Operand, keys: tuple[object, ...], place: int, expr: Expr | int, size: Expr | int
) -> str:
    """The hint for a ring read: to read the whole ring, and roll it."""
    dim = min(symbols(expr) & set(operand.builder.dim_names()), default="")
    steps = is_shift(expr, dim)
    if steps is None:
        return f"use a constant instead of {size}"
    whole = ", ".join(f"0:{size}" if k == place else written(key) for k, key in enumerate(keys))
    axis = sum(isinstance(k, slice) for k in keys[:place])
    return (
        f"turn it: {operand.called}[{whole}].roll({-steps}, axis={axis}).index({dim}, axis={axis})"
    )


def choose(*cases: tuple[Expr, Tensor]) -> Tensor:
    """Merge tensors of one type, each read only where its condition on dims holds."""
    builder = cases[0][1].builder
    mentioned = set[str]().union(*(symbols(when) for when, _ in cases))
    dims = {r.dim for _, x in cases for r in x.domain} | mentioned & set(builder.dim_names())
    longest = max((x for _, x in cases), key=lambda x: len(x.shape))
    node = builder.declare_choice("where", builder.domain(dims), longest.type)
    out = longest.kind(builder, node.ref)
    for when, x in cases:
        define(out, (wrap(when),), x)
    return out


def _is_constant(key: object) -> bool:
    """Is it a number, or a range between numbers, as indices of dims seldom are?"""
    parts = (key.start, key.stop) if isinstance(key, slice) else (key,)
    return all(k is None or type(k) is int for k in parts)


def _is_in_variable(operand: Operand) -> bool:
    """Is a tensor the value of a variable in one of the user's frames, or inside of one?"""
    return any(v is operand or any(y is operand for y in _contents(v)) for v in _variables())


def _variables() -> Iterator[object]:
    """The values of all variables in the user's frames, innermost first."""
    frame = users_frame()
    while frame is not None:
        yield from frame.f_locals.values()
        yield from frame.f_globals.values()
        frame = frame.f_back


def _contents(holder: object) -> Iterator[object]:
    """The items of a list, tuple or dict, and the attributes of an object."""
    if isinstance(holder, (dict, list, tuple)):
        items: Iterable[object] = holder.values() if isinstance(holder, dict) else holder
        yield from items
    yield from getattr(holder, "__dict__", {}).values()


def _written_keys(keys: tuple[object, ...]) -> str:
    return f"[{', '.join(map(written, keys))}]"


def _brackets(operand: Operand, keys: tuple[object, ...], source: Domain) -> str:
    """The hint to use two pairs of brackets: one for the dims, one for the axes of the value."""
    outer, rest = keys[: len(source)], keys[len(source) :]
    if not rest:
        return f"index every dim: {operand.called}[{', '.join(source.dims)}]"
    whole = [":" for k in outer if isinstance(k, slice)]  # ranges become the first axes
    return (
        f"write {operand.called}[{', '.join(map(written, outer))}]"
        f"[{', '.join([*whole, *map(written, rest)])}]"
    )


def inner(x: Tensor, keys: tuple[Any, ...]) -> Tensor:
    """Index the value as in NumPy: by numbers, index expressions, ranges, integer tensors, `...`
    for the remaining axes, None for a new axis."""
    out, axis = x, 0
    named = sum(k is not None and k is not ... for k in keys)
    if named > len(x.shape):
        raise ShapeError.at_user_line(
            f"{named} expression{'s index' if named > 1 else ' indexes'} {len(x.shape)} axes",
            facts=f"{x.called} is {x!r}",
            hint=_hint_without_axes(x, keys),
        )
    for k in keys:
        if k is ...:
            axis += len(x.shape) - named
        elif k is None:
            out = reshaping.expand(out, 1, axis)
            axis += 1
        elif isinstance(k, slice):
            out = cut(out, k, axis)
            axis += 1
        elif isinstance(k, (list, np.ndarray, Read)):
            places = _places(x.kind, k)
            out = ordering.take(out, places, axis)
            axis += len(places.shape)
        else:
            out = reshaping.index(out, k, axis)
    return out


def _places(kind: type[Tensor], k: Sequence[object] | np.ndarray | Read) -> Tensor:
    """Convert positions along an axis to a tensor; raise ShapeError unless they are integers."""
    places = convert(kind, k)
    if is_float(places.dtype) or places.dtype == "bool":
        raise ShapeError.at_user_line(
            f"{k!r} is no position on an axis",
            facts=f"positions are whole numbers, these are {places.type}",
            hint="write rc.where(x > 0.0, x, 0.0) for a choice, x.take(i, axis=0) for positions",
        )
    return places


def _hint_without_axes(operand: Operand, keys: tuple[object, ...]) -> str:
    """The hint to read a value without axes at other points: a read, or a number such as T."""
    read = ", ".join(map(written, keys))
    if operand.domain:
        over = operand.indexed and len(keys) == len(operand.domain)
        return (
            f"write ({operand.called} * 1.0)[{read}]"
            if over
            else f"the axes are those of {operand!r}"
        )
    mentioned = set[str]().union(*(symbols(e) for k in keys for e in _parts(k)))
    dims = [r for d in operand.builder.dims if {(r := d.range).dim, str(r.hi)} & mentioned]
    if len(dims) != len(keys) or operand.shape:
        return ""
    place = ", ".join(r.dim for r in dims)
    box = f"({place}{',' if len(dims) == 1 else ''})"
    return f"n = rc.like(rc.{operand.dtype}, {box}); n[{place}] = ..; and read n[{read}]"


def _parts(key: object) -> list[Expr]:
    """The index expressions of a key."""
    every = (key.start, key.stop) if isinstance(key, slice) else (key,)
    return [e for k in every if isinstance(e := unwrap(k), Expr)]


def cut(x: Tensor, slice_: slice, axis: int) -> Tensor:
    if slice_.step not in (None, 1):
        return _in_steps(x, slice_, axis)
    n = x.shape[axis]
    lo, hi = _end(slice_.start, n, 0), _end(slice_.stop, n, n)
    if lo == 0 and hi == n:
        return x
    size = hi - lo
    size = max(size, 0) if isinstance(size, int) else size
    return x.apply(movement.Cut(axis=axis, start=lo, size=size), x)


def _in_steps(tensor: Tensor, slice_: slice, axis: int) -> Tensor:
    """Slice an axis of known size with a step, x[..][::2]; an axis of any size with step -1."""
    n = tensor.shape[axis]
    parts: list[Any] = [unwrap(e) for e in (slice_.start, slice_.stop, slice_.step)]
    if parts == [None, None, -1]:
        return reshaping.flip(tensor, axis)
    if not isinstance(n, int) or parts[2] == 0 or not all(map(_is_constant, parts)):
        raise ShapeError.at_user_line(
            f"a range inside a tensor has step {slice_.step}",
            facts=f"its ends are {written(slice_)} of an axis of {n}; steps are counted between "
            "numbers"
            ", and none of them is 0",
            hint="read every other point of a dim, x[0:T:2], or .take(...) the positions",
        )
    at = range(n)[slice(*parts)]
    if not at:
        return reshaping.cut(tensor, 0, 0, axis)
    if at.step < 0:
        tensor, at = reshaping.flip(tensor, axis), range(n - 1 - at[0], n - at[-1], -at.step)
    part = reshaping.cut(tensor, at[0], at[-1] + 1, axis)
    part = part.apply(movement.Pad(axis=axis, before=0, after=at.step - 1), part)  # whole steps
    whole = reshaping.reshape(
        part, *tensor.shape[:axis], len(at), at.step, *tensor.shape[axis + 1 :]
    )
    return reshaping.index(whole, 0, axis + 1)


def _end(end: Size | None, length: Expr | int, default: Expr | int) -> Expr | int:
    """One end of a range on an axis of size `length`; constants are clipped as in Python."""
    if end is None:
        return default
    at = unwrap(end)
    if isinstance(at, int) and at < 0:
        at = length + at
    return min(max(at, 0), length) if isinstance(at, int) and isinstance(length, int) else at
