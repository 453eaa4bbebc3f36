"""target: what a program is compiled for, as choices by cost see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from recurra.cost.attention import AttentionKernel
from recurra.cost.prices import PRICES, Prices


@dataclass(frozen=True)
class Target:
    """A backend on a machine.

    `rows` of a batch fill a tile (0: no tiles); where batch axes go last, a step of `enough`
    nanoseconds needs none. `asking` whether rows go on costs so many steps of a loop (0: nothing).
    What no host call waits for runs behind it, in a launch of its own, if it takes `behind`
    nanoseconds. Loops over dims that are `counted` run on the host, each point a launch, with
    buffers of its own (None: by cost). `kernel` is what there is for attention, which is one op
    where that costs less. `prices` of work: what is weighed with.
    """

    rows: int = 512
    enough: float = inf
    asking: float = 0.0
    behind: float = inf
    counted: tuple[str, ...] | None = ()
    kernel: AttentionKernel | None = None
    prices: Prices = PRICES


PLAIN = Target()
FIELDS = tuple(f.name for f in fields(Target))


def aimed(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a compilation, where those that say what a target is are its own.

    Who asks for tiles of so many rows gets them, also where a step is enough.
    """
    asked = {k: options[k] for k in FIELDS if k in options}
    if "rows" in asked:
        asked.setdefault("enough", inf)
    rest = {k: x for k, x in options.items() if k not in FIELDS}
    return {**rest, "target": replace(target, **asked)}
