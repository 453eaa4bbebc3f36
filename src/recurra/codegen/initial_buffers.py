"""given: the stores of a run before anything has run: zeros, or what the caller gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from recurra.codegen.shards import Shards
from recurra.errors import Loc, ShapeError
from recurra.ir.types import NUMPY_NAME, Domain, is_floating
from recurra.ir.values import fitted
from recurra.ops.source import Input
from recurra.storage.storage_plan import Plan
from recurra.storage.store import Store

if TYPE_CHECKING:
    from recurra.backends.protocol import Backend


def source(plan: Plan, name: str) -> str:
    """The input that a given store is, or is a part of."""
    op = plan.graph[name].op
    return op.of or name if isinstance(op, Input) else name


def inputs_read(plan: Plan) -> set[str]:
    """The inputs that a program reads, by the names that the user gave them."""
    return {source(plan, n) for n, s in plan.stores.items() if s.given}


@dataclass(frozen=True)
class Given:
    """Makes stores for a backend. Raises ShapeError where an input is not what it should be."""

    plan: Plan
    backend: Backend
    inputs: Mapping[str, Any]
    shards: Shards | None

    def store(self, store: Store) -> Any:
        """The store; where its buffers are apart, all of them."""
        given, axis = self.inputs.get(source(self.plan, store.name)), store.apart
        if store.given:
            given = self.part(store.name, given)
        if axis is None:
            return self.buffer(store, given)
        if not store.given:
            return [self.buffer(store, None) for _ in range(axis.slots)]
        k = self.dims(store).index(axis.dim)
        lead = (slice(None),) * k
        whole: Any = given if hasattr(given, "shape") else np.asarray(given)
        return [self.buffer(store, whole[(*lead, slice(p, p + 1))]) for p in range(axis.slots)]

    def part(self, name: str, given: Any) -> Any:
        """What is given of an input, or of the part of one that a store is."""
        n = self.plan.graph[name]
        assert isinstance(n.op, Input)
        return n.op.given(n, self.plan.sizes, {n.op.of or name: given})

    def buffer(self, store: Store, given: Any) -> Any:
        """An input that lies as its store would is read where it lies."""
        mesh: Any = self.backend
        if (
            store.given
            and self.shards is None
            and hasattr(given, "__dlpack__")
            and self.fits(store, given)
        ):
            return self.backend.borrow(_detached(given))
        if self.shards is None:
            return self.backend.made(self.fill(store, given))
        if not store.given:
            return self.backend.array(self.fill(store, given))
        return mesh.spread([self.fill(store, given, k) for k in range(self.shards.workers)])

    def fits(self, store: Store, given: Any) -> bool:
        """Has the array the layout of the store, and its element type, and can it be lent?"""
        kept = tuple(a.dim for a in store.kept)
        same = tuple(given.shape) == store.shape(self.plan.sizes)
        fits = (
            same and _name(given.dtype) == NUMPY_NAME[store.type.dtype] and kept == self.dims(store)
        )
        return fits and row_by_row(given)

    def dims(self, store: Store) -> tuple[str, ...]:
        return self.plan.graph[store.name].domain.dims

    def fill(self, store: Store, given: Any, worker: int = 0) -> np.ndarray:
        """The store of a worker before anything has run."""
        array = np.zeros(store.shape(self.plan.sizes), NUMPY_NAME[store.type.dtype])
        if not store.given:
            return array
        domain = self.plan.graph[store.name].domain
        given = self.given(store, given)
        dims = self.dims(store)
        if self.shards is not None and self.shards.dim in dims:
            rows = np.split(given, self.shards.workers, axis=dims.index(self.shards.dim))
            given = rows[worker]
        lengths = {r.dim: r.size(self.plan.sizes) for r in domain}
        lengths |= {a.dim: 1 for a in store.axes if a.kind == "apart"}
        want = (*lengths.values(), *store.type.sizes(self.plan.sizes))
        if given.shape != want:
            raise ShapeError(
                f"the input {source(self.plan, store.name)} has the shape {given.shape}",
                facts=f"it is {store.type} over {domain}, here {want}",
            )
        given = as_stored(domain, store, given, np)
        array[tuple(map(slice, given.shape))] = given
        return array

    def given(self, store: Store, given: Any) -> np.ndarray:
        """An input as a NumPy array."""
        name, loc = source(self.plan, store.name), self.plan.graph[store.name].loc
        return numbers(given, name, store.type.dtype, loc)


def as_stored(domain: Domain, store: Store, array: Any, xp: Any) -> Any:
    """An array [*dims, *shape] with the dims that its store keeps, in the order of that."""
    kept = [a.dim for a in store.kept]
    if list(domain.dims) == kept:
        return array
    array = array[tuple(slice(None) if d in kept else 0 for d in domain.dims)]
    dims = [d for d in domain.dims if d in kept]
    order = (*map(dims.index, kept), *range(len(kept), array.ndim))
    return array if dims == kept else xp.permute_dims(array, order)


def as_written(domain: Domain, store: Store, array: Any, xp: Any) -> Any:
    """An array with its dims in the order of a store as one with those in the order of a domain."""
    kept = [a.dim for a in store.kept]
    order = (*map(kept.index, domain.dims), *range(len(kept), array.ndim))
    return array if order == tuple(range(array.ndim)) else xp.permute_dims(array, order)


def in_place(given: Any, name: str, dtype: str, loc: Loc | None) -> Any:
    """An input in the caller's layout: his array if others can read it where it lies, or a copy.

    Raises ShapeError where its type cannot hold a value.
    """
    plain = _detached(given)
    its = _name(getattr(plain, "dtype", ""))
    if its == NUMPY_NAME[dtype] and hasattr(plain, "__dlpack__") and row_by_row(plain):
        return plain
    return np.asarray(numbers(plain, name, dtype, loc), order="C")


def numbers(given: Any, name: str, dtype: str, loc: Loc | None) -> np.ndarray:
    """An input as a NumPy array of its type. Raises ShapeError where that cannot hold a value."""
    hint = f"give {name} as an array of {NUMPY_NAME[dtype]}, on the CPU"
    return fitted(_detached(given), dtype, f"the input {name}", hint=hint, loc=loc)


@cache
def _name(dtype: Any) -> str:
    """What NumPy calls an element type of any library."""
    return str(dtype).rpartition(".")[2]


def _detached(given: Any) -> Any:
    """A tensor of torch without the graph that its gradients go through: that cannot be lent."""
    return given.detach() if hasattr(given, "detach") else given


def row_by_row(given: Any) -> bool:
    """Is the last axis the fastest, without gaps? Not all libraries lend, or take, others."""
    if isinstance(given, np.ndarray):
        # aligned and writeable, too; what is no number, none of our libraries takes
        return given.flags.carray and (given.dtype.kind in "biu" or is_floating(given.dtype))
    return given.is_contiguous() if hasattr(given, "is_contiguous") else True
