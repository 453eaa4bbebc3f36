"""Inputs in the caller's layout and in that of the stores."""

from __future__ import annotations

from functools import cache

import numpy as np

from recurra.errors import Loc
from recurra.ir.array_protocols import ArrayNamespace, LibraryArray
from recurra.ir.types import NUMPY_NAME, Domain, is_floating
from recurra.ir.value_conversion import detached, fitted
from recurra.ops.source import Input
from recurra.storage.storage_plan import StoragePlan
from recurra.storage.store import Store


def input_of(plan: StoragePlan, name: str) -> str:
    """The name of the input that a store holds, or holds a part of."""
    op = plan.graph[name].op
    return op.of or name if isinstance(op, Input) else name


def inputs_read(plan: StoragePlan) -> set[str]:
    """The inputs that a program reads, by the user's names."""
    return {input_of(plan, n) for n, s in plan.stores.items() if s.given}


def as_stored(
    domain: Domain, store: Store, array: LibraryArray, xp: ArrayNamespace
) -> LibraryArray:
    """Keep and order the dims of an array [*dims, *shape] as its store does."""
    kept = [a.dim for a in store.kept]
    if list(domain.dims) == kept:
        return array
    array = array[tuple(slice(None) if d in kept else 0 for d in domain.dims)]
    dims = [d for d in domain.dims if d in kept]
    order = (*map(dims.index, kept), *range(len(kept), len(array.shape)))
    return array if dims == kept else xp.permute_dims(array, order)


def written_order(domain: Domain, store: Store, rank: int) -> tuple[int, ...]:
    """The axes of a store in the order of a domain."""
    kept = [a.dim for a in store.kept]
    return (*map(kept.index, domain.dims), *range(len(kept), rank))


def in_caller_layout(given: object, name: str, dtype: str, loc: Loc | None) -> object:
    """An input in the caller's layout: the array itself if it can be shared, or a copy.

    Raises ShapeError if its type cannot hold a value.
    """
    plain = shareable_array(given)
    name_of_type = dtype_name(getattr(plain, "dtype", ""))
    if name_of_type == NUMPY_NAME[dtype] and hasattr(plain, "__dlpack__") and is_row_major(plain):
        return plain
    return np.asarray(as_numpy(given, name, dtype, loc), order="C")


def as_numpy(given: object, name: str, dtype: str, loc: Loc | None) -> np.ndarray:
    """An input as a NumPy array of its type. Raises ShapeError if that cannot hold a value."""
    hint = f"give {name} as an array of {NUMPY_NAME[dtype]}, on the CPU"
    return fitted(detached(given), dtype, f"the input {name}", hint=hint, loc=loc)


@cache
def dtype_name(dtype: object) -> str:
    """NumPy's name of an element type of any library."""
    return str(dtype).rpartition(".")[2]


def shareable_array(given: object) -> object:
    """An array that other libraries can read: a plain NumPy array, or one without gradients."""
    return np.asarray(given) if isinstance(given, np.ndarray) else detached(given)


def is_row_major(given: object) -> bool:
    """Is the array contiguous in row-major order? Not all libraries share other layouts.

    Rows of an array of NumPy may lie apart, as those of every other layer do.
    """
    if isinstance(given, np.ndarray):
        # carray also means aligned and writeable; our libraries take only numbers
        rows = given[:1] if given.ndim and given.strides[0] > 0 else given
        return rows.flags.carray and (given.dtype.kind in "biu" or is_floating(given.dtype))
    is_contiguous = getattr(given, "is_contiguous", None)
    return True if is_contiguous is None else is_contiguous()
