"""WalkedNumpy: regions that are interpreted at every launch, the oracle of the generated source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recurra.backends.numpy.numpy_backend import NumpyArrays, without_warnings
from recurra.codegen.region import Region
from recurra.codegen.region_function import region_function
from recurra.storage.storage_plan import StoragePlan


class WalkedNumpy(NumpyArrays):
    """NumPy without generated source."""

    def compile(self, plan: StoragePlan, region: Region) -> Callable[..., tuple[Any, ...]]:
        return without_warnings(region_function(plan, region, self.machine))
