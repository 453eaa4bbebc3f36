"""Loops of equal launches are recorded once and played back (CUDA graphs).

    for t in range(0, 250): ..      →      x, y = region_2_loop_1(a, b, o_store)

A graph replays launches with the addresses that they had. So a loop may be one if nothing in it
depends on a number that changes from call to call: its bounds are numbers, it reads no outer loop
counter, calls no other library and does not branch on data. Its arguments are copied to where they
were when it was recorded, its results are copied out; stores are changed in place. If a store has
another address, as in another run, the loop is recorded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch

from recurra.backends.torch.array_namespace import Tensor
from recurra.backends.torch.recorded_code import (
    Bind,
    For,
    Item,
    StraightLineCode,
    Write,
    at_any_depth,
    used,
    words,
)
from recurra.cost.thresholds import MAX_GRAPH_LAUNCHES, MIN_GRAPH_LAUNCHES

Function = Callable[..., tuple[Tensor, ...]]
Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]


@dataclass(frozen=True)
class CapturedLoop:
    """A loop as a function of tensors and stores, returning its carried variables."""

    loop: For
    name: str
    takes: tuple[str, ...]
    stores: tuple[str, ...]  # the written ones first
    gives: tuple[str, ...]
    written: int


def capturable_loops(
    items: Sequence[Item], region: str, numbers: set[str], values: set[str], stores: set[str]
) -> list[CapturedLoop]:
    """The outermost loops that may be graphs, in the order of the code.

    The arguments of the region are `numbers`, such as times, `values`, tensors, and `stores`.
    """
    numbers = numbers | set(_numbers(items))
    values = (values | set(_bound(items))) - numbers
    out: list[CapturedLoop] = []
    for loop in _outermost(items, numbers):
        if not MIN_GRAPH_LAUNCHES <= launches(loop) <= MAX_GRAPH_LAUNCHES:
            continue
        mentioned = used([loop]) | _targets(loop)
        takes = tuple(sorted((mentioned & values) - set(_bound([loop]))))
        written = sorted(_targets(loop))
        touched = (*written, *sorted((mentioned & stores) - set(written)))
        gives = tuple(n for n, _ in loop.starts)
        loop.name = f"{region}_loop_{len(out) + 1}"
        out.append(CapturedLoop(loop, loop.name, takes, touched, gives, len(written)))
    return out


def launches(loop: For) -> int:
    """The number of launches of one run through a loop, at least."""

    def of(it: Item) -> int:
        if isinstance(it, For):
            return launches(it)
        return len(it.lines) if isinstance(it, StraightLineCode) else 1

    return loop.trips * sum(map(of, loop.body))


def _outermost(items: Sequence[Item], numbers: set[str]) -> Iterator[For]:
    for it in items:
        if isinstance(it, For):
            if _steady(it, numbers):
                yield it
            else:
                yield from _outermost(it.body, numbers)


def _steady(loop: For, numbers: set[str]) -> bool:
    """Is every run through the loop the same, but for the contents of its tensors?"""
    inside = [*at_any_depth([loop])]
    outer = numbers - {it.clock for it in inside if isinstance(it, For)}
    for it in inside:
        match it:
            case Bind():
                return False
            case StraightLineCode():
                mentioned = set[str]().union(*map(words, it.views.values()))
            case Write():
                mentioned = words(it.target)
            case For():
                if it.stop or not all(x.removeprefix("-").isdigit() for x in (it.lo, it.hi)):
                    return False
                continue
        if mentioned & outer:
            return False
    return True


def _numbers(items: Sequence[Item]) -> Iterator[str]:
    """The names of numbers: loop counters, and ends of rows."""
    for it in at_any_depth(items):
        if isinstance(it, For):
            yield it.clock
            yield from (n for n, _ in it.starts if it.stop and n in words(it.stop))


def _targets(loop: For) -> set[str]:
    """The stores that a loop writes."""
    writes = (it for it in at_any_depth(loop.body) if isinstance(it, Write))
    return {it.target.partition("[")[0] for it in writes}


def _bound(items: Sequence[Item]) -> Iterator[str]:
    """The names that are assigned inside."""
    for it in at_any_depth(items):
        match it:
            case StraightLineCode():
                yield from it.gives
            case For():
                yield from (n for n, _ in (*it.starts, *it.steps))
            case Bind():
                yield it.name
            case Write():
                pass


# ---- recording and playing


def on_cuda(run: Callable[[], None]) -> Replay:
    """Record the launches of `run` as a graph, after one run on a stream of its own."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # other threads may launch meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay


@dataclass
class RecordedLoop:
    """A loop that is recorded at its second call, and played back from the third on.

    The first call runs as it is: kernels are compiled, workspaces made. Recording runs the loop
    again, so that the stores are restored afterwards.
    """

    run: Function
    stores: int  # the number of last arguments that are stores, the written ones first
    written: int
    record: Record = on_cuda
    calls: int = 0
    addresses: tuple[int, ...] = ()
    replay: Replay | None = None
    inputs: tuple[Tensor, ...] = ()
    made: list[tuple[Tensor, ...]] = field(default_factory=list[tuple[Tensor, ...]])
    lock: Lock = field(default_factory=Lock)  # one call at a time uses its memory

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the loop's results in memory of their own; threads take turns."""
        with self.lock:
            return self.called(*args)

    def called(self, *args: Any) -> tuple[Tensor, ...]:
        split = len(args) - self.stores
        values, stores = args[:split], args[split:]
        addresses = tuple(s.data_ptr() for s in stores)
        self.calls += 1
        if self.calls == 1:
            return self.run(*args)
        if self.replay is None or addresses != self.addresses:
            self.capture(values, stores)
            self.addresses = addresses
        for mine, x in zip(self.inputs, values, strict=True):
            mine.copy_(x)
        assert self.replay is not None
        self.replay()
        return tuple(x.clone() for x in self.made[-1])

    def capture(self, values: Sequence[Tensor], stores: Sequence[Tensor]) -> None:
        """Record the loop on memory that stays; the stores are restored afterwards."""
        self.inputs = tuple(x.clone() for x in values)
        changed = stores[: self.written]
        before = [s.clone() for s in changed]

        def run() -> None:
            self.made.append(self.run(*self.inputs, *stores))

        self.made.clear()
        self.replay = self.record(run)
        for s, old in zip(changed, before, strict=True):
            s.copy_(old)
