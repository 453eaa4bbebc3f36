"""A trace → its profile: the paper's figures 2 to 5 and 7 to 9 on low occupancy."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from recurra.report.html import table_html
from recurra.window.simulate import simulate
from recurra.window.simulated_gpu import SimulatedGpu
from recurra.window.trace import Trace

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # least blocks of each class of kernels
BAR = 40


@dataclass(frozen=True)
class Profile:
    """The profile of one program on one GPU.

    kernels      launches (figure 3), of which the host waits for `reads`
    ctas         blocks per kernel, on average (figure 4)
    sizes        least number of blocks of a class → kernels in it (figures 5, 8)
    occupancy    of one stream: active warps over possible ones (figures 2, 7)
    parallelism  work over the longest chain on an unlimited GPU: of the whole program, and through
                 windows of 16, 32, 64
    build        share of building a CUDA graph in building it and running serially (figure 9)
    """

    trace: str
    gpu: str
    kernels: int
    reads: int
    ctas: float
    us: float
    sizes: Mapping[int, int]
    occupancy: float
    parallelism: Mapping[str, float]
    build: float

    def rows(self) -> dict[str, object]:
        """Return everything by name, for tables and JSON."""
        return {
            "trace": self.trace,
            "gpu": self.gpu,
            "kernels": self.kernels,
            "host reads": self.reads,
            "blocks per kernel": round(self.ctas, 2),
            "us per kernel": round(self.us, 2),
            "occupancy": round(self.occupancy, 4),
            **{f"parallelism {k}": round(v, 2) for k, v in self.parallelism.items()},
            "graph build share": round(self.build, 3),
            "sizes": {str(k): v for k, v in self.sizes.items()},
        }

    def __str__(self) -> str:
        lines = [
            f"{self.trace} on {self.gpu}: {self.kernels} kernels, {self.reads} results read by the "
            f"host, {self.ctas:.1f} blocks and {self.us:.1f} µs each",
            f"one stream leaves {1 - self.occupancy:.0%} of the warps idle",
            "parallelism: " + ", ".join(f"{k} {v:.2f}" for k, v in self.parallelism.items()),
            f"building a CUDA graph would take {self.build:.0%} of building and running once",
            "blocks    kernels",
        ]
        most = max(self.sizes.values())
        lines += [
            f"{f'{low}..':<9} {count:<7} {'#' * round(BAR * count / most)}".rstrip()
            for low, count in self.sizes.items()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table_html(
            [{"what": k, "value": v} for k, v in self.rows().items() if k != "sizes"]
            + [
                {"what": f"kernels of {k} blocks or more", "value": v}
                for k, v in self.sizes.items()
            ]
        )


def profile_trace(trace: Trace, machine: SimulatedGpu | None = None) -> Profile:
    """Profile a trace; `machine` has the GPU and the cost of a graph's node."""
    machine = machine or SimulatedGpu()
    serial = simulate(trace, "serial", machine)
    build = machine.costs.node * len(trace)
    kernels = trace.kernels
    counts: dict[int, int] = dict.fromkeys(SIZES, 0)
    for kernel in kernels:
        counts[max(low for low in SIZES if low <= kernel.ctas)] += 1
    spans = {str(n): parallelism(trace, machine, n) for n in (16, 32, 64)}
    return Profile(
        trace=trace.name,
        gpu=machine.gpu.name,
        kernels=len(trace),
        reads=sum(kernel.host for kernel in kernels),
        ctas=sum(kernel.ctas for kernel in kernels) / len(trace),
        us=sum(alone(trace, machine)) / len(trace),
        sizes={low: count for low, count in counts.items() if count},
        occupancy=serial.occupancy,
        parallelism={"all": parallelism(trace, machine, len(trace)), **spans},
        build=build / (build + serial.us),
    )


def alone(trace: Trace, machine: SimulatedGpu) -> list[float]:
    """Return the µs that each kernel runs by itself: its blocks in as many waves as they need."""
    gpu = machine.gpu
    return [k.us * -(-k.ctas // (gpu.sms * max(1, gpu.per_sm(k)))) for k in trace.kernels]


def parallelism(trace: Trace, machine: SimulatedGpu, slots: int) -> float:
    """Return Σ time / time of a GPU that runs all ready kernels of a window of `slots` at once."""
    us = alone(trace, machine)
    end: list[float] = []
    window: list[float] = []  # ends of what is in it
    entered = 0.0
    for k, upstream in enumerate(trace.upstream):
        if len(window) == slots:
            entered = max(entered, heapq.heappop(window))
        end.append(max([entered, *(end[u] for u in upstream)]) + us[k])
        heapq.heappush(window, end[k])
    return sum(us) / max(end)
