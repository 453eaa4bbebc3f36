"""sampled: rows of a swapped store by number, those that are in memory and those that are not.

    found = samples_call((e, m), o_store, k)      o_store: [t] of u8[1,B,3,64,64], k: i32[N]

Number k is that of a point, counted over the dims that the call takes whole.
"""

from __future__ import annotations

import numpy as np

from recurra.ir.expr import evaluate
from recurra.ir.graph import Node, Ref, Slice
from recurra.ir.types import Range
from recurra.memory.plan import Plan
from recurra.memory.store import Store
from recurra.ops.samples import Samples
from recurra.program.swapped import Paged


def samplers(plan: Plan, store: Store) -> set[str]:
    """The calls that take samples of a store of which every row can be found by its number."""
    found = {n.name for n, k in plan.graph.readers[store.name] if _samples(plan, store, n, k)}
    return found if all(a.kind in ("block", "apart") for a in store.kept) else set()


def _samples(plan: Plan, store: Store, n: Node, k: int) -> bool:
    whole = {r.dim for r in over(plan, n.args[k])}
    return isinstance(n.op, Samples) and not k and whole.issuperset(a.dim for a in store.kept)


def over(plan: Plan, a: Ref) -> list[Range]:
    """The dims of which all points are read, the first outermost."""
    ranges = plan.graph[a.name].domain
    return [r for r, e in zip(ranges, a.index, strict=True) if isinstance(e, Slice)]


def taken(plan: Plan, node: Node, store: Paged, numbers: np.ndarray) -> np.ndarray:
    """The rows with these numbers: [*numbers, *row]."""
    s, op, sizes = plan.stores[store.name], node.op, plan.sizes
    assert isinstance(op, Samples)
    assert s.apart is not None
    ranges, point = over(plan, node.args[0]), s.type.sizes(sizes)
    lead = op.lead(numbers.ndim, len(ranges) + len(point)) - len(ranges)
    dims = (*(r.size(sizes) for r in ranges), *point[:lead])
    places = op.places(numbers.reshape(-1), dims)
    at = {r.dim: p + evaluate(r.lo, sizes) for r, p in zip(ranges, places, strict=False)}
    along = [at[a.dim] * 0 if a is s.apart else at[a.dim] - a.lo for a in s.kept]
    within = (*along, *places[len(ranges) :])
    shape = s.shape(sizes)[: len(within)]
    rows = np.asarray(np.ravel_multi_index(within, shape))
    found = store.rows(at[s.apart.dim] - s.apart.lo, rows, len(shape))
    return found.reshape(*numbers.shape, *found.shape[1:])
