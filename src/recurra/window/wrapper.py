"""Kernels with the memory they access: the paper's wrapper, with functions from launch arguments to
segments (section IV-A, figures 16 and 17).

    @window.kernel(reads=lambda a, b, out: (a, b), writes=lambda a, b, out: (out,))
    def add(a, b, out):
        np.add(a, b, out=out)

A kernel without both is a barrier.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recurra.errors import Loc, here
from recurra.window.access import filled, is_scalar, segments
from recurra.window.task import Segment, Task, WindowError, barrier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

Touched = Callable[..., Iterable[object]]
Args = tuple[object, ...]
Kwargs = dict[str, object]


@dataclass(frozen=True)
class Wrapper:
    """A function, and the functions of the same arguments that return the arrays or segments that a
    call reads and writes; None if they are unknown.

    threaded   it takes `threads=`, the number of threads that it may use itself
    kind       the key of launches with the same duration; by default the name and the sizes
    loc        the line of its launches, if that is always the same
    """

    name: str
    function: Callable[..., object]
    reads: Touched | None = None
    writes: Touched | None = None
    threaded: bool = False
    kind: Hashable = None
    loc: Loc | None = None
    run_synchronously: Callable[..., object] | None = field(init=False, repr=False, compare=False)
    """The function, unless it is threaded"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_once", None if self.threaded else self.function)

    def task(self, *args: object, **kwargs: object) -> Task:
        """Return the task of a launch with these arguments."""
        if self.reads is None or self.writes is None:
            return barrier(self.name)
        try:
            reads, writes = self.reads(*args, **kwargs), self.writes(*args, **kwargs)
        except TypeError:
            self._expect_fit(args, kwargs)
            raise
        given = (*args, *kwargs.values())
        return Task(
            self.name,
            segments(self._listed("reads", reads, given)),
            segments(self._listed("writes", writes, given)),
        )

    def _listed(self, which: str, found: Any, given: tuple[object, ...]) -> tuple[object, ...]:
        """Return the result of `reads` or `writes`, which may be one array, as a tuple.

        Raises WindowError for values without memory.
        """
        if isinstance(found, Segment) or hasattr(found, "shape"):
            return (found,)
        try:
            every = tuple(found)
        except TypeError:
            raise self._no_memory(which, found, "write (), if it touches nothing") from None
        for one in every:
            if is_scalar(one) and not any(one is x for x in given):
                raise self._no_memory(which, one, "a part of an array is a slice: x[0:1], not x[0]")
        return every

    def _no_memory(self, which: str, found: object, hint: str) -> WindowError:
        return WindowError(
            f"{which}= of kernel {self.name} gives {found!r:.40}",
            facts="it gives arrays, tensors or segments, of which the memory is known",
            hint=hint,
            loc=self.loc or here(),
        )

    def written(self, *args: object, **kwargs: object) -> tuple[Segment, ...]:
        """Return the segments of which a successful launch writes every byte."""
        if self.reads is None or self.writes is None:
            return ()
        return filled(self._listed("writes", self.writes(*args, **kwargs), (*args,)))

    def _expect_fit(self, args: Args, kwargs: Kwargs) -> None:
        """Raise WindowError for operands that the kernel, reads= or writes= does not take."""
        declared = {"it": self.function, "its reads=": self.reads, "its writes=": self.writes}
        for who, function in declared.items():
            signature = _signature(function)
            if signature is None:
                continue
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                given, names = len(args) + len(kwargs), ", ".join(signature.parameters)
                raise WindowError(
                    f"kernel {self.name} is launched with {given} operand{'s' * (given != 1)}",
                    facts=f"{who} takes {signature}: {error}",
                    hint=f"launch({self.name}, {names})"
                    if who == "it"
                    else f"declare {who.removeprefix('its ')} with what the kernel takes",
                    loc=self.loc or here(),
                ) from None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)


def _signature(function: Callable[..., object] | None) -> inspect.Signature | None:
    """Return the parameters of a function, without types; None if they are unknown."""
    try:
        known = inspect.signature(function or print)
    except ValueError:  # as of some functions in C
        return None
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in known.parameters.values()]
    return inspect.Signature(bare)


KernelFunction = Wrapper | Callable[..., object]


def named(function: Callable[..., object]) -> str:
    """Return the name of a function in messages."""
    return getattr(function, "__name__", type(function).__name__)


def kernel(
    *, reads: Touched | None = None, writes: Touched | None = None, threaded: bool = False
) -> Callable[[Callable[..., object]], Wrapper]:
    """Decorate a function as a kernel: see `Wrapper`."""

    return lambda function: Wrapper(named(function), function, reads, writes, threaded)


def ufunc(function: np.ufunc) -> Wrapper:
    """Return a NumPy ufunc as a kernel, launched as f(x, .., out) with arrays that broadcast."""

    def call(*arrays: Any) -> None:
        function(*arrays[:-1], out=arrays[-1])

    return Wrapper(
        function.__name__,
        call,
        reads=lambda *arrays: (x for x in arrays[:-1] if hasattr(x, "__array_interface__")),
        writes=lambda *arrays: arrays[-1:],
    )


@kernel(reads=lambda a, b, out: (a, b), writes=lambda a, b, out: (out,))
def matmul(left: ArrayLike, right: ArrayLike, out: np.ndarray) -> None:
    """out = a @ b. [m, k], [k, n] → [m, n], as numpy.matmul."""
    import numpy as np

    np.matmul(left, right, out=out)


@kernel(reads=lambda x, out, axis=None: (x,), writes=lambda x, out, axis=None: (out,))
def total(array: ArrayLike, out: np.ndarray, axis: int | tuple[int, ...] | None = None) -> None:
    """out = Σ x over the axes; all of them by default."""
    import numpy as np

    np.sum(array, axis=axis, out=out)


@kernel(reads=lambda x, out: (x,), writes=lambda x, out: (out,))
def copy(array: ArrayLike, out: np.ndarray) -> None:
    """out = x, broadcast if need be."""
    import numpy as np

    np.copyto(out, array)


@kernel(reads=lambda value, out: (), writes=lambda value, out: (out,))
def fill(value: ArrayLike, out: np.ndarray) -> None:
    """out = value everywhere."""
    out[...] = value
