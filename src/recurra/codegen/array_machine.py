"""The interface of a backend to the walk: an array namespace, and its own loops and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from recurra.ir.arrays import ArrayNamespace
from recurra.ir.expr import Env
from recurra.ir.statement import Statement


class MachineStore(Protocol):
    """A store of a machine: an array of a library, or what stands for one while code is made."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


class MachineArray(MachineStore, Protocol):
    """A part of a store, or a computed array."""

    def __getitem__(self, key: Any, /) -> MachineArray: ...


class LoopTime(Protocol):
    """A whole number: of Python, or one that is only known when compiled code runs."""

    def __add__(self, other: int, /) -> LoopTime: ...
    def __sub__(self, other: int, /) -> LoopTime: ...
    def __rsub__(self, other: int, /) -> LoopTime: ...
    def __mul__(self, other: int, /) -> LoopTime: ...
    def __floordiv__(self, other: int, /) -> LoopTime: ...
    def __mod__(self, other: int, /) -> LoopTime: ...
    def __neg__(self) -> LoopTime: ...


Carry = TypeVar("Carry")  # what travels from step to step
Until = Callable[[Any, Carry], tuple[Any, Any, Carry]]
Starts = tuple[Any, ...]  # of a box, one for each axis


class ArrayMachine(Protocol):
    """The array operations of a backend, for code that interprets a schedule.

    Arrays, stores and times are of its own types: what it has made is passed back to it as it is.
    """

    @property
    def xp(self) -> ArrayNamespace:
        """The functions that arrays are made with."""
        ...

    def apply(self, node: Statement, env: Env, *args: Any) -> object:
        """The operator of an equation at a point."""
        ...

    def loop(
        self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """carry after body(time, carry) for lo <= time < hi."""
        ...

    def until(
        self,
        dim: str,
        lo: Any,
        hi: Any,
        end: Any,
        late: int,
        every: int,
        body: Until[Carry],
        carry: Carry,
    ) -> tuple[LoopTime, Carry]:
        """(end, carry) after body(time, carry) for lo <= time < min(hi, end + late).

        body gives (goes on, the point after this one, carry); where nothing goes on, that is `end`.
        It is asked for after `every` steps: less than so many more are run, never one at `hi`.
        """
        ...

    def when(self, condition: Any, body: Callable[[Carry], Carry], carry: Carry) -> Carry:
        """body(carry) where the condition holds, else carry."""
        ...

    def lesser(self, left: Any, right: Any) -> LoopTime:
        """The lesser of two times."""
        ...

    def read(self, store: Any, starts: Starts, sizes: tuple[int, ...]) -> MachineArray:
        """A box of a store, its starts clamped so that it lies inside."""
        ...

    def whole(self, store: Any) -> MachineArray:
        """All of a store that nobody writes, where it lies."""
        ...

    def gather(self, store: Any, axis: int, at: Any) -> MachineArray:
        """Elements of one axis at positions (clamped)."""
        ...

    def write(self, store: Any, starts: Starts, value: Any, also: Starts | None = None) -> Any:
        """The store with the value at a point of some axes replaced, and `also` at another; None:
        the whole of an axis.

        Axes for which there is no start are whole, too.
        """
        ...

    def write_box(self, store: Any, starts: Starts, value: Any) -> Any:
        """The store with a box replaced that lies inside; the value has all of its axes."""
        ...
