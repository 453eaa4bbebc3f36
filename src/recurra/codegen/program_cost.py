"""The cost of a run of a program, by the cost model: computing, launches, moves.

It is an upper bound: moves of a store overlap neither each other nor computing.
"""

from __future__ import annotations

from collections.abc import Iterable

from recurra.codegen.host_program import ChunkLoop, HostItem, HostLoop, Program, RegionLaunch
from recurra.codegen.launch_size import items_ns
from recurra.codegen.region import Region
from recurra.cost.model import launch_ns
from recurra.cost.prices import Prices
from recurra.ir.types import Tuple
from recurra.ops.sampled_rows import Samples
from recurra.storage.storage_plan import StoragePlan


def program_ns(program: Program, prices: Prices) -> float:
    """Nanoseconds of a run."""
    plan = program.plan
    computing = items_ns(plan, plan.schedule.items, prices)
    return computing + _launches_ns(program.items) + moves_ns(program, prices)


def moves_ns(program: Program, prices: Prices) -> float:
    """Nanoseconds to move offloaded stores.

    Every point is written and read once in a step of the main loop, and its rows once per sample.
    """
    if program.offload is None:
        return 0.0
    plan, main = program.plan, program.main
    steps = main.hi - main.lo if main is not None else 1
    stores = (s for s in plan.stores.values() if s.room)
    bytes_ = 2 * steps * sum(s.nbytes(plan.sizes) for s in stores)
    price = prices.disk if program.offload.tier == "disk" else prices.host
    return (bytes_ + _sampled_bytes(plan)) * price


def _sampled_bytes(plan: StoragePlan) -> int:
    """Bytes of all samples that the host takes."""
    total = 0
    for n in plan.graph.nodes.values():
        if isinstance(n.op, Samples) and isinstance(n.type, Tuple):
            one = sum(x.nbytes(plan.sizes) for x in n.type.items)
            total += one * n.domain.points(plan.sizes)
    return total


def _launches_ns(items: Iterable[HostItem]) -> float:
    total = 0.0
    for it in items:
        match it:
            case RegionLaunch(region=r):
                total += _launch(r)
            case ChunkLoop(region=r):
                total += -(-(it.hi - it.lo) // it.size) * _launch(r)
            case HostLoop():
                total += (it.hi - it.lo) * _launches_ns(it.body)
            case _:
                pass
    return total


def _launch(region: Region) -> float:
    return launch_ns(len((*region.held, *region.carried, *region.stores, *region.reads)))
