"""A program that can be run instruction by instruction, on arrays that somebody else places."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from recurra.storage.mapping_problem import ProblemError

Array = NDArray[np.generic]
Compute = Callable[[Sequence[Array], Sequence[Array]], None]  # operands; writes the outputs
SMALLEST = 64 << 10  # tensors with fewer bytes stay in RAM beside the fast memory


@dataclass(frozen=True)
class Datum:
    """A value: computed once, or there before the program."""

    shape: tuple[int, ...]
    dtype: DTypeLike = np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def over(self, room: NDArray[np.uint8]) -> Array:
        """An array of it, where these bytes begin."""
        return room[: self.nbytes].view(self.dtype).reshape(self.shape)

    def bytes_of(self, values: Array) -> NDArray[np.uint8]:
        """Numbers of this shape, or fewer that are repeated, as its bytes."""
        whole = np.broadcast_to(np.asarray(values, self.dtype), self.shape)
        return np.ascontiguousarray(whole).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Operation:
    """One instruction; tensors by their number.

    `in_place`: (old, new) pairs, an operand and the output that is written over it. `compute` then
    gets one array for both.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    compute: Compute
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Workload:
    """Operations in order; what is there before them, by tensor; which tensors are the results.

    Raises `ProblemError` for an operation that reads what is not there, or is there no more.
    """

    name: str
    tensors: tuple[Datum, ...]
    operations: tuple[Operation, ...]
    given: Mapping[int, Array]
    results: tuple[int, ...]

    def __post_init__(self) -> None:
        there = set(self.given)
        for t, x in enumerate(self.operations):
            wrong = self._wrong(x, there)
            if wrong:
                raise ProblemError(f"{self.name}: instruction {t} ({x.name}) {wrong}")
            there = (there | set(x.writes)) - {old for old, _ in x.in_place}
        for k in self.results:
            if k not in there:
                raise ProblemError(f"{self.name}: its result {k} is not there at the end")

    def _wrong(self, operation: Operation, there: set[int]) -> str:
        """About an operation, given the tensors that are there."""
        for k in operation.reads:
            if k not in there:
                return f"reads tensor {k}, which is not there"
        for k in operation.writes:
            if k in self.given or self.operations[self.made[k]] is not operation:
                return f"writes tensor {k}, which another instruction makes"
        for old, new in operation.in_place:
            if old not in operation.reads or new not in operation.writes:
                return f"does not read {old} and write {new}, which is to take its place"
            if self.tensors[old].nbytes != self.tensors[new].nbytes:
                return f"writes {new} over {old}, which is of another size"
        return ""

    @cached_property
    def made(self) -> Mapping[int, int]:
        """The step that makes each tensor."""
        return {k: t for t, x in enumerate(self.operations) for k in x.writes}

    @cached_property
    def storage(self) -> tuple[int, ...]:
        """The storage of each tensor: the first of those that are written over each other."""
        found = list(range(len(self.tensors)))
        for x in self.operations:
            for old, new in x.in_place:
                found[new] = found[old]
        return tuple(found)

    @cached_property
    def shared(self) -> frozenset[int]:
        """The tensors that are written over, or over others."""
        return frozenset(k for x in self.operations for pair in x.in_place for k in pair)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """The last step of each tensor; of results, the number of steps."""
        found = [self.made.get(k, -1) for k in range(len(self.tensors))]
        for t, x in enumerate(self.operations):
            for k in x.reads:
                found[k] = t
        for k in self.results:
            found[k] = len(self.operations)
        return tuple(found)

    def placed(self, tensor: int) -> bool:
        """Is there anything to decide about it?"""
        return self.tensors[tensor].nbytes >= SMALLEST

    def __str__(self) -> str:
        told = [x.nbytes for k, x in enumerate(self.tensors) if self.placed(k)]
        return (
            f"{self.name}: {len(self.operations)} instructions, {len(told)} tensors of "
            f"{sum(told) / 2**20:.1f} MiB, the largest of {max(told, default=0) / 2**20:.1f} MiB"
        )


def unmapped(workload: Workload) -> tuple[Array, ...]:
    """The oracle: every value in an array of its own, in RAM."""
    values: dict[int, Any] = {}
    for k, x in workload.given.items():
        tensor = workload.tensors[k]
        values[k] = np.array(np.broadcast_to(np.asarray(x, tensor.dtype), tensor.shape))
    for x in workload.operations:
        for k in x.writes:
            values[k] = np.empty(workload.tensors[k].shape, workload.tensors[k].dtype)
        for old, new in x.in_place:
            values[new] = values[old]
        x.compute([values[k] for k in x.reads], [values[k] for k in x.writes])
        for old, _ in x.in_place:
            del values[old]
    return tuple(values[k] for k in workload.results)
