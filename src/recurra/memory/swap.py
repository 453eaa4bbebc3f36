"""swap: stores of which a few points are in memory at once; others lie on the host or a disk.

    o: t: 1000, 4 of them here of u8[32,3,64,64], others on the disk

What is swapped is moved where a launch ends (section 5.2 of TEMPO), so the host counts its dim:
every point is a buffer of its own, and a launch is given the one that it reads or writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from recurra.amounts import parse
from recurra.errors import RecurraError, here
from recurra.memory.plan import Plan
from recurra.memory.store import Store
from recurra.rewrite.tile import outer_dims

Tier = Literal["host", "disk"]


@dataclass(frozen=True)
class Swap:
    """Where stores go, and which.

    `least` bytes make a store worth it, `room` of its points are in memory at once: one is used,
    the others are written or read meanwhile. `stores` names those that may go (None: all). A disk
    is that of `folder`, by default the system's for temporary files.
    """

    tier: Tier = "disk"
    folder: str | None = None
    least: int | str = "1MiB"
    room: int = 4
    stores: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        parse(self.least)
        if self.tier not in get_args(Tier):
            raise RecurraError(
                f"nothing can be swapped to {self.tier!r}",
                facts="there are the host's memory and a disk",
                hint='write swap="disk", or swap="host"',
                loc=here(),
            )
        if self.room < 2:
            raise RecurraError(
                f"{self.room!r} points of a store cannot be in memory at once",
                facts="one is used while another one is moved",
                hint="give two or more: room=4",
                loc=here(),
            )
        if self.folder is not None and not Path(self.folder).is_dir():
            raise RecurraError(
                f"there is no folder {self.folder} to swap to", hint="make it first", loc=here()
            )

    def may(self, name: str) -> bool:
        """Is it one of those that may go?"""
        return self.stores is None or name in self.stores

    def wants(self, name: str, nbytes: int) -> bool:
        """Is it one of those, and large enough?"""
        return self.may(name) and nbytes >= parse(self.least)


def swap_of(x: Any) -> Swap | None:
    """What an option means: a Swap, a tier, or None."""
    if x is None or isinstance(x, Swap):
        return x
    return Swap(x)


def worth(plan: Plan, swap: Swap) -> dict[str, str]:
    """The stores that may be swapped, largest first, and the dim along which each is cut.

    A tensor of one temporal dim only is always needed, and never goes: that is the papers' rule.
    So neither do outputs and inputs, nor what lives no longer than a step in blocks.
    """
    sizes, least = plan.sizes, parse(swap.least)
    found = [s for s in plan.stores.values() if s.nbytes(sizes) >= least and _can(plan, s)]
    named = [s for s in found if swap.may(s.name)]
    large = sorted(named, key=lambda s: -s.nbytes(sizes))
    return {s.name: s.kept[0].dim for s in large}


def _can(plan: Plan, s: Store) -> bool:
    blocks = outer_dims(plan.graph)
    cut = bool(s.kept) and s.kept[0].kind == "block" and s.kept[0].dim not in blocks
    return cut and not s.output and not s.given and len(plan.graph[s.name].domain.dims) > 1


def moved(plan: Plan, stores: Mapping[str, str], swap: Swap) -> list[str]:
    """What was swapped, and what could not be, a line each; `plan` is that of the program."""
    lines: list[str] = []
    for name, dim in stores.items():
        s = plan.stores[name]
        bytes_ = f"{s.nbytes(plan.sizes):,} B"
        if s.room:
            lines.append(
                f"{name}: {bytes_} to the {swap.tier}, {s.room} points of {dim} in memory at once"
            )
        else:
            lines.append(f"{name}: {bytes_} stay, some launch reads more than one point of {dim}")
    return lines
