"""A trace, a policy and a machine → the times of every kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from recurra.window.policies import POLICIES
from recurra.window.simulated_gpu import SimulatedGpu, Simulation
from recurra.window.task import WindowError
from recurra.window.timeline import TimelineRun
from recurra.window.trace import Kernel, Trace


def simulate(trace: Trace, policy: str, machine: SimulatedGpu | None = None) -> TimelineRun:
    """Simulate a trace under one of `policies.POLICIES`.

    Raises WindowError for an unknown policy, and for kernels that do not fit on the GPU.
    """
    if policy not in POLICIES:
        raise WindowError(
            f"there is no policy {policy!r}", facts=f"there are {', '.join(POLICIES)}"
        )
    machine = machine or SimulatedGpu()
    as_placed = persistent_blocks(trace.kernels, machine) if policy == "persistent" else None
    simulation = Simulation(trace, machine, as_placed)
    POLICIES[policy].begin(simulation)
    return simulation.run(policy)


def persistent_blocks(kernels: Sequence[Kernel], machine: SimulatedGpu) -> list[Kernel]:
    """Return the kernels as tasks of one persistent kernel, with the largest needs of all."""
    most: Mapping[str, int] = {
        field: max(getattr(kernel, field) for kernel in kernels)
        for field in ("threads", "registers", "shared")
    }
    fetch = machine.costs.fetch
    return [replace(kernel, us=kernel.us + fetch, **most) for kernel in kernels]
