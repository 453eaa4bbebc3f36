"""Convert Gymnasium spaces to tensors, and batched values to arrays [B, ..], one per tensor.

Box             its shape and type; f64 becomes f32, small integers i32, u8 stays u8
Discrete(n)     observed one-hot, f32[n]; actions are i32[] in 0..n-1
MultiDiscrete   i32 of its shape, counted from 0        MultiBinary     bool of its shape
Tuple, Dict     a Tree of these
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import ArrayLike

from recurra.errors import RecurraError
from recurra.ir.types import Type
from recurra.ir.value_conversion import fitted
from recurra.rl.acting import SpacePartJson
from recurra.rl.space import AnySpace, CompositeSpace, Space, leaves

Array = np.ndarray
KeyPath = tuple[str | int, ...]  # to an array of a space: names and positions
BOX = {"float64": "f32", "float32": "f32", "float16": "f16", "bool": "bool", "uint8": "u8"} | {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16"), "i32"),
    "uint32": "u32",
}

OddPart = tuple[str, tuple[int, ...], gymnasium.Space]  # where it is, its shape, and its space


def odd_part(space: gymnasium.Space, observation: Any, where: str = "") -> OddPart | None:
    """The first part of an observation whose shape is not its space's; None if there is none."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        odd = (odd_part(s, observation[k], f"{where}[{k!r}]") for k, s in parts)
        return next((x for x in odd if x is not None), None)
    array = np.asarray(observation)
    fits = array.shape in (space.shape, ()) or array.dtype.kind not in "biuf"  # a single number
    return None if fits else (where, array.shape, space)


@dataclass(frozen=True)
class SpacePart:
    """One array of a space: its key path, its own space, and its type in the program."""

    path: KeyPath
    space: gymnasium.Space
    type: Type

    @cached_property
    def start(self) -> ArrayLike:
        """The first value in the environment, which is 0 in the program."""
        return self.space.start if isinstance(self.space, (Discrete, MultiDiscrete)) else 0

    @cached_property
    def starts(self) -> bool:
        """Tell whether the first value is not 0."""
        return bool(np.any(self.start))

    @cached_property
    def counts(self) -> ArrayLike | None:
        """The number of values of each element of a discrete space."""
        if isinstance(self.space, Discrete):
            return self.space.n
        return self.space.nvec if isinstance(self.space, MultiDiscrete) else None

    def _expect_counted(self, raw: Array, counts: ArrayLike) -> None:
        """Raise RecurraError for a value, counted from 0, that is outside the space."""
        wrong = (raw < 0) | (raw >= counts)
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            first, count = (np.broadcast_to(x, raw.shape)[at] for x in (self.start, counts))
            raise RecurraError(
                f"{self.observation_name} is {raw[at] + first}",
                facts=f"its values are {first} to {first + count - 1}; row {at[0]}"
                + "".join(f"[{k}]" for k in at[1:]),
                hint="mend the environment, or the space that it declares",
            )

    @cached_property
    def observation_name(self) -> str:
        """The name of its values in an error."""
        return f"an observation of {self.space}"

    def show(self, raw: Array) -> Array:
        """Convert values of the environment to the program's."""
        counts = self.counts
        if counts is not None:
            if self.starts:
                raw = raw - self.start
            self._expect_counted(raw, counts)
        if isinstance(self.space, Discrete):
            return np.eye(int(self.space.n), dtype=np.float32)[raw]
        hint = "scale it in a wrapper"
        return fitted(raw, self.type.dtype, self.observation_name, hint=hint)

    def give(self, action: Array) -> Array:
        """Convert values of the program to the environment's."""
        action = action.astype(self.space.dtype)
        return action + self.start if self.starts else action

    @property
    def json(self) -> SpacePartJson:
        """The environment's space for JSON: type, first value, number of classes."""
        classes = int(self.space.n) if isinstance(self.space, Discrete) else None
        start = np.asarray(self.start).tolist()
        dtype = np.dtype(self.space.dtype).name
        return {"path": self.path, "dtype": dtype, "start": start, "classes": classes}


