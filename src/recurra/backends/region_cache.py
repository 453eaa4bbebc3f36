"""RegionCache: what a backend made of the regions of plans, so that it makes each once.

What is asked for a plan before it is chosen (its memory) is what then runs.
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
    """A cache by plan, compared as one object, and by the name of a region in it."""

    plans: list[tuple[StoragePlan, dict[str, T]]] = field(
        default_factory=list[tuple[StoragePlan, dict[str, T]]]
    )

    def __reduce__(self) -> tuple[object, ...]:
        """Code belongs to this process: copies and pickles begin with none."""
        return type(self), ()

    def get(self, plan: StoragePlan, region: Region, make: Callable[[StoragePlan, Region], T]) -> T:
        """Return what there is of a region, or make it."""
        made = self.of(plan)
        if region.name not in made:
            made[region.name] = make(plan, region)
        return made[region.name]

    def of(self, plan: StoragePlan) -> dict[str, T]:
        """Return what there is of a plan, by region."""
        found = next((made for known, made in self.plans if known is plan), None)
        if found is None:
            found = dict[str, T]()
            self.plans.append((plan, found))
        return found


class MadeAtFirstCall:
    """A function that `make` makes of the arguments of its first call."""

    def __init__(self, make: Callable[..., Callable[..., Any]]) -> None:
        self.make = make
        self.made: Callable[..., Any] | None = None

    def __call__(self, *given: Any) -> Any:
        if self.made is None:
            self.made = self.make(*given)
        return self.made(*given)
