"""The interface of a backend to the walk: an array namespace, loops and stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from recurra.ir.array_protocols import ArrayNamespace
from recurra.ir.expr import Env
from recurra.ir.statement import Statement


class MachineStore(Protocol):
    """A store of a machine: an array of a library, or a stand-in for one while code is made."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


class MachineArray(MachineStore, Protocol):
    """An array that is computed, or read from a store."""

    def __getitem__(self, key: Any, /) -> MachineArray: ...


class LoopTime(Protocol):
    """An integer: of Python, or one that is only known when compiled code runs."""

    def __add__(self, other: int, /) -> LoopTime: ...
    def __sub__(self, other: int, /) -> LoopTime: ...
    def __rsub__(self, other: int, /) -> LoopTime: ...
    def __mul__(self, other: int, /) -> LoopTime: ...
    def __floordiv__(self, other: int, /) -> LoopTime: ...
    def __mod__(self, other: int, /) -> LoopTime: ...
    def __neg__(self) -> LoopTime: ...


Carry = TypeVar("Carry")  # the loop-carried state
Until = Callable[[Any, Carry], tuple[Any, Any, Carry]]
Starts = tuple[Any, ...]  # of a box, one for each axis


class ArrayMachine(Protocol):
    """The operations that a backend offers to the walk.

    Arrays, stores and times have types of its own; the walk hands them back as they are.
    """

    @property
    def xp(self) -> ArrayNamespace:
        """The array namespace."""
        ...

    def apply(self, node: Statement, env: Env, *args: Any) -> object:
        """Evaluate the operator of an equation at a point."""
        ...

    def loop(
        self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Carry], Carry], carry: Carry
    ) -> Carry:
        """Return carry after body(time, carry) for lo <= time < hi."""
        ...

    def while_loop(
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
        """Return (end, carry) after body(time, carry) for lo <= time < min(hi, end + late).

        body returns (goes on, the point after this one, carry); that point is `end` if nothing goes
        on. It is checked after `every` steps: fewer than that many more run, never one at `hi`.
        """
        ...

    def cond(self, condition: Any, body: Callable[[Carry], Carry], carry: Carry) -> Carry:
        """Return body(carry) if the condition holds, else carry."""
        ...

    def minimum(self, left: Any, right: Any) -> LoopTime:
        """The lesser of two times."""
        ...

    def read(self, store: Any, starts: Starts, sizes: tuple[int, ...]) -> MachineArray:
        """Read a box of a store, its starts clamped so that it lies inside."""
        ...

    def read_all(self, store: Any) -> MachineArray:
        """The whole of a store that nobody writes, without a copy."""
        ...

    def gather(self, store: Any, axis: int, at: Any) -> MachineArray:
        """Elements of one axis at positions (clamped)."""
        ...

    def write(self, store: Any, starts: Starts, value: Any, also: Starts | None = None) -> Any:
        """Write a value at a point of some axes, and at `also`; return the store.

        A start of None, or no start, selects the whole axis.
        """
        ...

    def write_box(self, store: Any, starts: Starts, value: Any) -> Any:
        """Write a box that lies inside of a store, of the value's shape; return the store."""
        ...
