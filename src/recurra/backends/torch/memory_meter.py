"""Meter: what the code of a region holds at once, by running it on tensors without numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from recurra.backends.torch.array_namespace import Tensor
from recurra.codegen.region import Region
from recurra.codegen.region_function import arguments
from recurra.ir.types import Tuple
from recurra.storage.storage_plan import StoragePlan

_aten = torch.ops.aten
QUESTIONS = (_aten._local_scalar_dense.default, _aten.item.default, _aten.is_nonzero.default)


class Counted(TorchDispatchMode):
    """The most bytes in storages that were made inside; every question is answered yes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.seen: set[int] = set()
        self.peak = 0

    def known(self, tensors: Sequence[Tensor]) -> None:
        """Count these tensors as having been there before."""
        self.seen |= {_key(x.untyped_storage()) for x in tensors}

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
        if (at := _key(storage)) in self.seen or at in self.made:
            return
        self.made = {k: v for k, v in self.made.items() if not v[0].expired()}
        self.made[at] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(n for _, n in self.made.values()))


def _key(storage: Any) -> int:
    return storage._cdata


def besides(run: Callable[..., Any], plan: StoragePlan, region: Region, at: tuple[int, ...]) -> int:
    """Bytes that a launch takes beside the variables that it gives; `run` is made for `meta`."""
    given = [_tensor(x) for x in arguments(plan, region)]
    seed = torch.empty((), dtype=torch.int32, device="meta")
    with Counted() as count:
        count.known([seed, *_flat(given)])
        run(seed, *at, *given)
    types: list[Any] = [plan.statements.arrays[n].type for n in region.gives]
    results = sum(t.nbytes(plan.sizes) for t in types if not isinstance(t, Tuple))
    return max(0, count.peak - results)


def _tensor(array: Any) -> Any:
    if isinstance(array, list):
        return tuple(map(_tensor, array))
    shape, dtype = array
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _flat(xs: Sequence[Any]) -> list[Tensor]:
    return [t for x in xs for t in (_flat(x) if isinstance(x, tuple) else [x])]
