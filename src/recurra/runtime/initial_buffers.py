"""The initial arrays of the stores of a run: zeros, or inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recurra.backends.protocol import Backend, mesh_of
from recurra.codegen.input_layout import (
    as_numpy,
    as_stored,
    dtype_name,
    input_of,
    is_row_major,
    shareable_array,
)
from recurra.codegen.shards import Shards
from recurra.errors import ShapeError
from recurra.ir.array_protocols import is_array
from recurra.ir.types import NUMPY_NAME
from recurra.ops.source import Input
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store


@dataclass(frozen=True)
class Given:
    """Makes initial stores for a backend. Raises ShapeError if an input has another shape."""

    plan: StoragePlan
    backend: Backend
    inputs: Mapping[str, object]
    shards: Shards | None

    def store(self, store: Store) -> object:
        """The initial array of a store; a list if it has one buffer per point."""
        given, axis = self.inputs.get(input_of(self.plan, store.name)), store.per_point
        if store.given:
            given = self.part(store.name, given)
        if axis is None:
            return self.buffer(store, given)
        if not store.given:
            return [self.buffer(store, None) for _ in range(axis.slots)]
        k = self.dims(store).index(axis.dim)
        lead = (slice(None),) * k
        whole = given if is_array(given) else np.asarray(given)
        return [self.buffer(store, whole[(*lead, slice(p, p + 1))]) for p in range(axis.slots)]

    def part(self, name: str, given: object) -> object:
        """The input, or the part of one, that a store holds."""
        n = self.plan.graph[name]
        assert isinstance(n.op, Input)
        return n.op.given(n, self.plan.sizes, {n.op.of or name: given})

    def buffer(self, store: Store, given: object) -> object:
        """One buffer of a store; an input in the store's layout is shared, not copied."""
        if self.shards is None:
            if store.given and hasattr(given, "__dlpack__") and self.fits(store, given):
                return self.backend.from_dlpack(shareable_array(given))
            return self.backend.adopt(self.fill(store, given))
        if not store.given:
            return self.backend.array(self.fill(store, given))
        mesh = mesh_of(self.backend)
        return mesh.spread([self.fill(store, given, k) for k in range(self.shards.workers)])

    def fits(self, store: Store, given: object) -> bool:
        """Has the array the layout and the element type of the store, and can it be shared?"""
        if not is_array(given) or tuple(a.dim for a in store.kept) != self.dims(store):
            return False
        wanted = store.shape(self.plan.sizes), NUMPY_NAME[store.type.dtype]
        return (tuple(given.shape), dtype_name(given.dtype)) == wanted and is_row_major(given)

    def dims(self, store: Store) -> tuple[str, ...]:
        return self.plan.graph[store.name].domain.dims

    def fill(self, store: Store, given: object, worker: int = 0) -> np.ndarray:
        """The initial array of a store on one worker."""
        array = np.zeros(store.shape(self.plan.sizes), NUMPY_NAME[store.type.dtype])
        if not store.given:
            return array
        domain = self.plan.graph[store.name].domain
        name, loc = input_of(self.plan, store.name), self.plan.graph[store.name].loc
        values = as_numpy(given, name, store.type.dtype, loc)
        dims = self.dims(store)
        if self.shards is not None and self.shards.dim in dims:
            rows = np.split(values, self.shards.workers, axis=dims.index(self.shards.dim))
            values = rows[worker]
        lengths = {r.dim: r.size(self.plan.sizes) for r in domain}
        lengths |= {a.dim: 1 for a in store.axes if a.kind == "per_point"}
        want = (*lengths.values(), *store.type.sizes(self.plan.sizes))
        if values.shape != want:
            raise ShapeError(
                f"the input {name} has the shape {values.shape}",
                facts=f"it is {store.type} over {domain}, here {want}",
            )
        stored = as_stored(domain, store, values, np)
        array[tuple(map(slice, stored.shape))] = stored
        return array
