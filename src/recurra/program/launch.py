"""launch: how many steps of an outermost loop one launch runs, by their cost."""

from __future__ import annotations

from recurra.cost.model import compute_ns, launch_ns
from recurra.cost.prices import Prices
from recurra.memory.plan import Plan
from recurra.program.region import lasting, stores_of
from recurra.program.steps import members, trips
from recurra.schedule.tree import Exec, Item, Loop

CHUNK, MOST = 8, 1024  # steps per launch: at least, at most
ASKED, ASKED_MOST = 16, 64  # of a loop that ends by itself: the host waits for each launch
SHARE = 0.01  # of the time of such a launch that its own cost may be
LAUNCH_NS = (
    2e6  # a launch should do this much work: its own cost is then small, and the host sees it often
)


def launch_steps(plan: Plan, loop: Loop, prices: Prices) -> int:
    """A power of two of steps that fill a launch."""
    size = CHUNK
    while size < MOST and 2 * size * items_ns(plan, loop.body, prices) <= LAUNCH_NS:
        size *= 2
    return size


def asked_steps(plan: Plan, loop: Loop, prices: Prices) -> int:
    """A power of two of steps beside which the cost of their launch is small.

    A launch is given all that travels and all that is read: every array of it costs.
    """
    arrays = len(stores_of(plan, members(loop.body))) + len(lasting(plan, loop))
    step, size = items_ns(plan, loop.body, prices), ASKED
    while size < ASKED_MOST and size * step * SHARE < launch_ns(arrays):
        size *= 2
    return size


def items_ns(plan: Plan, items: tuple[Item, ...], prices: Prices) -> float:
    """Every statement once, and the steps of every loop."""
    total = 0.0
    for it in items:
        if isinstance(it, Exec):
            node = plan.graph[plan.statements[it.name].equation]
            total += prices.statement + compute_ns(plan.graph, node, plan.sizes, prices)
        else:
            total += trips(plan.statements, it, plan.sizes) * items_ns(plan, it.body, prices)
    return total
