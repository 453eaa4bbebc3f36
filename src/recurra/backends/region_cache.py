"""RegionCache: the compiled regions of plans, so that each is compiled once.

A region that is compiled to learn how much memory its plan takes is the one that then runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from recurra.codegen.region import Region
from recurra.storage.storage_plan import StoragePlan

T = TypeVar("T")


@dataclass
class RegionCache(Generic[T]):
    """Compiled regions, by plan (compared by identity) and by the name of the region."""

    plans: list[tuple[StoragePlan, dict[str, T]]] = field(
        default_factory=list[tuple[StoragePlan, dict[str, T]]]
    )

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles are empty: compiled code belongs to this process."""
        return type(self), ()

    def get(self, plan: StoragePlan, region: Region, make: Callable[[StoragePlan, Region], T]) -> T:
        """Return the compiled region, making it if it is missing."""
        regions = next((regions for known, regions in self.plans if known is plan), None)
        if regions is None:
            regions = dict[str, T]()
            self.plans.append((plan, regions))
        if region.name not in regions:
            regions[region.name] = make(plan, region)
        return regions[region.name]


class LazyFunction:
    """A function that `make` builds from the arguments of its first call."""

    def __init__(self, make: Callable[..., Callable[..., Any]]) -> None:
        self.make = make
        self.function: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.function is None:
            self.function = self.make(*args)
        return self.function(*args)
