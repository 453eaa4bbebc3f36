"""One error for runs that exceed the memory there is, on all backends."""

from __future__ import annotations

import re

from recurra.errors import PlanError
from recurra.storage.storage_plan import StoragePlan
from recurra.support.byte_units import rounded_up
from recurra.support.free_memory import free_bytes

_WORDS = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|can't allocate memory")


def is_out_of_memory(error: Exception) -> bool:
    """Did a library raise the error because memory was exhausted?"""
    return isinstance(error, MemoryError) or bool(_WORDS.search(str(error)))


def not_enough(plan: StoragePlan, error: Exception) -> PlanError:
    """The error to raise in place of a library's own."""
    free, kept = free_bytes(), sum(s.nbytes(plan.sizes) for s in plan.stores.values())
    return PlanError.at_user_line(
        "there is not enough memory for this run",
        facts=f"its stores take {kept:,} bytes"
        + (f", and {free:,} are free now" if free is not None else "")
        + f"\n  {str(error).strip().splitlines()[0]}",
        hint="make bounds or sizes smaller, or find out whether it can do with less: "
        f'compile(.., memory="{rounded_up((free or kept) // 2)}")',
    )