class Values:
    """Conversions of a space's batched values between Gymnasium's nesting and a flat list."""

    def __init__(self, space: gymnasium.Space, types: AnySpace):
        self.space, self.types = space, types
        pairs = zip(key_paths(space), leaves(types), strict=True)
        self.parts = [SpacePart(path, reach(space, path), s.type) for path, (_, s) in pairs]
        self.is_array = [p.path for p in self.parts] == [()]  # no tuple or dict

    def arrays(self, nested: object) -> list[Array]:
        """Copies of the arrays [B, ..] of a batch."""
        if self.is_array:
            return [np.array(nested)]
        return [np.array(reach(nested, p.path)) for p in self.parts]

    def of_rows(self, rows: Sequence[object]) -> list[Array]:
        """The arrays of a batch that comes row by row."""
        return [np.stack([np.asarray(reach(r, p.path)) for r in rows]) for p in self.parts]

    def show(self, arrays: Sequence[Array]) -> list[Array]:
        if self.is_array:
            return [self.parts[0].show(arrays[0])]
        return [p.show(x) for p, x in zip(self.parts, arrays, strict=True)]

    def nested(self, arrays: Sequence[Array]) -> object:
        """Convert the program's arrays to a value of the environment."""
        if self.is_array:  # the common case: no walk of the space in every step
            return self.parts[0].give(arrays[0])
        values = iter([p.give(x) for p, x in zip(self.parts, arrays, strict=True)])
        return build(self.space, lambda _: next(values))


def convert_space(spec: object, kind: str, space: gymnasium.Space) -> AnySpace:
    """Convert an observation or action space; raises RecurraError if it is not supported."""
    match space:
        case Box() if space.dtype.name in BOX:  # pyright: ignore[reportOptionalMemberAccess]
            return Space(Type(BOX[space.dtype.name], tuple(space.shape)))  # pyright: ignore
        case Discrete():
            n = int(space.n)
            type_ = Type("f32", (n,)) if kind == "observation" else Type("i32")
            return Space(type_, n)
        case MultiDiscrete():
            counts = tuple(int(n) for n in space.nvec.flat)
            return Space(Type("i32", tuple(space.shape)), counts=counts)
        case MultiBinary():
            return Space(Type("bool", tuple(space.shape)))
        case Tuple() if len(space.spaces):
            return CompositeSpace(tuple(convert_space(spec, kind, s) for s in space.spaces))
        case Dict() if len(space.spaces):
            return CompositeSpace(
                {k: convert_space(spec, kind, s) for k, s in space.spaces.items()}
            )
        case _:
            raise RecurraError.at_user_line(
                f"the {kind} space of {spec} is not supported",
                facts=f"it has {space}; {SUPPORTED} are",
                hint=f"make_vec(wrappers=[...]) with a wrapper whose {kind} is one of these",
            )


SUPPORTED = (
    "Box (of up to 32 bits), Discrete, MultiDiscrete, MultiBinary, and Tuple and Dict of them"
)


def key_paths(space: gymnasium.Space) -> list[KeyPath]:
    """The key path of every array of a space."""
    match space:
        case Tuple():
            return [(k, *w) for k, s in enumerate(space.spaces) for w in key_paths(s)]
        case Dict():
            return [(k, *w) for k, s in space.spaces.items() for w in key_paths(s)]
        case _:
            return [()]


def reach(nested: Any, path: KeyPath) -> Any:
    for k in path:
        nested = nested[k]
    return nested


def build(space: gymnasium.Space, leaf: Callable[[gymnasium.Space], object]) -> object:
    """Build a value of a space from the values of its parts, in the order of `key_paths`."""
    match space:
        case Tuple():
            return tuple(build(s, leaf) for s in space.spaces)
        case Dict():
            return {k: build(s, leaf) for k, s in space.spaces.items()}
        case _:
            return leaf(space)
