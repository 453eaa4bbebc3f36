"""Writer: the source of a region, line by line."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recurra.backends.bounded_int import Count
from recurra.backends.numpy.code import CodeBlock, Line
from recurra.backends.numpy.stand_in import StandIn, made_of, memory_of, plain, without_memory
from recurra.cost.thresholds import MAX_SMALL_ELEMENTS
from recurra.support.source_text import FreeNames, tuple_of

TAKEN = {"np", *dir(builtins), *keyword.kwlist}


@dataclass
class Writer:
    """The source as far as it is written, and what it calls by name."""

    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    items: list[Line | CodeBlock] = field(
        default_factory=list[Line | CodeBlock]
    )  # of the open block
    names: FreeNames = field(default_factory=lambda: FreeNames(TAKEN))
    known: list[dict[str, StandIn]] = field(default_factory=lambda: [{}])  # by text, of each block

    # ---- names

    def fresh(self, stem: str) -> str:
        return self.names.fresh(stem)

    def named(self, wanted: str) -> str:
        return self.names.named(wanted)

    def bound(self, array: Any, stem: str) -> str:
        """The name of an object that the source finds in its scope."""
        name = self.fresh(stem)
        self.scope[name] = array
        return name

    def function(self, func: Any) -> str:
        """The name by which a function is called."""
        name = func.__name__
        if getattr(np, name, None) is func:
            return f"np.{name}"
        known = next((n for n, x in self.scope.items() if x is func), None)
        return known or self.bound(func, self.named(name))

    # ---- text of operands

    def atom(self, array: Any) -> str:
        return (
            f"({array})"
            if isinstance(array, Count) and not str(array).isidentifier()
            else self.show(array)
        )

    def show(self, array: Any) -> str:
        match array:
            case StandIn():
                return array.name
            case Count():
                return str(array)
            case bool() | int() | str() | None:
                return repr(array)
            case tuple() | list():
                inner = [*map(self.show, array)]
                return f"[{', '.join(inner)}]" if isinstance(array, list) else tuple_of(inner)
            case float() if array == array and abs(array) != float("inf"):
                return repr(array)
            case np.dtype() if hasattr(np, array.name):
                return f"np.{array.name}"
            case _:
                return self.bound(array, "c")

    def key(self, key: Any) -> str:
        parts = key if isinstance(key, tuple) else (key,)
        return ", ".join(map(self.part, parts)) or "()"

    def part(self, array: Any) -> str:
        if isinstance(array, slice):
            ends = ["" if e is None else self.show(e) for e in (array.start, array.stop)]
            return ":".join(ends) + ("" if array.step is None else f":{self.show(array.step)}")
        return "..." if array is Ellipsis else self.show(array)

    # ---- calls

    def called(
        self,
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *mine: StandIn,
    ) -> Any:
        """Write a call; return a stand-in for its result, or the result if it is known."""
        given = [*map(self.show, args), *(f"{k}={self.show(x)}" for k, x in options.items())]
        return self.made(f"{name}({', '.join(given)})", func, (*mine, *args), options)

    def made(
        self, text: str, func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """A line `name = text`, for what the function makes of such operands."""
        like, memory = made_of(func, args, options), memory_of(func, args)
        if isinstance(like, (tuple, list)) and any(isinstance(x, np.ndarray) for x in like):
            whole = self.assign(text, None, memory=memory)
            return tuple(
                self.assign(f"{whole.name}[{k}]", x, memory=memory) for k, x in enumerate(like)
            )
        if not isinstance(like, (np.ndarray, np.generic)):
            return like  # of the type alone: a shape, a rank
        return self.assign(text, like, memory=memory)

    def assign(
        self,
        text: str,
        like: Any,
        stem: str = "x",
        moves: bool = True,
        memory: Iterable[str] = (),
    ) -> StandIn:
        """A line; one that `moves`, and is small, is written once, however often it is asked for,
        and before the loops in which it is the same. It may have the `memory` of other arrays."""
        moves = moves and np.size(like) <= MAX_SMALL_ELEMENTS
        for known in self.known if moves else ():
            if text in known:
                return known[text]
        name = self.fresh(stem)
        self.items.append(Line(name, text, moves=moves))
        made = StandIn(self, name, without_memory(like), memory)
        if moves:
            self.known[-1][text] = made
        return made

    def once(self, text: str) -> StandIn:
        """The results of a call, which is written once in a block."""
        known = self.known[-1]
        if text not in known:
            known[text] = self.assign(text, None, moves=False)
        return known[text]

    def do(self, text: str) -> None:
        self.items.append(Line("", text))

    def rename(self, array: Any, wanted: str) -> None:
        """Name the last line's result after a statement, whose value it is."""
        last = self.items[-1] if self.items else None
        if isinstance(array, StandIn) and isinstance(last, Line) and last.name == array.name:
            last.name = array.name = self.named(wanted)
            last.is_value = True

    @property
    def depth(self) -> int:
        """The loops and conditions around the next line."""
        return len(self.known) - 1

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        made = CodeBlock(head)
        self.items.append(made)
        around, self.items = self.items, made.body
        self.known.append({})
        try:
            yield
        finally:
            self.items = around
            self.known.pop()

    def keep(self, array: Any) -> None:
        """A read that is the value of a statement."""
        last = next((it for it in reversed(self.items) if isinstance(it, Line) and it.name), None)
        if isinstance(array, StandIn) and last is not None and last.name == array.name:
            last.is_value = True

    @contextmanager
    def step(self) -> Generator[None]:
        """Write a step of a loop of one: its values end with it."""
        begin = len(self.items)
        yield
        values = [x for x in self.items[begin:] if isinstance(x, Line) and x.is_value]
        if values:
            end = Line("", "")
            self.items.append(end)
            for x in values:
                x.end = x.end or end

    def owned(self, array: Any) -> str:
        """A value that leaves, or travels: never an array that the source has for itself."""
        return (
            f"{self.show(array)}.copy()"
            if isinstance(array, (np.ndarray, np.generic))
            else self.show(array)
        )

    def apart(self, xs: Sequence[Any], given: Iterable[str]) -> list[str]:
        """Arrays for the caller, each of which has memory of its own: not that of what he has
        `given`, or of another result."""
        out, taken = list[str](), set(given)
        for x in xs:
            memory = x.memory if isinstance(x, StandIn) else frozenset[str]()
            mine = isinstance(x, StandIn) and memory.isdisjoint(taken)
            text = self.show(x) if mine else f"{self.show(x)}.copy()"
            out.append(text if np.ndim(plain(x)) else f"np.asarray({text})")
            taken |= memory
        return out
