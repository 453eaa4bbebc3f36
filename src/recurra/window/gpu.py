"""The simulator's device: a GPU by its limits, and the blocks that are resident on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.window.task import WindowError
from recurra.window.trace import WARP, Kernel

Counts = NDArray[np.int64]

# The analytic model of kernels without measurements: one per operator, with blocks that cover tiles
# of the result.
FLOOR = 2.5  # µs: the latency of a block with little work
BLOCK = 1024  # results of a block of an elementwise kernel
TILE = 64 * 32  # results of a block of a matrix product


@dataclass(frozen=True)
class Gpu:
    """Limits of one streaming multiprocessor, and how many there are.

    ghz     cycles of the window's hardware, 10⁹ per second
    idle    watts of an idle GPU
    busy    additional watts if every warp slot is active; with `idle`, the proxy of energy
    gbs, tflops  bandwidth in 10⁹ bytes, arithmetic in 10¹² single-precision operations per second
    """

    name: str
    sms: int
    ghz: float
    warps: int = 48
    ctas: int = 16
    registers: int = 65536
    shared: int = 100 * 1024
    idle: float = 40.0
    busy: float = 180.0
    gbs: float = 448.0
    tflops: float = 20.3

    def per_sm(self, kernel: Kernel) -> int:
        """Count the blocks of a kernel that one multiprocessor holds; 0 if it cannot hold any."""
        ctas, warps, registers, shared = need(kernel)
        limits = [self.ctas // ctas, self.warps // warps, self.registers // registers]
        return min(limits + ([self.shared // shared] if shared else []))

    def block_us(self, ctas: int, moved: float, flops: float) -> float:
        """Return the µs of one of `ctas` blocks, which move and compute so much in total.

        These are a floor of latency, and the block's part at one multiprocessor's share of the GPU.
        """
        # 1 GB/s is 10³ bytes per µs, 1 TFLOP/s is 10⁶ operations per µs
        us = FLOOR + moved / ctas / (self.gbs * 1e3 / self.sms)
        return round(us + flops / ctas / (self.tflops * 1e6 / self.sms), 3)

    def slots(self) -> int:
        """Return the warps that can be active at once."""
        return self.sms * self.warps


# The chips' limits, from data sheets. Tables IV and V of the paper have half the registers and a
# third of the shared memory: `TABLE_V`.
GPUS = {
    g.name: g
    for g in (
        Gpu("rtx3060", 28, 1.3, idle=30, busy=140, gbs=360, tflops=12.7),
        Gpu("rtx3070", 46, 1.4),
        Gpu("rtx4090", 128, 2.2, ctas=24, idle=60, busy=390, gbs=1008, tflops=82.6),
        Gpu("h100", 132, 1.7, warps=64, ctas=32, shared=227 * 1024,
            idle=90, busy=610, gbs=3350, tflops=67.0),
    )
}  # fmt: skip
TABLE_V = Gpu("rtx3070 of table V", 46, 1.4, registers=32768, shared=32 * 1024)


def need(kernel: Kernel) -> tuple[int, int, int, int]:
    """Return the needs of one block: block slots, warps, registers, shared bytes.

    Registers are allocated to warps, in multiples of eight per thread.
    """
    registers = kernel.warps * WARP * (-(-kernel.registers // 8) * 8)
    return 1, kernel.warps, registers, kernel.shared


def expect_fits(gpu: Gpu, kernel: Kernel) -> None:
    """Raise WindowError for a kernel of which no block can be resident."""
    if gpu.per_sm(kernel) < 1:
        has = (gpu.ctas, gpu.warps, gpu.registers, gpu.shared)
        words = ("blocks", "warps", "registers", "bytes of shared memory")
        asks = [
            f"a block needs {n} {word}, a multiprocessor has {h}"
            for n, h, word in zip(need(kernel), has, words, strict=True)
            if n > h
        ]
        raise WindowError(
            f"kernel {kernel.name} does not fit on {gpu.name}",
            facts="; ".join(asks),
            hint="give a GPU with more, or the kernel smaller blocks",
        )


class Residency:
    """The free resources of every multiprocessor. Blocks go where the most of them fit."""

    def __init__(self, gpu: Gpu):
        limits = (gpu.ctas, gpu.warps, gpu.registers, gpu.shared)
        self._free: Counts = np.repeat(np.array(limits, dtype=np.int64)[:, None], gpu.sms, axis=1)

    def place(self, count: int, needs: tuple[int, int, int, int]) -> Counts:
        """Make at most `count` blocks resident; return how many on each multiprocessor."""
        room = self._room(needs)
        total = int(room.sum())
        if total > count:
            room = _level(room, count)
        if total:
            self._take(room, needs)
        return room

    def leave(self, placed: Counts, needs: tuple[int, int, int, int]) -> None:
        """Release the blocks of one `place`."""
        self._take(-placed, needs)

    def _room(self, needs: tuple[int, int, int, int]) -> Counts:
        rows = [free // n for free, n in zip(self._free, needs, strict=True) if n]
        return np.minimum.reduce(rows)

    def _take(self, placed: Counts, needs: tuple[int, int, int, int]) -> None:
        for free, n in zip(self._free, needs, strict=True):
            if n:
                free -= placed * n


def _level(room: Counts, count: int) -> Counts:
    """Place `count` blocks such that the room that is left over is as even as possible."""
    low, high = 0, int(room.max())
    while low < high:  # the lowest level to which `count` blocks reduce the room
        middle = (low + high) // 2
        if int(np.maximum(room - middle, 0).sum()) <= count:
            high = middle
        else:
            low = middle + 1
    placed = np.maximum(room - low, 0)
    missing = count - int(placed.sum())
    if missing:
        placed[np.flatnonzero(room >= low)[:missing]] += 1
    return placed
