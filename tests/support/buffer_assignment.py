"""XLA's `BufferAssignmentProto` → its logical buffers: what our values are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from recurra.hlo.module import Path
from recurra.hlo.protobuf import Message


@dataclass(frozen=True)
class LogicalBuffer:
    """An array as XLA's buffer assignment sees it; `place` is its allocation and offset."""

    instruction: int
    leaf: Path
    nbytes: int
    place: tuple[int, int]


def read_assignment(data: bytes) -> tuple[LogicalBuffer, ...]:
    """The logical buffers of a serialized buffer assignment."""
    m = Message(data)
    place: dict[int, tuple[int, int]] = {}
    for allocation in m.messages(3):
        for assigned in allocation.messages(9):
            place[assigned.number(1)] = (allocation.number(1), assigned.number(2))
    return tuple(
        LogicalBuffer(
            b.message(3).number(4),
            tuple(b.message(3).numbers(3)),
            b.number(2),
            place.get(b.number(1), (-1, 0)),
        )
        for b in m.messages(1)
    )
