"""Read a serialized `HloModuleProto`: its instructions in the order of the schedule.

Field numbers are those of xla/service/hlo.proto and xla/xla_data.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from recurra.hlo.protobuf import HloError, Message

Path = tuple[int, ...]  # the indices of a leaf in nested tuples
_TUPLE = 13
_TYPES = {  # PrimitiveTypes by the bytes of an element
    1: (1, 2, 6, 19, 20, 21, 22, 23, 24, 25),
    2: (3, 7, 10, 16),
    4: (4, 8, 11),
    8: (5, 9, 12, 15),
    16: (18,),
}
WIDTH: Mapping[int, int] = {k: width for width, types in _TYPES.items() for k in types}


@dataclass(frozen=True)
class Shape:
    """An array, or a tuple of shapes."""

    element: int
    dims: tuple[int, ...]
    parts: tuple[Shape, ...] = ()

    @property
    def count(self) -> int:
        """The number of elements of an array."""
        return math.prod(self.dims)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all arrays in it."""
        if self.element == _TUPLE:
            return sum(p.nbytes for p in self.parts)
        return self.count * WIDTH.get(self.element, 0)

    def leaves(self, at: Path = ()) -> Iterator[tuple[Path, Shape]]:
        """Yield the arrays in it, and their paths."""
        if self.element != _TUPLE:
            yield at, self
        for k, p in enumerate(self.parts):
            yield from p.leaves((*at, k))


@dataclass(frozen=True)
class HloInstruction:
    """One instruction; its operands and called computations are ids."""

    id: int
    name: str
    op: str
    shape: Shape
    operands: tuple[int, ...]
    called: tuple[int, ...]
    parameter: int
    index: int  # of get-tuple-element
    target: str  # of custom-call
    contracted: tuple[int, ...]  # of dot: dims of the left operand
    kernel_features: int  # of convolution: the kernel's dim of output features
    trips: int  # of while: the trip count, 1 if unknown


@dataclass(frozen=True)
class Computation:
    """Instructions by id, in the order of the schedule."""

    name: str
    instructions: Mapping[int, HloInstruction]
    root: int

    @cached_property
    def users(self) -> Mapping[int, tuple[HloInstruction, ...]]:
        """Map each instruction to its readers."""
        users: dict[int, tuple[HloInstruction, ...]] = {}
        for x in self.instructions.values():
            for o in dict.fromkeys(x.operands):
                users[o] = (*users.get(o, ()), x)
        return users

    @cached_property
    def parameters(self) -> Mapping[int, HloInstruction]:
        """The parameters, by number."""
        return {x.parameter: x for x in self.instructions.values() if x.op == "parameter"}


@dataclass(frozen=True)
class HloModule:
    """Computations by id."""

    name: str
    entry: int
    computations: Mapping[int, Computation]


def read_module(data: bytes) -> HloModule:
    """Read a module; raises `HloError` if it is malformed or not scheduled."""
    m = Message(data)
    order = {
        entry.number(1): entry.message(2).numbers(1) for entry in m.message(7).messages(1)
    }  # ids of instructions by id of computation
    computations = {c.number(5): _computation(c, order) for c in m.messages(3)}
    entry = m.number(6)
    if entry not in computations:
        raise HloError("malformed HLO: there is no entry computation", facts=f"id {entry}")
    if entry not in order:
        raise HloError(
            f"the HLO module {m.text(1)} is not scheduled",
            facts="its instructions have no order yet, so there are no steps",
            hint="take the module of a compiled executable",
        )
    for c in computations.values():
        _check_order(c, computations)
    return HloModule(m.text(1), entry, computations)


def _computation(message: Message, order: Mapping[int, list[int]]) -> Computation:
    by_id = {x.id: x for x in map(_instruction, message.messages(2))}
    name = message.text(1)
    ids = order.get(message.number(5)) or list(by_id)
    if sorted(ids) != sorted(by_id) or message.number(6) not in by_id:
        raise HloError(
            f"malformed HLO: the schedule of {name} names other instructions than it has"
        )
    return Computation(name, {i: by_id[i] for i in ids}, message.number(6))


def _check_order(computation: Computation, computations: Mapping[int, Computation]) -> None:
    earlier: set[int] = set()
    for x in computation.instructions.values():
        late = [o for o in x.operands if o not in earlier]
        if late:
            other = computation.instructions.get(late[0])
            raise HloError(
                f"malformed HLO: {x.name} in {computation.name} runs before its operand",
                facts=f"{other.name} comes later" if other else f"there is no id {late[0]}",
            )
        if any(k not in computations for k in x.called):
            raise HloError(f"malformed HLO: {x.name} calls a computation that is not there")
        earlier.add(x.id)


def _instruction(message: Message) -> HloInstruction:
    return HloInstruction(
        id=message.number(35),
        name=message.text(1),
        op=message.text(2),
        shape=_shape(message.message(3)),
        operands=tuple(message.numbers(36)),
        called=tuple(message.numbers(38)),
        parameter=message.number(9),
        index=message.number(13),
        target=message.text(28),
        contracted=tuple(message.message(30).numbers(1)),
        kernel_features=message.message(16).number(4),
        trips=_trips(message.text(43)),
    )


def _trips(backend_config: str) -> int:
    """Return the trip count in XLA's JSON, as in "known_trip_count":{"n":"64"}; 1 if unknown."""
    _, _, after = backend_config.partition("known_trip_count")
    digits = "".join(c for c in after.partition("}")[0] if c.isdigit())
    return int(digits or 1)


def _shape(message: Message) -> Shape:
    parts = tuple(map(_shape, message.messages(4)))
    return Shape(message.number(2), tuple(message.numbers(3)), parts)
