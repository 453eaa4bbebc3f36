"""Resource: an array or a function of the user's, which an op holds and names by a key.

    data(key='data-7d0ce5b2f1a3')     call(x, fn='CartPole-v1().step', ...)

A resource belongs to the graphs whose ops hold it and goes when they go: no table knows it by name.
It prints and compares by its key alone, and so do the graphs. Functions reach into this process, so
they are pickled by their key, too; whoever loads a graph gives it its functions anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np

from recurra.errors import RecurraError

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Resource(Generic[T]):
    """A value of this process, by a key; without a value in a graph that was read from text."""

    key: str
    value: T | None = field(default=None, compare=False)

    def get(self) -> T:
        """Return the value; raise RecurraError if there is none."""
        if self.value is None:
            raise RecurraError(
                f"there is nothing by the name {self.key!r}",
                facts="the program was read from text, a file or a pickle, which name functions "
                "and do not hold them",
                hint="compile it here: ctx.compile(..), in the process that has the function",
            )
        return self.value

    def __repr__(self) -> str:
        return repr(self.key)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key,)


class ArrayResource(Resource[np.ndarray]):
    """The array of a constant; pickled as it is."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.value)


@dataclass(frozen=True, repr=False)
class HostFunction(Resource[Any]):
    """A function that the host calls; `parts` is called for a group of its rows, if it can be.

    `results` are words for what it gives.
    """

    parts: HostFunction | None = field(default=None, compare=False)
    results: tuple[str, ...] = field(default=(), compare=False)


def by_key(resources: Iterable[Resource[Any]]) -> dict[str, Resource[Any]]:
    """Return resources, and the parts of host functions, by their keys."""
    out: dict[str, Resource[Any]] = {}
    for x in resources:
        out[x.key] = x
        if isinstance(x, HostFunction) and x.parts is not None:
            out[x.parts.key] = x.parts
    return out
