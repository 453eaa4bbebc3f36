"""Policies by which kernels reach the GPU: one stream, many, windows in software and hardware.

Each policy is a function that starts a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recurra.window.hardware import HardwareWindow
from recurra.window.python_window import Window
from recurra.window.simulated_gpu import Simulation

UPSTREAM_OF_A_BARRIER = 5  # kernels that one barrier packet can name


@dataclass(frozen=True)
class WindowPolicy:
    """A policy: its description, and the function that starts it."""

    words: str
    begin: Callable[[Simulation], None]


def serial(sim: Simulation) -> None:
    """Use one stream: the host runs ahead, and every kernel waits for the one before it."""
    issued: set[int] = set()
    after: dict[int, float] = {0: 0.0}  # the kernel that may start, and from when on

    def try_start(index: int) -> None:
        if index in issued and index in after:
            sim.at(after.pop(index), lambda: sim.start(index))

    def deliver(index: int) -> None:
        issued.add(index)
        try_start(index)

    def done(index: int) -> None:
        after[index + 1] = sim.now + sim.costs.dispatch
        try_start(index + 1)

    sim.on_done = done
    sim.host(lambda k: sim.costs.launch, deliver)


def streams(sim: Simulation) -> None:
    """Use streams that are assigned ahead of time at no cost, with events between them."""
    place, before = assign_streams(sim.upstream, sim.machine.streams)
    waits = DependencyCounters(sim, sim.start)

    def cost(index: int) -> float:
        crossing = sum(place[u] != place[index] for u in sim.upstream[index])
        return sim.costs.launch + 2 * crossing * sim.costs.event

    def deliver(index: int) -> None:
        signal = sim.costs.signal + sim.costs.dispatch
        delays = {u: signal for u in sim.upstream[index] if place[u] != place[index]}
        if index in before:
            delays[before[index]] = sim.costs.dispatch
        waits.add(index, delays)

    sim.on_done = waits.done
    sim.host(cost, deliver)


def software(sim: Simulation) -> None:
    """Use ACS-SW: a window in one host thread, and a thread per stream (section IV-B).

    The thread of a stream launches a ready kernel, waits for it, and retires it.
    """
    costs, machine = sim.costs, sim.machine
    window = Window(machine.slots)
    fifo: list[int] = []
    module, driver = Clock(), Clock()
    entered: set[int] = set()  # kernels in the window, or being compared with it
    free = list(range(machine.streams))
    held: dict[int, int] = {}  # kernel → its stream

    def fill() -> None:
        """Compare one kernel after the other with the window, while there are slots."""
        while fifo and len(entered) < machine.slots:
            k = fifo.pop(0)
            entered.add(k)
            sim.at(module.after(sim.now, costs.check), lambda k=k: insert(k))

    def insert(index: int) -> None:
        assert window.offer(sim.trace.tasks[index]) == index
        launch()

    def launch() -> None:
        while free and (k := window.take()) is not None:
            stream = free.pop()
            locked = driver.after(sim.now, costs.launch * costs.driver)
            issued = max(sim.now + costs.launch, locked)
            sim.at(issued + costs.dispatch, lambda k=k: sim.start(k))
            held[k] = stream

    def synchronized(index: int) -> None:
        window.retire(index)
        entered.remove(index)
        free.append(held.pop(index))
        fill()
        launch()

    def deliver(index: int) -> None:
        fifo.append(index)
        fill()

    sim.on_done = lambda k: sim.at(sim.now + costs.sync, lambda: synchronized(k))
    sim.host(lambda k: 0.0, deliver)


def hardware(sim: Simulation) -> None:
    """Use ACS-HW: the host sends kernels with their upstream sets to a window in the GPU (IV-C)."""
    machine, cycle = sim.machine, 1e-3 / sim.machine.gpu.ghz
    window = HardwareWindow(machine.slots, machine.scheduled)
    queue: list[int] = []  # packets that have reached the GPU
    unit = Clock()

    def insert() -> None:
        while queue and window.accepts(queue[0]):
            k = queue.pop(0)
            stale = {u for u in sim.upstream[k] if u >= k - machine.scheduled}
            dispatch(window.insert(k, stale), machine.slots * cycle)

    def dispatch(ready: list[int], work: float) -> None:
        time = unit.after(sim.now, work) + sim.costs.dispatch
        for k in ready:
            sim.at(time, lambda k=k: sim.start(k))

    def done(index: int) -> None:
        dispatch(window.retire(index), (machine.slots - 1) * cycle)
        insert()

    def deliver(index: int) -> None:
        queue.append(index)
        insert()

    sim.on_done = done
    sim.host(lambda k: sim.costs.check + sim.costs.packet, deliver)


def graph_of(per_node: Callable[[Simulation], float]) -> Callable[[Simulation], None]:
    """Return a policy of CUDA graphs, one up to each result that the host waits for."""

    def begin(sim: Simulation) -> None:
        waits = DependencyCounters(sim, sim.start)
        open_: list[int] = []
        last = len(sim.trace) - 1

        def deliver(index: int) -> None:
            open_.append(index)
            if index == last or sim.trace.kernels[index].host:
                kernels = tuple(open_)
                open_.clear()
                sim.at(sim.now + sim.costs.graph, lambda: launch(kernels))

        def launch(kernels: tuple[int, ...]) -> None:
            for k in kernels:
                waits.add(k, {u: sim.costs.dispatch for u in sim.upstream[k]}, sim.costs.dispatch)

        sim.on_done = waits.done
        sim.host(lambda k: per_node(sim), deliver)

    return begin


def persistent(sim: Simulation) -> None:
    """Use one kernel whose blocks run every task: no launches, but blocks of the largest needs."""
    waits = DependencyCounters(sim, sim.start)
    sim.on_done = waits.done
    sim.host(
        lambda k: sim.costs.packet, lambda k: waits.add(k, dict.fromkeys(sim.upstream[k], 0.0))
    )


def atmi(sim: Simulation) -> None:
    """Use ATMI: the graph is described first; then queues process packets in order.

    Barrier packets stop a queue until the upstream kernels are done.
    """
    place, _ = assign_streams(sim.upstream, sim.machine.streams)
    waits = DependencyCounters(sim, lambda k: passed(k))
    queues: list[list[int]] = [[] for _ in range(sim.machine.streams)]
    open_: list[int] = []
    last = len(sim.trace) - 1
    held: set[int] = set()

    def deliver(index: int) -> None:
        open_.append(index)
        if index == last or sim.trace.kernels[index].host:
            for j in open_:
                queues[place[j]].append(j)
            open_.clear()
            for q in range(len(queues)):
                read(q)

    def read(q: int) -> None:
        """Process the head of a queue that is not stopped."""
        if queues[q] and q not in held:
            held.add(q)
            k = queues[q][0]
            packets = -(-len(sim.upstream[k]) // UPSTREAM_OF_A_BARRIER)
            waits.add(k, dict.fromkeys(sim.upstream[k], 0.0), packets * sim.costs.barrier)

    def passed(index: int) -> None:
        q = place[index]
        queues[q].pop(0)
        held.discard(q)
        sim.at(sim.now + sim.costs.dispatch, lambda: sim.start(index))
        read(q)

    sim.on_done = waits.done
    sim.host(lambda k: sim.costs.described, deliver)


def parents(sim: Simulation) -> None:
    """Use CDP: a kernel with one upstream kernel is launched by it, any other by the host.

    The host waits for all upstream kernels of a kernel that it launches.
    """
    waits = DependencyCounters(sim, sim.start)

    def delivered(index: int) -> None:
        upstream = sim.upstream[index]
        if len(upstream) == 1:
            waits.add(index, {upstream[0]: sim.costs.child})
        else:
            delay = sim.costs.sync + sim.costs.launch + sim.costs.dispatch
            waits.add(index, dict.fromkeys(upstream, delay), sim.costs.dispatch)

    def cost(index: int) -> float:
        return sim.costs.launch if len(sim.upstream[index]) != 1 else 0.0

    sim.on_done = waits.done
    sim.host(cost, delivered)


class Clock:
    """A unit that does one job at a time."""

    def __init__(self) -> None:
        self.free = 0.0

    def after(self, now: float, work: float) -> float:
        """Return the time at which `work` that is requested now is done."""
        self.free = max(self.free, now) + work
        return self.free


class DependencyCounters:
    """Calls `go` for each kernel, some time after the last of those that it waits for."""

    def __init__(self, sim: Simulation, go: Callable[[int], None]):
        self.sim, self.go = sim, go
        self.left: dict[int, int] = {}
        self.ready: dict[int, float] = {}
        self.downstream: dict[int, list[tuple[int, float]]] = {}
        self.finished: dict[int, float] = {}

    def add(self, index: int, delays: Mapping[int, float], own: float = 0.0) -> None:
        """Start a kernel `own` from now, and `delays[u]` after the end of every u."""
        self.ready[index] = self.sim.now + own
        self.left[index] = len(delays)
        for u, delay in delays.items():
            if u in self.finished:
                self._pass(index, self.finished[u] + delay)
            else:
                self.downstream.setdefault(u, []).append((index, delay))
        if not delays:
            self._go(index)

    def done(self, index: int) -> None:
        self.finished[index] = self.sim.now
        for other, delay in self.downstream.pop(index, []):
            self._pass(other, self.sim.now + delay)

    def _pass(self, index: int, time: float) -> None:
        self.ready[index] = max(self.ready[index], time)
        self.left[index] -= 1
        if not self.left[index]:
            self._go(index)

    def _go(self, index: int) -> None:
        self.sim.at(self.ready[index], lambda: self.go(index))


def assign_streams(
    upstream: tuple[tuple[int, ...], ...], count: int
) -> tuple[list[int], dict[int, int]]:
    """Return each kernel's stream, and each kernel's predecessor in its stream.

    The stream is that of an upstream kernel which is its stream's last, or the one with the fewest
    kernels.
    """
    streams: list[list[int]] = [[] for _ in range(count)]
    place: list[int] = []
    before: dict[int, int] = {}
    for k, ups in enumerate(upstream):
        own = [place[u] for u in ups if streams[place[u]][-1] == u]
        s = own[0] if own else min(range(count), key=lambda q: len(streams[q]))
        if streams[s]:
            before[k] = streams[s][-1]
        place.append(s)
        streams[s].append(k)
    return place, before


POLICIES: dict[str, WindowPolicy] = {
    "serial": WindowPolicy("one stream", serial),
    "streams": WindowPolicy("several streams, assigned ahead of time", streams),
    "acs-sw": WindowPolicy("the window on the host", software),
    "acs-hw": WindowPolicy("the window on the GPU", hardware),
    "graph": WindowPolicy("a CUDA graph, built every time", graph_of(lambda sim: sim.costs.node)),
    "graph-reused": WindowPolicy("a CUDA graph, built before", graph_of(lambda sim: 0.0)),
    "persistent": WindowPolicy("persistent threads", persistent),
    "atmi": WindowPolicy("a graph of barrier packets, described every time", atmi),
    "cdp": WindowPolicy("kernels launched by kernels", parents),
}
