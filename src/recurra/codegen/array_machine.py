"""The interface of a backend to the walk: an array namespace, and its own loops and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from recurra.ir.expr import Env
from recurra.ir.statement import Statement

Array = Any
Until = Callable[[Any, Any], tuple[Any, Any, Any]]
Starts = tuple[Any, ...]  # of a box, one for each axis


class ArrayMachine(Protocol):
    """What a backend gives the walk."""

    xp: Any

    def apply(self, node: Statement, env: Env, *args: Array) -> Array:
        """The operator of an equation at a point."""
        ...

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """carry after body(time, carry) for lo <= time < hi."""
        ...

    def until(
        self, dim: str, lo: Any, hi: Any, end: Any, late: int, every: int, body: Until, carry: Any
    ) -> tuple[Any, Any]:
        """(end, carry) after body(time, carry) for lo <= time < min(hi, end + late).

        body gives (goes on, the point after this one, carry); where nothing goes on, that is `end`.
        It is asked for after `every` steps: less than so many more are run, never one at `hi`.
        """
        ...

    def when(self, condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
        """body(carry) where the condition holds, else carry."""
        ...

    def lesser(self, a: Any, b: Any) -> Any:
        """The lesser of two times."""
        ...

    def read(self, store: Array, starts: Starts, sizes: tuple[int, ...]) -> Array:
        """A box of a store, its starts clamped so that it lies inside."""
        ...

    def whole(self, store: Array) -> Array:
        """All of a store that nobody writes, where it lies."""
        ...

    def gather(self, store: Array, axis: int, at: Array) -> Array:
        """Elements of one axis at positions (clamped)."""
        ...

    def write(
        self, store: Array, starts: Starts, value: Array, also: Starts | None = None
    ) -> Array:
        """The store with the value at a point of some axes replaced, and `also` at another; None:
        the whole of an axis.

        Axes for which there is no start are whole, too.
        """
        ...

    def write_box(self, store: Array, starts: Starts, value: Array) -> Array:
        """The store with a box replaced that lies inside; the value has all of its axes."""
        ...
