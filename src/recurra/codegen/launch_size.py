"""The number of steps of an outermost loop that one launch runs, by cost."""

from __future__ import annotations

from recurra.codegen.loop_segments import trips
from recurra.codegen.region import outliving_variables, stores_of
from recurra.cost.model import compute_ns, launch_ns
from recurra.cost.prices import Prices
from recurra.cost.thresholds import (
    MAX_LAUNCH_STEPS,
    MAX_POLLED_LAUNCH_SHARE,
    MAX_POLLED_STEPS,
    MIN_LAUNCH_STEPS,
    MIN_POLLED_STEPS,
    TARGET_LAUNCH_NS,
)
from recurra.schedule.tree import Exec, Item, Loop, members
from recurra.storage.storage_plan import StoragePlan


def launch_steps(plan: StoragePlan, loop: Loop, prices: Prices) -> int:
    """The power of two of steps that fill a launch."""
    step, size = items_ns(plan, loop.body, prices), MIN_LAUNCH_STEPS
    while size < MAX_LAUNCH_STEPS and 2 * size * step <= TARGET_LAUNCH_NS:
        size *= 2
    return size


def polled_steps(plan: StoragePlan, loop: Loop, prices: Prices) -> int:
    """The power of two of steps beside which the cost of a launch is small.

    Every carried variable and every store that is read or written costs, as an argument.
    """
    arrays = len(stores_of(plan, members(loop.body))) + len(outliving_variables(plan, loop))
    step, size = items_ns(plan, loop.body, prices), MIN_POLLED_STEPS
    while size < MAX_POLLED_STEPS and size * step * MAX_POLLED_LAUNCH_SHARE < launch_ns(arrays):
        size *= 2
    return size


def items_ns(plan: StoragePlan, items: tuple[Item, ...], prices: Prices) -> float:
    """Nanoseconds to run every statement once per step of the loops around it."""
    total = 0.0
    for it in items:
        if isinstance(it, Exec):
            node = plan.graph[plan.statements[it.name].equation]
            total += prices.statement + compute_ns(plan.graph, node, plan.sizes, prices)
        else:
            total += trips(plan.statements, it, plan.sizes) * items_ns(plan, it.body, prices)
    return total
