"""Kernels in program order, issued to the streams of a GPU, or of a stub, by one native thread.

    with Streams(stub()) as issuer:
        issuer.launch(task, GpuKernel(..), keep=(a, b, c))  # returns at once
        issuer.segment([StreamLaunch(task, kernel), ..])  # a graph, where it came before
        issuer.settle()  # waits for the end

A kernel that follows another goes behind it on its stream, and waits for those on other streams by
events. The issuing thread waits only where the window is full, and callers where the queue is. The
memory of a kernel is kept alive until it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recurra.window import lifetime
from recurra.window.failures import KernelError
from recurra.window.native.native_build import STREAMS
from recurra.window.native.native_window import load
from recurra.window.python_window import check_size
from recurra.window.task import Task, WindowError

_leaked: list[object] = []  # memory of kernels whose end is unknown, since the driver failed


@dataclass(frozen=True)
class GpuKernel:
    """`function` is CUDA's handle; parameters are eight bytes each. `us` is for the stub.

    A kernel with `workspace` bytes gets their address as one more parameter. No other kernel uses
    them while it runs.
    """

    function: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    parameters: tuple[int, ...] = ()
    workspace: int = 0
    us: float = 1.0


@dataclass(frozen=True)
class StreamLaunch:
    """A kernel, the memory it touches, and objects that live until it is done."""

    task: Task
    kernel: GpuKernel
    keep: object = None


def stub(folder: Path | None = None) -> object:
    """Return a driver without a GPU, whose streams are queues on a simulated clock."""
    return load(folder, STREAMS).StubDriver()


def cuda(folder: Path | None = None) -> object:
    """Return the driver of this machine's GPU; raise WindowError where there is none."""
    try:
        return load(folder, STREAMS).CudaDriver()
    except RuntimeError as error:
        raise WindowError(
            "there is no GPU to issue kernels to",
            facts=str(error),
            hint="streams.stub() has the same functions and runs nothing",
        ) from None


class Streams:
    """Issues kernels to at most `streams` streams; at most `slots` of them are in flight.

    graphs  segments that are cached, each as a graph of the driver's
    queue   launches by which callers may be ahead of the issuing thread
    """

    def __init__(
        self,
        driver: object,
        slots: int = 32,
        streams: int = 8,
        *,
        graphs: int = 16,
        queue: int = 256,
        folder: Path | None = None,
    ):
        check_size(slots, 1)
        for count, what in ((streams, "streams"), (queue, "launches in the queue")):
            if count < 1:
                raise WindowError(f"{count} {what}", facts="kernels need at least one")
        if graphs < 0:
            raise WindowError(f"{graphs} graphs", hint="graphs=0 is without them")
        native = load(folder, STREAMS)
        self._kernel = native.Kernel
        self._issuer = native.Issuer(driver, slots, streams, graphs, queue)
        self._kept: dict[int, object] = {}
        self._tidy_at = queue
        self._state = "open"
        lifetime.register(self)

    def launch(self, task: Task, kernel: GpuKernel, keep: object = None) -> int:
        """Launch the next kernel of the program; return its ticket. `keep` lives until it is done.

        Raises KernelError without a launch if the driver has failed before.
        """
        return self.segment((StreamLaunch(task, kernel, keep),))[0]

    def segment(self, launches: Sequence[StreamLaunch]) -> range:
        """Launch the next kernels of the program; return their tickets.

        They are one graph launch if the same kernels with the same edges came before, with whatever
        parameters.
        """
        if not launches:
            return range(0)
        kernels = [self._native(launch.kernel) for launch in launches]
        first: int | None = self._issuer.offer([launch.task for launch in launches], kernels)
        if first is None:
            raise self._refusal(launches[0])
        tickets = range(first, first + len(launches))
        self._kept.update(zip(tickets, (launch.keep for launch in launches), strict=True))
        if len(self._kept) >= self._tidy_at:
            self._tidy()
            self._tidy_at = 2 * len(self._kept) + 256
        return tickets

    def retire(self) -> None:
        """Release what is done, without waiting for kernels."""
        self._issuer.retire()
        self._tidy()

    def settle(self) -> None:
        """Wait for the end of all launches; raise KernelError if the driver has failed."""
        self._issuer.settle()
        self._tidy()
        if self._state != "forked" and self._issuer.failed():
            raise self._failure()

    def close(self) -> None:
        """Settle, and return all resources to the driver. Nothing can be launched any more."""
        if errors := self.stop():
            raise errors[0]

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        errors = self.stop()
        if errors and kind is None:
            raise errors[0]

    def __del__(self) -> None:
        if hasattr(self, "_state"):
            self.stop()  # before the memory is freed

    def held(self) -> tuple[int, ...]:
        """Return the tickets of kernels whose memory is kept alive."""
        return tuple(self._issuer.held())

    @property
    def graphs(self) -> dict[str, int]:
        """Counts of segments by the way they were launched."""
        return self._issuer.counts()

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in self.graphs.items())
        refusal = self._issuer.refusal()
        return f"graphs: {counted}" + (f"; the driver refuses: {refusal}" if refusal else "")

    # for lifetime.py

    def stop(self) -> list[KernelError]:
        """Close, and return the error."""
        if self._state != "open":
            return []
        self._state = "closed"
        self._issuer.close()
        self._tidy()
        if self._kept:
            _leaked.append(self._kept)
        return [self._failure()] if self._issuer.failed() else []

    def before_fork(self) -> None:
        """Wait for all kernels, and end the thread."""
        self._issuer.before_fork()

    def after_fork_in_parent(self) -> None:
        self._issuer.in_parent()

    def after_fork_in_child(self) -> None:
        """Close without the driver, whose context does not survive a fork."""
        self._issuer.in_child()
        self._state = "forked"

    def _tidy(self) -> None:
        before = tuple(self._kept)  # other threads may launch meanwhile
        held = set(self._issuer.held())
        for ticket in before:
            if ticket not in held:
                self._kept.pop(ticket, None)

    def _refusal(self, launch: StreamLaunch) -> WindowError:
        if self._state == "open":
            return self._failure()
        return WindowError(
            f"kernel {launch.task.name} is launched on streams that are {self._state}",
            facts="a GPU's context does not come along" if self._state == "forked" else "",
            hint="launch inside `with Streams(cuda()) as issuer:`",
        )

    def _failure(self) -> KernelError:
        return KernelError(f"the driver failed: {self._issuer.failure()}")

    def _native(self, kernel: GpuKernel) -> object:
        native = self._kernel()
        for name, value in vars(kernel).items():
            setattr(native, name, value)
        return native
