"""Rows of an offloaded store by number, from points in memory and from others.

    found = samples_call((e, m), o_store, k)      o_store: [t] of u8[1,B,3,64,64], k: i32[N]

Number k is that of a point, counted over the dims that the call takes whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from recurra.codegen.offloaded_samples import over
from recurra.ir.expr import SEED, Env, evaluate
from recurra.ir.graph import Node, Slice
from recurra.ops.permutation import Permutation
from recurra.ops.sampled_rows import Samples
from recurra.runtime.offload.paged_buffer import Paged
from recurra.storage.storage_plan import StoragePlan


@dataclass
class Sampler:
    """Takes samples for a call, and those of the next call while launches go on.

    The numbers of a permutation are known before a launch computes them. Early samples are used if
    their numbers prove right, else taken again. Two calls' samples are in memory at most: those
    that learning reads, and the next.
    """

    plan: StoragePlan
    node: Node
    seed: int
    before: Callable[[], np.ndarray | None] = lambda: None  # a weak reference to the last samples

    def __call__(self, env: Env, store: Paged, numbers: np.ndarray) -> np.ndarray:
        """The rows with these numbers: [*numbers, *row]."""
        plan, node = self.plan, self.node
        found = store.samples(node.name, lambda: gather_rows(plan, node, store, numbers), numbers)
        before, self.before = self.before, weakref.ref(found)
        after = following(plan, node, env)
        if after is not None and permuted(plan, node) is not None:
            known = {**plan.sizes, **after, SEED: np.uint32(self.seed)}

            def take() -> tuple[np.ndarray, np.ndarray]:
                mine = numbers_at(plan, node, known)
                return mine, gather_rows(plan, node, store, mine)

            store.take_early(node.name, take, before)
        return found


def following(plan: StoragePlan, node: Node, env: Env) -> dict[str, int] | None:
    """The point of the next call, if that samples the same points of the store; else None."""
    at = {r.dim: int(env[r.dim]) for r in node.domain}
    for r in reversed(tuple(node.domain)):
        if r.dim in plan.graph[node.args[0].name].domain:
            return None
        known = {**plan.sizes, **at}
        if at[r.dim] + 1 < evaluate(r.hi, known):
            return {**at, r.dim: at[r.dim] + 1}
        at[r.dim] = evaluate(r.lo, known)
    return None


def permuted(plan: StoragePlan, node: Node) -> Permutation | None:
    """The permutation of the sampled rows, with dims that are read whole as axes; else None."""
    a = node.args[1]
    k = plan.graph[a.name]
    op = k.op
    for r, e in reversed(tuple(zip(k.domain, a.index, strict=True))):
        if not isinstance(op, Permutation):
            return None
        if isinstance(e, Slice):
            if (e.lo, e.step, e.pad) != (0, 1, None) or e.hi != r.hi:
                return None
            op = op.batch_symbol(r.dim, r.hi, False)
    return op if isinstance(op, Permutation) else None


def numbers_at(plan: StoragePlan, node: Node, env: Env) -> np.ndarray:
    """The numbers of a permutation at a point, as a launch computes them."""
    op, a = permuted(plan, node), node.args[1]
    assert op is not None
    index = zip(plan.graph[a.name].domain.dims, a.index, strict=True)
    at = {d: evaluate(e, env) for d, e in index if not isinstance(e, Slice)}
    return np.asarray(op.run(np, {**env, **at}))


def gather_rows(plan: StoragePlan, node: Node, store: Paged, numbers: np.ndarray) -> np.ndarray:
    """The rows with these numbers: [*numbers, *row]."""
    s, op, sizes = plan.stores[store.name], node.op, plan.sizes
    assert isinstance(op, Samples)
    assert s.per_point is not None
    ranges, point = over(plan, node.args[0]), s.type.sizes(sizes)
    lead = op.lead(numbers.ndim, len(ranges) + len(point)) - len(ranges)
    dims = (*(r.size(sizes) for r in ranges), *point[:lead])
    places = op.places(numbers.reshape(-1), dims)
    at = {r.dim: p + evaluate(r.lo, sizes) for r, p in zip(ranges, places, strict=False)}
    along = [at[a.dim] * 0 if a is s.per_point else at[a.dim] - a.lo for a in s.kept]
    within = (*along, *places[len(ranges) :])
    shape = s.shape(sizes)[: len(within)]
    rows = np.asarray(np.ravel_multi_index(within, shape))
    found = store.rows(at[s.per_point.dim] - s.per_point.lo, rows, len(shape))
    return found.reshape(*numbers.shape, *found.shape[1:])
