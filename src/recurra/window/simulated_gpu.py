"""The discrete-event model of a host and a GPU: costs, and the clock. Times are in µs.

Blocks are dispatched in the order in which kernels start (the leftover policy): the next kernel's
blocks follow when the last one has none left. Blocks that share a multiprocessor do not slow each
other, and kernels do not share bandwidth: at the low occupancies of interest, latency dominates.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recurra.window.gpu import GPUS, Gpu, Residency, expect_fits, need
from recurra.window.task import WindowError
from recurra.window.timeline import KernelSpan, TimelineRun
from recurra.window.trace import Kernel, Trace


@dataclass(frozen=True)
class LaunchCosts:
    """The times of the host and the command processor, in µs.

    The paper measured launch and synchronization at 5 to 20 µs; the rest is calibrated
    (docs/window.md).
    """

    frontend: float = 0.0  # host, per kernel: the program's own work before it launches
    launch: float = 5.0  # host: a launch into a stream
    dispatch: float = 2.0  # device: from one kernel's end to the next one's first block
    sync: float = 10.0  # from a kernel's end to the host thread that waits for it
    check: float = 0.51  # host: compare a kernel with the window (table II, 32 slots, 6 segments)
    driver: float = 0.5  # the share of a launch during which other threads cannot launch
    packet: float = 1.0  # host: a launch packet with its upstream list (ACS-HW)
    event: float = 1.0  # host: to record an event, or make a stream wait for one
    signal: float = 2.0  # device: from an event to what waits for it
    node: float = 20.0  # host: one node of a CUDA graph, added and instantiated
    graph: float = 8.0  # host: the launch of a graph
    described: float = 4.0  # host: one task of an ATMI graph
    barrier: float = 1.5  # device: one barrier packet of at most five upstream kernels
    child: float = 10.0  # device: a kernel that launches another (CDP)
    fetch: float = 1.0  # device: a persistent block takes its next task


@dataclass(frozen=True)
class SimulatedGpu:
    """The machine of a simulation: all parameters but the trace and the policy.

    slots      N, of the window
    scheduled  M, of the host's list of what it sent to the window in hardware (N ≤ M ≤ 255)
    streams    of the host's launches
    """

    gpu: Gpu = GPUS["rtx3070"]
    costs: LaunchCosts = LaunchCosts()
    slots: int = 32
    scheduled: int = 64
    streams: int = 8

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 64:
            raise WindowError(f"a window of {self.slots} slots", facts="it has 1 to 64")
        if not self.slots <= self.scheduled <= 255:
            raise WindowError(
                f"a scheduled list of {self.scheduled} kernels for a window of {self.slots}",
                facts=f"it has {self.slots} to 255: what is in the window must be in the list, and "
                "an identifier has 8 bits",
                hint=f"twice the window, {2 * self.slots}, loses nothing",
            )
        if self.streams < 1:
            raise WindowError(f"{self.streams} streams", facts="there is at least one")

    @property
    def sram(self) -> int:
        """Bytes of the window in hardware: per slot N identifiers of 8 bits and 2 bits of state
        (section IV-D: 1 KB for 32 slots)."""
        return self.slots * self.slots + -(-2 * self.slots // 8)


class Simulation:
    """The state of a simulation: a clock, future events, and the blocks on the GPU.

    A policy calls `at`, `host` and `start`, and sets `on_done`.
    """

    def __init__(
        self, trace: Trace, machine: SimulatedGpu, as_placed: Sequence[Kernel] | None = None
    ):
        self.trace, self.machine, self.costs = trace, machine, machine.costs
        self.now = 0.0
        self.upstream = trace.upstream
        self.on_done: Callable[[int], None] = lambda k: None
        self.done = [False] * len(trace)
        kernels = as_placed or trace.kernels
        for kernel in kernels:
            expect_fits(machine.gpu, kernel)
        self._needs, self._us = [need(k) for k in kernels], [k.us for k in kernels]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._device = Residency(machine.gpu)
        self._queue: list[int] = []  # started, with blocks that are not resident yet
        self._left = [kernel.ctas for kernel in trace.kernels]  # blocks to dispatch
        self._resident = [0] * len(trace)
        self._began: dict[int, float] = {}
        self._active = 0  # warps
        self._spans: list[KernelSpan] = []
        self._warps: list[tuple[float, int]] = [(0.0, 0)]
        self._waits: dict[int, Callable[[], None]] = {}

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule an action at `time`, or now if that is past."""
        self._count += 1
        heapq.heappush(self._events, (max(time, self.now), self._count, action))

    def host(self, cost: Callable[[int], float], deliver: Callable[[int], None]) -> None:
        """Run the program's thread, which spends `cost(k)` on each kernel in order and delivers it.

        It waits for the results that the program reads.
        """

        def step(index: int) -> None:
            if index < len(self.trace):
                self.at(self.now + self.costs.frontend + cost(index), lambda: arrive(index))

        def arrive(index: int) -> None:
            waits = self.trace.kernels[index].host
            if waits:
                self._waits[index] = lambda: self.at(
                    self.now + self.costs.sync, lambda: step(index + 1)
                )
            deliver(index)
            if not waits:
                step(index + 1)

        step(0)

    def start(self, index: int) -> None:
        """Let a kernel's blocks be dispatched from now on."""
        self._queue.append(index)
        self._dispatch()

    def run(self, policy: str) -> TimelineRun:
        """Run until there are no events; all kernels must have run then."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        missing = [k for k, done in enumerate(self.done) if not done]
        assert not missing, f"{policy} never ran kernels {missing[:5]} of {len(self.done)}"
        return TimelineRun(
            policy=policy,
            trace=self.trace.name,
            us=max(span.stop for span in self._spans),
            slots=self.machine.gpu.slots(),
            watts=(self.machine.gpu.idle, self.machine.gpu.busy),
            spans=tuple(self._spans),
            warps=tuple(self._warps),
        )

    def _dispatch(self) -> None:
        before = self._active
        while self._queue:
            k = self._queue[0]
            placed = self._device.place(self._left[k], self._needs[k])
            count = int(placed.sum())
            if count:
                self._began.setdefault(k, self.now)
                self._left[k] -= count
                self._resident[k] += count
                self._active += count * self.trace.kernels[k].warps
                self.at(self.now + self._us[k], lambda k=k, p=placed: self._leave(k, p))
            if self._left[k]:
                break
            self._queue.pop(0)
        if self._active != before:
            self._note()

    def _leave(self, index: int, placed: NDArray[np.int64]) -> None:
        count = int(placed.sum())
        self._device.leave(placed, self._needs[index])
        self._resident[index] -= count
        self._active -= count * self.trace.kernels[index].warps
        self._note()
        if not self._left[index] and not self._resident[index]:
            self.done[index] = True
            self._spans.append(
                KernelSpan(index, self.trace.kernels[index].name, self._began[index], self.now)
            )
            if index in self._waits:
                self._waits.pop(index)()
            self.on_done(index)
        self._dispatch()

    def _note(self) -> None:
        if self._warps[-1][0] == self.now:
            self._warps.pop()
        self._warps.append((self.now, self._active))
