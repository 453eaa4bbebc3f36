"""NestCode: vector code with assigned registers, before it is encoded.

Instructions are tuples of a word and integers; r, a, b are vector registers, t a tensor (inputs,
then the output), o a byte offset from the tensor's pointer, m a mask (0: all lanes; k: the first
widths[k-1]), s a slot of the constant pool.

    zero r                     every lane is 0
    constant r s               lanes of slot s
    load r t o m               consecutive elements; lanes outside the mask are 0
    splat r t o                one element in every lane
    first r t o                one element in lane 0
    gather r t o m s w d       w elements, d bytes apart (slot s has the lanes' offsets)
    load16 r t o m w           the same of w elements of bf16 (two bytes), which become f32
    splat16 r t o / gather16 r t o w d
    store r t o m              consecutive elements
    single r t o               lane 0
    scatter r t o m s w d      w elements, d bytes apart
    fma r a b m                r += a * b, in the lanes of m
    add r a m                  r += a, in the lanes of m
    max r a m                  r = max(r, a), in the lanes of m; NaN wins
    mul r a b                  r = a * b
    sum r a / top r a          lane 0 = sum or max of all lanes of r; a is overwritten
    relu r a / square r        r = max(r, 0) where a is overwritten; r = r * r
    abs r s / negate r s       with the bits of slot s
    repeat n ... end           the instructions between, n >= 1 times; n >= 2 where it is written
    move t d                   add d bytes to the pointer of t

Buffers for packed inputs are allocated in every run, since stacks may be small. Their pointers come
after the tensors'.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

Instruction = tuple[Any, ...]

POINTERS = 7  # of tensors and buffers together
MASKS = 6  # different tails that one program may have


@dataclass(frozen=True)
class Constant:
    """One slot of the pool: `offsets` (int32, lane · value), or `value` or `bits` in all lanes."""

    kind: Literal["offsets", "value", "bits"]
    value: float

    def lanes(self, dtype: str, count: int) -> bytes:
        """Return the slot's bytes for `count` lanes."""
        if self.kind == "offsets":
            return struct.pack(f"<{count}i", *(int(self.value) * k for k in range(count)))
        if self.kind == "bits":
            return int(self.value).to_bytes(4 if dtype == "f32" else 8, "little") * count
        return struct.pack("<f" if dtype == "f32" else "<d", self.value) * count


@dataclass(frozen=True)
class NestCode:
    """Code of one nest for one target: a function of `tensors` pointers, inputs first."""

    target: str
    dtype: str
    lanes: int
    tensors: int
    code: tuple[Instruction, ...]
    widths: tuple[int, ...]
    pool: tuple[Constant, ...]
    buffers: tuple[int, ...] = ()
    """Bytes"""

    def __str__(self) -> str:
        depth, lines = 0, [f"{self.target} {self.dtype} x {self.lanes}, {self.tensors} tensors"]
        lines[0] += "".join(f", a buffer of {size} bytes" for size in self.buffers)
        for word, *rest in self.code:
            depth -= word == "end"
            lines.append("  " * depth + " ".join([word, *map(str, rest)]))
            depth += word == "repeat"
        return "\n".join(lines)
