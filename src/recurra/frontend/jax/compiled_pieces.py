"""Division of a JAX function into pieces that are compiled and run one by one.

A piece is a contraction, a loop, or a group that XLA can fuse: equations whose result has one
reader join that reader's piece. Nested calls are inlined, and intermediate values are numbered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

from recurra.frontend.jax.jaxpr import CALLS

_CALLS = {**CALLS, "custom_vjp_call": "call_jaxpr"}
_WHOLE = (
    *("dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "gather"),
    *("scatter-add", "select_and_scatter_add", "reduce_window_max", "reduce_window_sum"),
)
_LAYOUT = ("transpose", "reshape", "squeeze", "expand_dims")  # which fuse into a contraction


@dataclass(frozen=True)
class CompiledPiece:
    """A compiled function of arrays, with the numbers of the values it reads and writes."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    call: Callable[..., Sequence[jax.Array]]


@dataclass(frozen=True)
class Pieces:
    """A function in pieces, with the types of all values and the numbers of those it exchanges."""

    values: tuple[jax.ShapeDtypeStruct, ...]
    pieces: tuple[CompiledPiece, ...]
    arguments: tuple[int, ...]
    constants: Mapping[int, np.ndarray]
    results: tuple[int, ...]


def pieces_of(function: Callable[..., object], *arguments: object) -> Pieces:
    """Divide a function into pieces, for trees of arrays or `jax.ShapeDtypeStruct`s.

    The pieces are not run. Results that are arguments or literals are left out.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    flat = jax.make_jaxpr(lambda *xs: _inlined(closed.jaxpr, closed.consts, xs))(*closed.in_avals)
    return _Cut(flat).pieces()


def _inlined(
    jaxpr: core.Jaxpr, constants: Sequence[object], arguments: Sequence[object]
) -> list[object]:
    """Evaluate a jaxpr with its calls inlined."""
    env: dict[core.Var, object] = dict(zip(jaxpr.constvars, constants, strict=True))
    env |= zip(jaxpr.invars, arguments, strict=True)

    def value(v: core.Var | core.Literal) -> object:
        return v.val if isinstance(v, core.Literal) else env[v]

    for eqn in jaxpr.eqns:
        operands = [value(v) for v in eqn.invars]
        if eqn.primitive.name in _CALLS:
            inner = eqn.params[_CALLS[eqn.primitive.name]]
            found = _inlined(inner.jaxpr, inner.consts, operands)
        else:
            found = eqn.primitive.bind(*operands, **eqn.params)
            found = found if eqn.primitive.multiple_results else [found]
        env |= zip(eqn.outvars, found, strict=True)
    return [value(v) for v in jaxpr.outvars]


class _Cut:
    """The grouping of a jaxpr's equations into pieces, keyed by the last equation of each."""

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self.closed, self.jaxpr = closed, closed.jaxpr
        self.results = [v for v in self.jaxpr.outvars if not isinstance(v, core.Literal)]
        self.groups: dict[int, list[int]] = {}
        readers_of: dict[core.Var, set[int]] = {v: {-1} for v in self.results}  # groups, -1: result
        for k in reversed(range(len(self.jaxpr.eqns))):
            eqn = self.jaxpr.eqns[k]
            readers = set[int]().union(*(readers_of.get(v, set()) for v in eqn.outvars))
            if not readers:
                continue  # dead code
            group = self._joined(eqn, readers)
            group = k if group is None else group
            self.groups.setdefault(group, []).insert(0, k)
            for v in eqn.invars:
                if not isinstance(v, core.Literal):
                    readers_of.setdefault(v, set()).add(group)

    def _joined(self, eqn: core.JaxprEqn, readers: set[int]) -> int | None:
        """The group that an equation joins, or None if it starts one of its own."""
        name = eqn.primitive.name
        if len(readers) > 1 or -1 in readers or name in _WHOLE:
            return None
        (group,) = readers
        whole = self.jaxpr.eqns[group].primitive.name in _WHOLE
        return None if whole and name not in _LAYOUT else group

    def pieces(self) -> Pieces:
        """Compile the groups, in the order of their last equations."""
        number: dict[core.Var, int] = {}
        constants = dict(zip(self.jaxpr.constvars, self.closed.consts, strict=True))
        for v in (*self.jaxpr.invars, *constants):
            number.setdefault(v, len(number))
        compiled: dict[str, Callable[..., Sequence[jax.Array]]] = {}
        found: list[CompiledPiece] = []
        for last in sorted(self.groups):
            eqns = [self.jaxpr.eqns[k] for k in self.groups[last]]
            inner = {v for e in eqns for v in e.outvars}
            read = (v for e in eqns for v in e.invars if not isinstance(v, core.Literal))
            reads = [v for v in dict.fromkeys(read) if v not in inner]
            writes = [v for v in eqns[-1].outvars if type(v).__name__ != "DropVar"]
            for v in writes:
                number.setdefault(v, len(number))
            jaxpr = self.jaxpr.replace(constvars=[], invars=reads, outvars=writes, eqns=eqns)
            with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
                text = str(jaxpr)  # in full, as equal texts are compiled once
            call = compiled.setdefault(text, _compiled(jaxpr))
            read_ids, written_ids = (tuple(number[v] for v in vs) for vs in (reads, writes))
            found.append(CompiledPiece(_named(eqns), read_ids, written_ids, call))
        taken = (*self.jaxpr.invars, *constants)
        results = [v for v in dict.fromkeys(self.results) if v not in taken]
        avals: list[Any] = [v.aval for v in number]
        return Pieces(
            tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals),
            tuple(found),
            tuple(number[v] for v in self.jaxpr.invars),
            {number[v]: np.asarray(x) for v, x in constants.items()},
            tuple(number[v] for v in results),
        )


def _compiled(jaxpr: core.Jaxpr) -> Callable[..., Sequence[jax.Array]]:
    return jax.jit(lambda *xs: _inlined(jaxpr, (), xs))


def _named(eqns: Sequence[core.JaxprEqn]) -> str:
    whole = [e.primitive.name for e in eqns if e.primitive.name in _WHOLE]
    return whole[0] if whole else f"{eqns[-1].primitive.name}.{len(eqns)}"
