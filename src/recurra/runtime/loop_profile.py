"""The cost of every loop of a program, by the cost model and by the clock.

A program runs as one launch for several steps of its outermost loop, so that no loop inside can be
timed. Here the outermost loop runs on the host, and every loop in it is a launch of its own, which
is timed and shown beside the prediction of the cost model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from recurra.backends.protocol import ArrayFunction, Backend
from recurra.codegen.launch_size import items_ns
from recurra.codegen.lowering import lower
from recurra.codegen.region import Region
from recurra.codegen.shards import Shards
from recurra.cost.prices import Prices
from recurra.ir.array_protocols import LibraryArray
from recurra.runtime.host_executor import Execution
from recurra.schedule.tree import Loop
from recurra.storage.storage_plan import StoragePlan

SHOWN = 6  # statements of an island that are listed by name


@dataclass(frozen=True)
class ProfiledLaunch:
    """A launch of one step of the outermost loop, in milliseconds."""

    name: str
    statements: tuple[str, ...]
    predicted: float
    measured: float  # the least process CPU time of a launch

    @property
    def row(self) -> dict[str, object]:
        """A row of a table."""
        more = len(self.statements) - SHOWN
        text = " ".join(self.statements[:SHOWN]) + (f" … and {more} more" if more > 0 else "")
        return {
            "island": self.name,
            "predicted ms": round(self.predicted, 3),
            "measured ms": round(self.measured, 3),
            "measured / predicted": round(self.measured / max(self.predicted, 1e-6), 2),
            "statements": text,
        }


def islands(
    plan: StoragePlan,
    loop: Loop,
    backend: Backend,
    shards: Shards | None,
    prices: Prices,
    *,
    seed: int,
    inputs: Mapping[str, object],
    steps: int,
) -> list[ProfiledLaunch]:
    """Run `steps` steps of an outermost loop, cut into one launch per inner loop.

    The first two launches of each are not counted; work that runs once for all steps is left out.
    """
    cut = Execution(lower(plan, split_loop=loop.id, prices=prices), backend, shards)
    times: dict[str, list[float]] = {r.name: [] for r in cut.program.regions}

    def timed(name: str, launch: ArrayFunction) -> ArrayFunction:
        def run(*args: object) -> tuple[LibraryArray, ...]:
            since = time.process_time()
            results = backend.wait(launch(*args))
            times[name].append((time.process_time() - since) * 1e3)
            return results

        return run

    loop_steps = (
        s for s in cut.using(launches=timed).steps(seed, inputs=inputs) if s.dim == loop.dim
    )
    for _ in islice(loop_steps, steps + 2):
        pass
    counted = {name: ms[2:] for name, ms in times.items()}
    return [
        _island(plan, r, counted[r.name], prices) for r in cut.program.regions if counted[r.name]
    ]


def _island(
    plan: StoragePlan, region: Region, times: list[float], prices: Prices
) -> ProfiledLaunch:
    (*rest, first) = reversed(region.items)
    loops = [*region.around, *([first] if not rest and isinstance(first, Loop) else [])]
    name = " / ".join(f"{x.dim}{'' if x.step > 0 else ' backwards'}" for x in loops)
    predicted = items_ns(plan, region.items, prices) / 1e6
    return ProfiledLaunch(name, region.statements, predicted, min(times))
