"""A program that runs instruction by instruction, on arrays that the caller allocates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recurra.storage.mapping_problem import ProblemError
from recurra.support.renamed_names import old_names

Array = NDArray[np.generic]
Compute = Callable[[Sequence[Array], Sequence[Array]], None]  # operands; writes the outputs
SMALLEST = 64 << 10  # tensors with fewer bytes are not mapped, and stay beside the fast memory


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a tensor, which is an input or computed once."""

    shape: tuple[int, ...]
    dtype: DTypeLike = np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def view_as(self, block: NDArray[np.uint8]) -> Array:
        """The beginning of a block as an array."""
        return block[: self.nbytes].view(self.dtype).reshape(self.shape)

    def bytes_of(self, values: Array) -> NDArray[np.uint8]:
        """The bytes of values that are broadcast to this shape."""
        return np.ascontiguousarray(self.broadcast(values)).reshape(-1).view(np.uint8)

    def broadcast(self, values: Array) -> Array:
        return np.broadcast_to(np.asarray(values, self.dtype), self.shape)


@dataclass(frozen=True)
class Operation:
    """One instruction; tensors are numbers.

    `in_place`: (old, new) pairs of an operand and the output that is written over it. `compute`
    then gets one array for both.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    compute: Compute
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Workload:
    """Tensors, operations in order, the values of input tensors, and the tensors of the results.

    Raises `ProblemError` for an operation that reads a tensor which is not yet computed, or has
    been overwritten.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    operations: tuple[Operation, ...]
    inputs: Mapping[int, Array]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        live = set(self.inputs)
        for t, x in enumerate(self.operations):
            if mistake := self._mistake(x, live):
                raise ProblemError(f"{self.name}: instruction {t} ({x.name}) {mistake}")
            live = (live | set(x.writes)) - {old for old, _ in x.in_place}
        for k in self.results:
            if k not in live:
                raise ProblemError(f"{self.name}: its result {k} is not there at the end")

    def _mistake(self, operation: Operation, live: set[int]) -> str:
        """A mistake of an operation, given the live tensors; "" if there is none."""
        for k in operation.reads:
            if k not in live:
                return f"reads tensor {k}, which is not there"
        for k in operation.writes:
            if k in self.inputs or self.operations[self.producer[k]] is not operation:
                return f"writes tensor {k}, which another instruction makes"
        for old, new in operation.in_place:
            if old not in operation.reads or new not in operation.writes:
                return f"does not read {old} and write {new}, which is to take its place"
            if self.tensors[old].nbytes != self.tensors[new].nbytes:
                return f"writes {new} over {old}, which is of another size"
        return ""

    @cached_property
    def producer(self) -> Mapping[int, int]:
        """The step that computes each tensor."""
        return {k: t for t, x in enumerate(self.operations) for k in x.writes}

    @cached_property
    def storage(self) -> tuple[int, ...]:
        """The storage of each tensor: the first of those that are written over each other."""
        storage = list(range(len(self.tensors)))
        for x in self.operations:
            for old, new in x.in_place:
                storage[new] = storage[old]
        return tuple(storage)

    @cached_property
    def shared(self) -> frozenset[int]:
        """The tensors that share a storage."""
        return frozenset(k for x in self.operations for pair in x.in_place for k in pair)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """The last step that uses each tensor; of results, the number of steps."""
        last = [self.producer.get(k, -1) for k in range(len(self.tensors))]
        for t, x in enumerate(self.operations):
            for k in x.reads:
                last[k] = t
        for k in self.results:
            last[k] = len(self.operations)
        return tuple(last)

    def is_placed(self, tensor: int) -> bool:
        """Return whether a tensor is large enough to be mapped."""
        return self.tensors[tensor].nbytes >= SMALLEST

    def __str__(self) -> str:
        sizes = [x.nbytes for x in self.tensors if x.nbytes >= SMALLEST]
        return (
            f"{self.name}: {len(self.operations)} instructions, {len(sizes)} tensors of "
            f"{sum(sizes) / 2**20:.1f} MiB, the largest of {max(sizes, default=0) / 2**20:.1f} MiB"
        )


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__, {"unmapped": "run_unmapped"})


def run_unmapped(workload: Workload) -> tuple[Array, ...]:
    """Run a workload with every tensor in an array of its own, in RAM: the oracle."""
    pairs = workload.inputs.items()
    values: dict[int, Any] = {k: np.array(workload.tensors[k].broadcast(x)) for k, x in pairs}
    for x in workload.operations:
        for k in x.writes:
            values[k] = np.empty(workload.tensors[k].shape, workload.tensors[k].dtype)
        for old, new in x.in_place:
            values[new] = values[old]
        x.compute([values[k] for k in x.reads], [values[k] for k in x.writes])
        for old, _ in x.in_place:
            del values[old]
    return tuple(values[k] for k in workload.results)
