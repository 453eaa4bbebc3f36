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
from recurra.backends.numpy.source_blocks import CodeBlock, Line
from recurra.backends.numpy.traced_array import (
    StandIn,
    as_zero_array,
    infer_result,
    plain,
    possible_bases,
)
from recurra.cost.thresholds import MAX_SMALL_ELEMENTS
from recurra.support.source_text import FreeNames, tuple_of

TAKEN = {"np", *dir(builtins), *keyword.kwlist}


@dataclass
class Writer:
    """The source written so far, and the objects that it mentions by name."""

    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    items: list[Line | CodeBlock] = field(
        default_factory=list[Line | CodeBlock]
    )  # of the open block
    known: list[dict[str, StandIn]] = field(default_factory=lambda: [{}])  # by text, of each block

    def __post_init__(self) -> None:
        names = FreeNames(TAKEN)
        self.fresh, self.named = names.fresh, names.named

    # ---- names

    def bound(self, value: Any, stem: str) -> str:
        """Bind an object in the scope of the source; return its name."""
        name = self.fresh(stem)
        self.scope[name] = value
        return name

    def function(self, func: Any) -> str:
        """The name by which the source calls a function, such as `np.exp`."""
        name = func.__name__
        if getattr(np, name, None) is func:
            return f"np.{name}"
        known = next((n for n, x in self.scope.items() if x is func), None)
        return known or self.bound(func, self.named(name))

    # ---- text of operands

    def atom(self, value: Any) -> str:
        return value.atom if isinstance(value, Count) else self.show(value)

    def show(self, value: Any) -> str:
        match value:
            case StandIn():
                return value.name
            case Count():
                return str(value)
            case bool() | int() | str() | None:
                return repr(value)
            case tuple() | list():
                inner = [*map(self.show, value)]
                return f"[{', '.join(inner)}]" if isinstance(value, list) else tuple_of(inner)
            case float() if value == value and abs(value) != float("inf"):
                return repr(value)
            case np.dtype() if hasattr(np, value.name):
                return f"np.{value.name}"
            case _:
                return self.bound(value, "c")

    def key(self, key: Any) -> str:
        parts = key if isinstance(key, tuple) else (key,)
        return ", ".join(map(self.part, parts)) or "()"

    def part(self, value: Any) -> str:
        if isinstance(value, slice):
            ends = ["" if e is None else self.show(e) for e in (value.start, value.stop)]
            return ":".join(ends) + ("" if value.step is None else f":{self.show(value.step)}")
        return "..." if value is Ellipsis else self.show(value)

    # ---- calls

    def emit_call(
        self,
        name: str,
        func: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *mine: StandIn,
    ) -> Any:
        """Write a call; return a stand-in for its result, or the result if the types tell it."""
        texts = [*map(self.show, args), *(f"{k}={self.show(x)}" for k, x in options.items())]
        return self.emit_result(f"{name}({', '.join(texts)})", func, (*mine, *args), options)

    def emit_result(
        self, text: str, func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Write the line `name = text` for the result of a function of these operands."""
        like, memory = infer_result(func, args, options), possible_bases(func, args)
        if isinstance(like, (tuple, list)) and any(isinstance(x, np.ndarray) for x in like):
            whole = self.assign(text, None, memory=memory)
            return tuple(
                self.assign(f"{whole.name}[{k}]", x, memory=memory) for k, x in enumerate(like)
            )
        if not isinstance(like, (np.ndarray, np.generic)):
            return like  # known by the types alone: a shape, a rank
        return self.assign(text, like, memory=memory)

    def assign(
        self, text: str, like: Any, stem: str = "x", moves: bool = True, memory: Iterable[str] = ()
    ) -> StandIn:
        """Write the line `name = text`; a small one that is `moves` is written once, and hoisted.

        `memory` names the arrays whose memory the result may share.
        """
        moves = moves and np.size(like) <= MAX_SMALL_ELEMENTS
        for known in self.known if moves else ():
            if text in known:
                return known[text]
        name = self.fresh(stem)
        self.items.append(Line(name, text, moves=moves))
        result = StandIn(self, name, as_zero_array(like), memory)
        if moves:
            self.known[-1][text] = result
        return result

    def call_once(self, text: str) -> StandIn:
        """The results of a call that is written once in a block."""
        if text not in self.known[-1]:
            self.known[-1][text] = self.assign(text, None, moves=False)
        return self.known[-1][text]

    def do(self, text: str) -> None:
        self.items.append(Line("", text))

    def rename(self, value: Any, wanted: str) -> None:
        """Name the last line after its statement, if it made the statement's value."""
        last = self.items[-1] if self.items else None
        if isinstance(value, StandIn) and isinstance(last, Line) and last.name == value.name:
            last.name = value.name = self.named(wanted)
            last.is_value = True

    @property
    def depth(self) -> int:
        """The number of loops and conditions around the next line."""
        return len(self.known) - 1

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        opened = CodeBlock(head)
        self.items.append(opened)
        around, self.items = self.items, opened.body
        self.known.append({})
        try:
            yield
        finally:
            self.items = around
            self.known.pop()

    def keep(self, value: Any) -> None:
        """Mark the last line as the value of a statement, if it is a read that is one."""
        last = next((it for it in reversed(self.items) if isinstance(it, Line) and it.name), None)
        if isinstance(value, StandIn) and last is not None and last.name == value.name:
            last.is_value = True

    @contextmanager
    def step(self) -> Generator[None]:
        """Lines that may be the only step of a loop: their values end with them."""
        begin = len(self.items)
        yield
        values = [x for x in self.items[begin:] if isinstance(x, Line) and x.is_value]
        if values:
            end = Line("", "")
            self.items.append(end)
            for x in values:
                x.end = x.end or end

    def owned(self, value: Any) -> str:
        """The text of a result or loop-carried value; a constant of the source is copied."""
        is_constant = isinstance(value, (np.ndarray, np.generic))
        return self.show(value) + (".copy()" if is_constant else "")

    def unaliased(self, xs: Sequence[Any], arguments: Iterable[str]) -> list[str]:
        """Texts of results in memory of their own: not that of an argument or another result."""
        out, taken = list[str](), set(arguments)
        for x in xs:
            memory = x.memory if isinstance(x, StandIn) else frozenset[str]()
            mine = isinstance(x, StandIn) and memory.isdisjoint(taken)
            text = self.show(x) if mine else f"{self.show(x)}.copy()"
            out.append(text if np.ndim(plain(x)) else f"np.asarray({text})")
            taken |= memory
        return out
