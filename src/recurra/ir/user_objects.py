"""Resource: an array or function of the user's that an op holds, named by a key.

    data(key='data-7d0ce5b2f1a3')     call(x, fn='CartPole-v1().step', ...)

The graphs whose ops hold a resource own it: there is no global table. It prints and compares by its
key alone, and so do the graphs. Functions cannot leave this process, so only their key is pickled;
the process that loads a graph supplies its functions again.
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
    """A value named by a key; a graph that was parsed from text has the key only."""

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
    """The array of a constant; pickled with its value."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.key, self.value)


@dataclass(frozen=True, repr=False)
class HostFunction(Resource[Any]):
    """A function that the host calls; `parts`, if any, is called for one group of its rows.

    `results` names its results.
    """

    parts: HostFunction | None = field(default=None, compare=False)
    results: tuple[str, ...] = field(default=(), compare=False)


def by_key(resources: Iterable[Resource[Any]]) -> dict[str, Resource[Any]]:
    """Index resources, and the parts of host functions, by key."""
    out: dict[str, Resource[Any]] = {}
    for x in resources:
        out[x.key] = x
        if isinstance(x, HostFunction) and x.parts is not None:
            out[x.parts.key] = x.parts
    return out
