"""Shards: the rows of each worker, in a program that runs on several workers.

Every array of such a run is [workers, *shape on one worker]; host functions see all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Sym
from recurra.ir.graph import Graph, Node
from recurra.ir.output_axes import Axes
from recurra.ops.control import Call
from recurra.storage.storage_plan import StoragePlan
from recurra.transforms.shard import Shard, reads_all

A_co = TypeVar("A_co", covariant=True)


class PerWorker(Protocol[A_co]):
    """The parts of all workers: a list, or an array [workers, ..]."""

    def __getitem__(self, worker: int, /) -> A_co: ...
    def __iter__(self) -> Iterator[A_co]: ...


@dataclass(frozen=True)
class Shards:
    """Rows of `dim` are split over `workers`.

    `axes`: the axis of each output along which rows lie; None: it is the same on all workers.
    `operands`: which operands of each host call have rows, along their first axis.
    """

    dim: str
    bound: str
    workers: int
    axes: Mapping[str, int | None]
    operands: Mapping[str, tuple[bool, ...]]

    def join_output(self, name: str, parts: PerWorker[A_co], xp: ArrayNamespace) -> A_co:
        """Join the parts of an output: [workers, ..] → [..]."""
        axis = self.axes[name]
        return parts[0] if axis is None else xp.concat(list(parts), axis=axis)

    def join_operands(
        self, call: Node, operands: Iterable[Sequence[np.ndarray]]
    ) -> list[np.ndarray]:
        """Join the operands of a host call over the workers."""
        rows = zip(self.operands[call.name], operands, strict=True)
        return [np.concatenate(parts) if split else parts[0] for split, parts in rows]

    def split_results(self, call: Node, results: Iterable[ArrayLike]) -> list[list[np.ndarray]]:
        """Split the results of a host call over the workers."""
        assert isinstance(call.op, Call)
        out: list[list[np.ndarray]] = []
        for (_, shape), y in zip(call.op.results, results, strict=True):
            split = shape[:1] == (Sym(self.bound),)
            y = np.asarray(y)
            out.append(np.split(y, self.workers) if split else [y] * self.workers)
        return out


def make_shards(
    plan: StoragePlan, written: Graph | None, shard: Shard | None, axes: Sequence[Axes]
) -> Shards | None:
    """Build the shards of a plan; `written` is the graph before the split, None if there is none.

    `axes` are the present axes of the dims of each output.
    """
    if written is None or shard is None:
        return None
    found: dict[str, int | None] = {}
    for name, (_, inside) in zip(plan.graph.outputs, axes, strict=True):
        places = [*(a.dim for a in plan.stores[name].kept), *inside]
        found[name] = places.index(shard.dim) if shard.dim in places else None
    calls = [n for n in written.nodes.values() if isinstance(n.op, Call)]
    operands = {n.name: tuple(reads_all(written, a, shard.dim) for a in n.args) for n in calls}
    return Shards(shard.dim, shard.bound, shard.workers, found, operands)
