"""The state of an environment as a tree of numbers, text and arrays, and back.

Everything an object of plain Python reaches is followed. What is not understood is refused by name:
an environment is saved whole, or not at all. Nothing is pickled, so no file can run code.
"""

from __future__ import annotations

import enum
import functools
import logging
import types
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.lib.array_utils import byte_bounds

from recurra.runtime.checkpointing import Unsaved


class _Plain:
    pass


# Settings, not state: an environment that is made anew has them already.
INERT = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    type,
    functools.partial,
    enum.Enum,
    logging.Logger,
    np.dtype,
    np.ufunc,
    gymnasium.Space,
    EnvSpec,
    Path,
)
NUMBERS = "biufc"


def capture(x: object, path: str) -> object:
    """The state of an object as a tree; `path` is what it is called where it is refused."""
    walk = _Capture()
    tree = walk.value(x, path)
    walk.expect_apart()
    return tree


class _Capture:
    def __init__(self):
        self.seen: dict[int, tuple[int, object]] = {}  # by id: which object of the walk, and itself
        self.arrays: list[tuple[int, int, str]] = []  # first byte, end, path

    def value(self, x: object, path: str) -> object:
        if type(x) in _SCALARS:
            return {"float": str(x)} if isinstance(x, float) and not np.isfinite(x) else x
        if isinstance(x, np.generic) and x.dtype.kind in NUMBERS:
            return {"scalar": np.asarray(x)}
        if isinstance(x, INERT):
            return {"same": type(x).__name__}
        if id(x) in self.seen:
            return {"seen": self.seen[id(x)][0]}
        self.seen[id(x)] = (len(self.seen), x)
        match x:
            case np.ndarray() if x.dtype.kind in NUMBERS:
                self.arrays.append((*byte_bounds(x), path))
                return {"array": x.copy()}
            case np.random.Generator():
                return {"rng": x.bit_generator.state}
            case list() | tuple() | deque() if type(x) in (list, tuple, deque):
                items = [self.value(y, f"{path}[{k}]") for k, y in enumerate(x)]
                return {type(x).__name__: items}
            case dict() if all(isinstance(k, (str, int)) for k in x):
                items = [[k, self.value(y, f"{path}[{k!r}]")] for k, y in x.items()]
                return {"dict": items}
            case _ if type(x).__basicsize__ == _Plain.__basicsize__ and hasattr(x, "__dict__"):
                return {"object": {k: self.value(y, f"{path}.{k}") for k, y in vars(x).items()}}
            case _:
                raise Unsaved(
                    f"the state of {path} cannot be saved",
                    facts=f"it is a {type(x).__module__}.{type(x).__qualname__}, "
                    "whose insides are not to be seen",
                )

    def expect_apart(self) -> None:
        """Arrays that share memory would come back without sharing it."""
        for (_, end, one), (start, _, other) in pairwise(sorted(self.arrays)):
            if start < end:
                raise Unsaved(
                    f"the state of {other} cannot be saved",
                    facts=f"it shares its memory with {one}",
                )


_SCALARS = (type(None), bool, int, float, str)


def restore(x: object, tree: object, path: str) -> Any:
    """The value of `tree`; objects are those of `x`, an environment like the one captured."""
    return _Restore().value(x, tree, path)


class _Restore:
    def __init__(self):
        self.made: list[object] = []

    def value(self, x: object, tree: object, path: str) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        ((kind, inside),) = tree.items()
        if kind == "float":
            return float(inside)
        if kind == "scalar":
            return inside[()]
        if kind == "same":
            return x
        if kind == "seen":
            return self.made[inside]
        place = len(self.made)
        self.made.append(None)
        build: Callable[..., object] = getattr(self, f"_{kind}")
        return build(x, inside, path, place)

    def _array(self, x: object, inside: np.ndarray, path: str, place: int) -> object:
        self.made[place] = inside.copy()
        return self.made[place]

    def _rng(self, x: object, inside: Any, path: str, place: int) -> object:
        bits = getattr(np.random, inside["bit_generator"])()
        bits.state = inside
        self.made[place] = np.random.Generator(bits)
        return self.made[place]

    def _list(self, x: object, inside: list[object], path: str, place: int) -> list[object]:
        out = self.made[place] = x if type(x) is list else []
        old = [*x] if isinstance(x, (list, tuple)) else []
        old += [None] * (len(inside) - len(old))
        out[:] = [
            self.value(y, t, f"{path}[{k}]")
            for k, (y, t) in enumerate(zip(old, inside, strict=False))
        ]
        return out

    def _deque(self, x: object, inside: list[object], path: str, place: int) -> object:
        out = x if type(x) is deque else deque[object]()
        new = self._list(list(out), inside, path, place)
        out.clear()
        out.extend(new)
        self.made[place] = out
        return out

    def _tuple(self, x: object, inside: list[object], path: str, place: int) -> object:
        found = self._list(list(x) if isinstance(x, (list, tuple)) else None, inside, path, place)
        self.made[place] = tuple(found)
        return self.made[place]

    def _dict(
        self, x: object, inside: list[tuple[str | int, object]], path: str, place: int
    ) -> object:
        out = self.made[place] = x if type(x) is dict else {}
        new = {k: self.value(out.get(k), t, f"{path}[{k!r}]") for k, t in inside}
        out.clear()
        out.update(new)
        return out

    def _object(self, x: object, inside: dict[str, object], path: str, place: int) -> object:
        if not hasattr(x, "__dict__"):
            raise Unsaved(
                f"the state of {path} cannot be restored",
                facts="an environment that is made anew has no object there",
            )
        self.made[place] = x
        for name in vars(x).keys() - inside.keys():
            object.__delattr__(x, name)
        for name, t in inside.items():
            new = self.value(vars(x).get(name), t, f"{path}.{name}")
            object.__setattr__(x, name, new)
        return x
