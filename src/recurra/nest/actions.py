"""Actions of an agent on a nest (LoopTune, section 3.1): move the cursor, swap loops, split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from recurra.errors import ScheduleError
from recurra.nest.loops import Nest, NestLoop

MOVES = ("up", "down", "swap_up", "swap_down")


@dataclass(frozen=True)
class Actions:
    """A set of actions: the four moves, and a split by each factor.

    `max_loops` bounds compute and write loops together, `steps` the actions of an episode. There
    is no action that stops: a policy that is done oscillates (section 3.1). Without `write_loops`
    the cursor stays in the compute nest: the order of writes changes the code only where sums pass
    through memory, and makes 70,000 nests of a space of 3,000 programs.
    """

    factors: tuple[int, ...] = (2, 3, 4, 6, 8, 16, 32)
    max_loops: int = 16
    steps: int = 10
    write_loops: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Actions:
        options: dict[str, Any] = {**fields, "factors": tuple(fields["factors"])}
        return cls(**options)

    def __post_init__(self) -> None:
        minima = (*((2, k) for k in self.factors), (1, self.max_loops), (1, self.steps))
        if any(type(k) is not int or k < minimum for minimum, k in minima):
            raise ScheduleError(
                "these are no actions",
                facts=f"{self}: a split takes 2 trips or more, there is a loop and a step",
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (*MOVES, *(f"split_{k}" for k in self.factors))

    def legal(self, nest: Nest) -> tuple[bool, ...]:
        """Return a mask over `names`."""
        return tuple(self.refusal(nest, name) is None for name in self.names)

    def refusal(self, nest: Nest, name: str) -> str | None:
        """Return the reason why `name` may not be applied, or None."""
        at, end = nest.cursor, len(nest.loops if self.write_loops else nest.compute)
        if nest.packs or nest.parallel:
            return "the nest is annotated, and annotations come last"
        match name:
            case "up":
                return None if at else "the cursor is on the first loop"
            case "down":
                return None if at + 1 < end else "the cursor is on the last loop"
            case "swap_up" | "swap_down":
                return _no_swap(nest, at, at - 1 if name == "swap_up" else at + 1)
            case _:
                return self._no_split(nest, name)

    def _no_split(self, nest: Nest, name: str) -> str | None:
        if name not in self.names:
            return f"there is no such action; there are {', '.join(self.names)}"
        loop, k = nest.loops[nest.cursor], int(name.removeprefix("split_"))
        if len(nest.loops) >= self.max_loops:
            return f"the nest has {self.max_loops} loops, as many as it may have"
        if loop.size < k or (loop.size == k and not loop.tail):
            return f"`{loop}` has too few trips to take {k} at a time"
        return None

    def apply(self, nest: Nest, name: str) -> Nest:
        """Return the nest after one action; raise ScheduleError where it is not legal."""
        if reason := self.refusal(nest, name):
            raise ScheduleError(
                f"{name} is not possible here",
                facts=reason,
                hint=f"possible: {', '.join(self.successors(nest))}",
            )
        return _after(nest, name)

    def successor(self, nest: Nest, name: str) -> Nest | None:
        """Return the nest after one action; None where it is not legal."""
        return _after(nest, name) if self.refusal(nest, name) is None else None

    def successors(self, nest: Nest) -> Mapping[str, Nest]:
        """Return the nest after each legal action."""
        pairs = ((name, self.successor(nest, name)) for name in self.names)
        return {name: after for name, after in pairs if after is not None}


PAPER = Actions(factors=(4, 8, 16), max_loops=10)
"""The published setting: three factors, ten actions, at most ten loops."""

PRESETS: Mapping[str, Actions] = {"full": Actions(), "paper": PAPER}


def _no_swap(nest: Nest, at: int, other: int) -> str | None:
    first = len(nest.compute)
    low, high = (0, first) if at < first else (first, len(nest.loops))
    if not low <= other < high:
        return "there is no loop on that side, in the same nest"
    if nest.loops[at].index == nest.loops[other].index:
        return f"both loops are over {nest.loops[at].index}: nothing would change"
    return None


def _after(nest: Nest, name: str) -> Nest:
    at = nest.cursor
    match name:
        case "up":
            return replace(nest, cursor=at - 1)
        case "down":
            return replace(nest, cursor=at + 1)
        case "swap_up" | "swap_down":
            other = at - 1 if name == "swap_up" else at + 1
            loops = list(nest.loops)
            loops[at], loops[other] = loops[other], loops[at]
            return _with(nest, loops, len(nest.compute), other)
        case _:
            loops, k = list(nest.loops), int(name.removeprefix("split_"))
            loops[at : at + 1] = _split(nest, at, k)
            return _with(nest, loops, len(nest.compute) + (at < len(nest.compute)), at)


def _split(nest: Nest, at: int, factor: int) -> list[NestLoop]:
    """Return an outer loop that takes `factor` trips at a time, and the inner loop of these."""
    loop = nest.loops[at]
    _, step = (*nest.steps, *nest.write_steps)[at]
    size, tail = divmod(loop.size * step + loop.tail, step * factor)
    return [NestLoop(loop.index, size, tail), NestLoop(loop.index, factor)]


def _with(nest: Nest, loops: list[NestLoop], border: int, cursor: int) -> Nest:
    return Nest(nest.problem, tuple(loops[:border]), tuple(loops[border:]), cursor)
