"""Check that a checkpoint fits a program: its metadata, and its arrays.

A file whose checksum is right may still have been written by something else: by hand, by a script
that edits weights, by another version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from recurra.checkpoint.checkpoint import LoadedCheckpoint
from recurra.codegen.host_program import Program
from recurra.errors import RecurraError
from recurra.ir.types import Type
from recurra.ir.value_conversion import fitted
from recurra.storage.store import Store, store_key

Values = Mapping[str, np.ndarray]
OWN = "resume from a file that this program has saved"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_counters(value: Any) -> bool:
    return _is_counts(value) and len(value) == 1


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)


def _is_notes(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(x, str) for x in value.values())


# The metadata of a run: how each entry is checked, and its meaning in words.
METADATA: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "counters": (_is_counters, 'the iterations that are done, such as {"i": 4}'),
    "seed": (lambda x: isinstance(x, int) and not isinstance(x, bool), "a whole number"),
    "backend": (lambda x: isinstance(x, str), "the name of a backend"),
    "workers": (_is_count, "how many workers there were"),
    "decisions": (_is_texts, "a list of lines"),
    "numbers": (_is_texts, "a list of numbers as text"),
    "bounds": (_is_counts, 'the bounds of the program, such as {"T": 4}'),
    "hosts": (lambda x: isinstance(x, dict), "the state of each host function, by its name"),
    "lost": (_is_notes, "why the state of a host function is not there, by its name"),
}
OPTIONAL = ("workers", "numbers", "bounds")  # missing in files of earlier versions


def expect_metadata(found: LoadedCheckpoint, dim: str) -> None:
    """Raise RecurraError if the metadata of a checkpoint is not that of a run along `dim`."""
    for name, (is_right, meaning) in METADATA.items():
        if name not in found.meta and name in OPTIONAL:
            continue
        value = found.meta.get(name)
        if name not in found.meta or not is_right(value):
            said = f"is {value!r:.60}" if name in found.meta else "is missing"
            _refuse(found, f"its entry {name!r} {said}; a run saves {meaning}")
    ((theirs, _),) = found.meta["counters"].items()
    if theirs != dim:
        _refuse(found, f"it counts iterations along {theirs}, the program runs along {dim}")


def iterations_done(meta: Mapping[str, Any]) -> int:
    """The number of iterations done, if a checkpoint's metadata has it; otherwise 0."""
    counters: Any = meta.get("counters")
    return sum(counters.values()) if _is_counters(counters) else 0


def other_bounds(found: LoadedCheckpoint, sizes: Mapping[str, int]) -> list[str]:
    """The bounds of a checkpoint that are others in the program, in words."""
    theirs = found.meta.get("bounds", {})
    return [
        f"{b}={n} there, {b}={sizes[b]} here" for b, n in theirs.items() if n != sizes.get(b, n)
    ]


def fit(program: Program, workers: int, found: LoadedCheckpoint, variables: Values) -> Values:
    """Return the variables and stores of a checkpoint with the types and lengths of the program.

    Raises RecurraError with the name of an array that has another type or shape.
    """
    ((_, hi),) = found.meta["counters"].items()
    return {name: _Array(program, workers, found, name).fit(x, hi) for name, x in variables.items()}


class _Array:
    """One array of a checkpoint, beside its type and store in the program."""

    def __init__(self, program: Program, workers: int, found: LoadedCheckpoint, name: str):
        self.program, self.found, self.name = program, found, name
        self.sizes = program.plan.sizes
        self.lead = (workers,) if workers > 1 else ()
        stores = program.plan.stores
        self.store = next((s for n, s in stores.items() if store_key(n) == name), None)
        known = program.plan.statements.arrays.get(name.removesuffix("[]"))
        self.type = known.type if known is not None and isinstance(known.type, Type) else None

    def fit(self, array: np.ndarray, hi: int) -> np.ndarray:
        if self.type is not None:
            what = f"{self.name} of {self.found.path}"
            array = fitted(array, self.type.dtype, what, hint=OWN)
        if self.store is not None:
            return self._lengthened(self.store, array, hi)
        if self.type is not None:
            self._expect_shape(array, (*self.lead, *self.type.sizes(self.sizes)))
        return array

    def _expect_shape(self, array: np.ndarray, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            facts = f"{self.name} is {list(array.shape)} in the file, and {list(shape)} here"
            _refuse(self.found, "; ".join([facts, *other_bounds(self.found, self.sizes)]))

    def _lengthened(self, store: Store, array: np.ndarray, hi: int) -> np.ndarray:
        """Resize a store to its length here: the run may have other iterations now.

        Points before `hi` must keep their slots: a window that has wrapped around is refused.
        """
        shape = (*self.lead, *store.shape(self.sizes))
        if store.per_point:  # its points are arrays of their own, one after the other
            self._expect_shape(array, (*array.shape[:1], *shape))
            return array
        if array.shape == shape:
            return array
        main = self.program.main
        outer = None if main is None else main.loop.dim
        at = [len(self.lead) + k for k, a in enumerate(store.kept) if a.dim == outer]
        other = [k for k, (m, n) in enumerate(zip(array.shape, shape, strict=False)) if m != n]
        fits = len(array.shape) == len(shape) and len(at) == 1 and other == at
        if fits:
            kept = store.kept[at[0] - len(self.lead)]
            fits = hi <= kept.tile * min(array.shape[at[0]], shape[at[0]])
        if not fits:
            raise RecurraError(
                f"{self.found.path} does not fit the program as it is compiled now",
                facts=f"{self.name} is {list(array.shape)} in the file, and {list(shape)} here, "
                f"where {store}",
                hint="compile it with the bounds that it was saved with",
            )
        both = tuple(slice(min(m, n)) for m, n in zip(array.shape, shape, strict=True))
        out = np.zeros(shape, array.dtype)
        out[both] = array[both]
        return out


def _refuse(found: LoadedCheckpoint, facts: str) -> NoReturn:
    raise RecurraError(f"{found.path} does not fit the program", facts=facts, hint=OWN)
