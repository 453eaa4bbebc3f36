"""The peak memory of a region's code, found by running it on tensors without numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from recurra.backends.torch.array_namespace import Tensor
from recurra.codegen.region import Region
from recurra.codegen.region_function import argument_types
from recurra.ir.types import Tuple
from recurra.storage.storage_plan import StoragePlan

_aten = torch.ops.aten
QUESTIONS = (_aten._local_scalar_dense.default, _aten.item.default, _aten.is_nonzero.default)


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of storages made inside, and their peak; answers every query of data yes."""

    def __init__(self, existing: Sequence[Tensor]) -> None:
        """`existing`: tensors whose storages were made before, and are left out."""
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.existing = {_key(x.untyped_storage()) for x in existing}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in QUESTIONS:
            return True
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor):
                self.count(x)
        return out

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if (at := _key(storage)) in self.existing or at in self.storages:
            return
        self.storages = {k: v for k, v in self.storages.items() if not v[0].expired()}
        self.storages[at] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(n for _, n in self.storages.values()))


def _key(storage: Any) -> int:
    return storage._cdata


def temporary_bytes(
    run: Callable[..., Any], plan: StoragePlan, region: Region, at: tuple[int, ...]
) -> int:
    """Temporary bytes of a launch, beside the variables it returns; `run` must be for `meta`."""
    args = [_tensor(x) for x in argument_types(plan, region)]
    seed = torch.empty((), dtype=torch.int32, device="meta")
    with StorageCounter([seed, *_flat(args)]) as count:
        run(seed, *at, *args)
    types: list[Any] = [plan.statements.arrays[n].type for n in region.gives]
    results = sum(t.nbytes(plan.sizes) for t in types if not isinstance(t, Tuple))
    return max(0, count.peak - results)


def _tensor(spec: Any) -> Any:
    if isinstance(spec, list):
        return tuple(map(_tensor, spec))
    shape, dtype = spec
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _flat(xs: Sequence[Any]) -> list[Tensor]:
    return [t for x in xs for t in (_flat(x) if isinstance(x, tuple) else [x])]
