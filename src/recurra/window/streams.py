"""Kernels in program order → streams of a GPU; natively, by a thin driver that can be a stub.

    issuer = Streams(stub())
    issuer.launch(task, Kernel(..), keep=(a, b, c))  # returns at once
    issuer.settle()  # waits for the end

Who follows another kernel is put behind it on its stream; what it must follow on other streams it
waits for there, by events. The host waits only where the window is full, and at the end. What a
kernel touches is kept alive until it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.window.core import check_size
from recurra.window.faults import KernelError
from recurra.window.native.build import STREAMS
from recurra.window.native.twin import load
from recurra.window.task import Task, WindowError


@dataclass(frozen=True)
class GpuKernel:
    """`function` is CUDA's handle; parameters are eight bytes each. `us` is for the stub."""

    function: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    parameters: tuple[int, ...] = ()
    us: float = 1.0


def stub(folder: Path | None = None) -> Any:
    """A driver without a GPU: streams are queues on a clock that goes on with every call."""
    return load(folder, STREAMS).StubDriver()


def cuda(folder: Path | None = None) -> Any:
    """The driver of the GPU that is here. Raises WindowError where there is none."""
    try:
        return load(folder, STREAMS).CudaDriver()
    except RuntimeError as error:
        raise WindowError(
            "there is no GPU to issue kernels to",
            facts=str(error),
            hint="streams.stub() has the same functions and runs nothing",
        ) from None


class Streams:
    """Issues kernels to at most `streams` streams; at most `slots` of them are in flight."""

    def __init__(
        self, driver: Any, slots: int = 32, streams: int = 8, *, folder: Path | None = None
    ):
        check_size(slots, 1)
        if streams < 1:
            raise WindowError(f"{streams} streams", facts="kernels run on at least one")
        native = load(folder, STREAMS)
        self._kernel: Any = native.Kernel
        self._issuer: Any = native.Issuer(driver, slots, streams)
        self._kept: dict[int, object] = {}

    def launch(self, task: Task, kernel: GpuKernel, keep: object = None) -> int:
        """The next kernel of the program; its ticket. `keep` lives until it is done.

        Raises KernelError if the driver has failed, now or before: then it does not run.
        """
        ticket: int | None = self._issuer.issue(task, self._native(kernel))
        if self._issuer.failed():
            if ticket is None and (held := self._issuer.held()):
                self._kept.setdefault(max(held), keep)  # it may run: only its end is unknown
            raise KernelError(self._failure())
        assert ticket is not None
        self._kept[ticket] = keep
        return ticket

    def retire(self) -> None:
        """Lets go of what is done, without waiting for anything."""
        self._issuer.retire()
        held = set(self._issuer.held())
        self._kept = {ticket: kept for ticket, kept in self._kept.items() if ticket in held}

    def settle(self) -> None:
        """Waits for the end of all that was issued. Raises KernelError if the driver has failed."""
        self._issuer.settle()
        self.retire()
        if self._issuer.failed():
            raise KernelError(self._failure())

    def held(self) -> tuple[int, ...]:
        """Tickets of kernels whose memory is kept."""
        return tuple(self._issuer.held())

    def _failure(self) -> str:
        return f"the driver failed: {self._issuer.failure()}"

    def _native(self, kernel: GpuKernel) -> Any:
        made = self._kernel()
        for name in ("function", "grid", "block", "shared", "parameters", "us"):
            setattr(made, name, getattr(kernel, name))
        return made
