"""Convert the state of an environment to a tree of numbers, text and arrays, and back.

Everything that plain Python objects refer to is followed. An object of another kind is refused by
name: an environment is saved whole, or not at all. Nothing is pickled, so no file can run code.
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


# Settings, not state: a new environment has them already.
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


def capture(value: object, path: str) -> object:
    """Return the state of an object as a tree; `path` is its name in errors."""
    walk = _Capture()
    tree = walk.value(value, path)
    walk.expect_apart()
    return tree


class _Capture:
    def __init__(self):
        self.seen: dict[int, tuple[int, object]] = {}  # by id: number in the walk, and the object
        self.arrays: list[tuple[int, int, str]] = []  # first byte, end, path

    def value(self, item: object, path: str) -> object:
        if type(item) in _SCALARS:
            return (
                {"float": str(item)} if isinstance(item, float) and not np.isfinite(item) else item
            )
        if isinstance(item, np.generic) and item.dtype.kind in NUMBERS:
            return {"scalar": np.asarray(item)}
        if isinstance(item, INERT):
            return {"same": type(item).__name__}
        if id(item) in self.seen:
            return {"seen": self.seen[id(item)][0]}
        self.seen[id(item)] = (len(self.seen), item)
        match item:
            case np.ndarray() if item.dtype.kind in NUMBERS:
                self.arrays.append((*byte_bounds(item), path))
                return {"array": item.copy()}
            case np.random.Generator():
                return {"rng": item.bit_generator.state}
            case list() | tuple() | deque() if type(item) in (list, tuple, deque):
                items = [self.value(y, f"{path}[{k}]") for k, y in enumerate(item)]
                return {type(item).__name__: items}
            case dict() if all(isinstance(k, (str, int)) for k in item):
                items = [[k, self.value(y, f"{path}[{k!r}]")] for k, y in item.items()]
                return {"dict": items}
            case _ if type(item).__basicsize__ == _Plain.__basicsize__ and hasattr(
                item, "__dict__"
            ):
                return {"object": {k: self.value(y, f"{path}.{k}") for k, y in vars(item).items()}}
            case _:
                raise Unsaved(
                    f"the state of {path} cannot be saved",
                    facts=f"it is a {type(item).__module__}.{type(item).__qualname__}, "
                    "whose insides are not to be seen",
                )

    def expect_apart(self) -> None:
        """Raise Unsaved for arrays that share memory: restored ones would not share it."""
        for (_, end, one), (start, _, other) in pairwise(sorted(self.arrays)):
            if start < end:
                raise Unsaved(
                    f"the state of {other} cannot be saved",
                    facts=f"it shares its memory with {one}",
                )


_SCALARS = (type(None), bool, int, float, str)


def restore(value: object, tree: object, path: str) -> Any:
    """Restore the value of `tree` with the objects of `value`, an environment of the same kind."""
    return _Restore().value(value, tree, path)


class _Restore:
    def __init__(self):
        self.restored: list[object] = []

    def value(self, item: object, tree: object, path: str) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        ((kind, inside),) = tree.items()
        if kind == "float":
            return float(inside)
        if kind == "scalar":
            return inside[()]
        if kind == "same":
            return item
        if kind == "seen":
            return self.restored[inside]
        place = len(self.restored)
        self.restored.append(None)
        build: Callable[..., object] = getattr(self, f"_{kind}")
        return build(item, inside, path, place)

    def _array(self, value: object, inside: np.ndarray, path: str, place: int) -> object:
        self.restored[place] = inside.copy()
        return self.restored[place]

    def _rng(self, value: object, inside: Any, path: str, place: int) -> object:
        bits = getattr(np.random, inside["bit_generator"])()
        bits.state = inside
        self.restored[place] = np.random.Generator(bits)
        return self.restored[place]

    def _list(self, value: object, inside: list[object], path: str, place: int) -> list[object]:
        out = self.restored[place] = value if type(value) is list else []
        old = [*value] if isinstance(value, (list, tuple)) else []
        old += [None] * (len(inside) - len(old))
        out[:] = [
            self.value(y, t, f"{path}[{k}]")
            for k, (y, t) in enumerate(zip(old, inside, strict=False))
        ]
        return out

    def _deque(self, value: object, inside: list[object], path: str, place: int) -> object:
        out = value if type(value) is deque else deque[object]()
        new = self._list(list(out), inside, path, place)
        out.clear()
        out.extend(new)
        self.restored[place] = out
        return out

    def _tuple(self, value: object, inside: list[object], path: str, place: int) -> object:
        old = list(value) if isinstance(value, (list, tuple)) else None
        self.restored[place] = tuple(self._list(old, inside, path, place))
        return self.restored[place]

    def _dict(
        self, value: object, inside: list[tuple[str | int, object]], path: str, place: int
    ) -> object:
        out = self.restored[place] = value if type(value) is dict else {}
        new = {k: self.value(out.get(k), t, f"{path}[{k!r}]") for k, t in inside}
        out.clear()
        out.update(new)
        return out

    def _object(self, value: object, inside: dict[str, object], path: str, place: int) -> object:
        if not hasattr(value, "__dict__"):
            raise Unsaved(
                f"the state of {path} cannot be restored",
                facts="an environment that is made anew has no object there",
            )
        self.restored[place] = value
        for name in vars(value).keys() - inside.keys():
            object.__delattr__(value, name)
        for name, t in inside.items():
            new = self.value(vars(value).get(name), t, f"{path}.{name}")
            object.__setattr__(value, name, new)
        return value
