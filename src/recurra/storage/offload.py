"""Choose the stores to offload: few of their points are in memory, the others on host or disk.

    o: t: 1000, 4 of them here of u8[32,3,64,64], others on the disk

Points are moved when a launch ends (section 5.2 of TEMPO), so the dim's loop runs on the host:
every point has its own buffer, and a launch gets the one that it reads or writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from recurra.cost.thresholds import DISK_PAGE, MIN_OFFLOADED
from recurra.errors import RecurraError
from recurra.ir.graph import Graph, Ref, Slice
from recurra.ir.types import Type
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store
from recurra.support.byte_units import parse
from recurra.transforms.strip_mine.tiling import outer_dims

Tier = Literal["host", "disk"]

SHOWN = 4


@dataclass(frozen=True)
class Offload:
    """The choice of stores to offload, and their tier.

    Args:
        least: bytes from which a store is offloaded (None: 1 MiB, or 4 KiB if none is that large).
        room: points of a store in memory at once: one is used while the others are moved.
        stores: the names of the stores that may be offloaded (None: all).
        folder: a folder on the disk, by default the system's for temporary files.
    """

    tier: Tier = "disk"
    folder: str | None = None
    least: int | str | None = None
    room: int = 4
    stores: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.least is not None:
            parse(self.least)
        if self.tier not in get_args(Tier):
            raise RecurraError.at_user_line(
                f"nothing can be offloaded to {self.tier!r}",
                facts="there are the host's memory and a disk",
                hint='write offload="disk", or offload="host"',
            )
        if self.room < 2:
            raise RecurraError.at_user_line(
                f"{self.room!r} points of a store cannot be in memory at once",
                facts="one is used while another one is moved",
                hint="give two or more: room=4",
            )
        if self.folder is not None and not Path(self.folder).is_dir():
            raise RecurraError.at_user_line(
                f"there is no folder {self.folder} to offload to", hint="make it first"
            )

    def choices(self) -> tuple[Offload, ...]:
        """The same with each meaning of `least`, to be tried in this order until a store is
        offloaded."""
        if self.least is not None:
            return (self,)
        return tuple(replace(self, least=least) for least in (MIN_OFFLOADED, DISK_PAGE))

    def likely(self, graph: Graph, sizes: Mapping[str, int]) -> Offload:
        """The first of the choices for which some range read is large enough, or the last."""
        reads = (a for n in graph.nodes.values() for a in n.args)
        most = max((_bytes_over_ranges(graph, a, sizes) for a in reads), default=0)
        *larger, last = self.choices()
        return next((c for c in larger if most >= parse(c.least or 0)), last)

    def allows(self, name: str) -> bool:
        """Tell whether a store is among those that may be offloaded."""
        return self.stores is None or name in self.stores

    def selects(self, name: str, nbytes: int) -> bool:
        """Tell whether a store may be offloaded, and is large enough."""
        least = MIN_OFFLOADED if self.least is None else self.least
        return self.allows(name) and nbytes >= parse(least)


def _bytes_over_ranges(graph: Graph, ref: Ref, sizes: Mapping[str, int]) -> int:
    """The bytes of all points along the dims of which a read takes ranges; 0 for a single point."""
    node = graph[ref.name]
    dims = [r.dim for e, r in zip(ref.index, node.domain, strict=True) if isinstance(e, Slice)]
    if not dims or not isinstance(node.type, Type) or node.type.mentions() - sizes.keys():
        return 0
    return node.type.nbytes(sizes) * prod(graph.declared[d].range.size(sizes) for d in dims)


def offload_of(value: Any) -> Offload | None:
    """Convert an option (an Offload, a tier or None) to an Offload."""
    if value is None or isinstance(value, Offload):
        return value
    return Offload(value)


def stores_to_offload(plan: StoragePlan, offload: Offload) -> dict[str, str]:
    """The stores that may be offloaded, largest first, and the dim along which each is split."""
    return {s.name: s.kept[0].dim for s in _by_size(plan) if not _obstacle(plan, s, offload)}


def _by_size(plan: StoragePlan) -> list[Store]:
    return sorted(plan.stores.values(), key=lambda s: -s.nbytes(plan.sizes))


def _obstacle(plan: StoragePlan, store: Store, offload: Offload) -> str:
    """The reason why a store is not offloaded; "" if it is.

    Inputs and outputs stay; so do tensors over one temporal dim, which are always needed (the
    papers' rule), and values that live no longer than a step of a blocked loop.
    """
    if not offload.allows(store.name):
        return "is not one of those that may go"
    if store.given:
        return "is given by the caller"
    if store.output:
        return "is an output"
    if not store.kept:
        return "is one point"
    first = store.kept[0]
    if first.kind != "full":
        return f"is kept as {first}"
    if len(plan.graph[store.name].domain.dims) < 2:
        return f"is over {first.dim} alone"
    if first.dim in outer_dims(plan.graph):
        return f"lives no longer than a block of {first.dim}"
    if not offload.selects(store.name, store.nbytes(plan.sizes)):
        return f"is less than {offload.least}"
    return ""


def nothing_offloaded_remark(plan: StoragePlan, offload: Offload) -> str:
    """The remark that nothing is offloaded, with the obstacles of the largest stores."""
    parts = [f"{n} is no store" for n in offload.stores or () if n not in plan.stores]
    stores = [s for s in _by_size(plan) if offload.allows(s.name)]
    parts += [
        f"{s.name}, {s.nbytes(plan.sizes):,} B, {_obstacle(plan, s, offload)}"
        for s in stores[:SHOWN]
    ]
    if len(stores) > SHOWN:
        largest = stores[SHOWN].nbytes(plan.sizes)
        parts.append(f"{len(stores) - SHOWN} more are {largest:,} B or less")
    why = "; ".join(parts) or "there are no stores"
    return f"offload: nothing goes to the {offload.tier}: {why}"


def offloaded_remarks(plan: StoragePlan, stores: Mapping[str, str], offload: Offload) -> list[str]:
    """The remarks that say which stores were offloaded and which were not, a line each."""
    lines: list[str] = []
    for name, dim in stores.items():
        s = plan.stores[name]
        bytes_ = f"{s.nbytes(plan.sizes):,} B"
        if s.room:
            lines.append(
                f"{name}: {bytes_} to the {offload.tier}, "
                f"{s.room} points of {dim} in memory at once"
            )
        else:
            lines.append(f"{name}: {bytes_} stay, some launch reads more than one point of {dim}")
    return lines
