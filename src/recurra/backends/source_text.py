"""Parts of generated source that its writers share: names, tuples, moves, and keys of stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from recurra.backends.bounded_int import extreme

NAME = r"[^\W\d]\w*"


class FreeNames:
    """Names for a source, none of which is given twice."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken, self.count = set(taken), 0

    def fresh(self, stem: str = "x") -> str:
        """A numbered name."""
        while True:
            self.count += 1
            if (name := f"{stem}{self.count}") not in self.taken:
                self.taken.add(name)
                return name

    def named(self, wanted: str) -> str:
        """A free name like the wanted one."""
        stem = re.sub(r"\W|^(?=\d)", "_", wanted, flags=re.ASCII)
        while stem in self.taken or not stem.isidentifier():
            stem += "_"
        self.taken.add(stem)
        return stem


def clamped_start(start: Any, size: int, full: int) -> Any:
    """The start of so many places of an axis, moved so that all of them are there."""
    return extreme("min", extreme("max", start, 0), full - size)


def joined(keys: Sequence[str]) -> str:
    """Slices of the leading axes; axes that are whole at the end need none."""
    found = list(keys)
    while found and not found[-1]:
        found.pop()
    return ", ".join(k or ":" for k in found)


def words(text: str) -> set[str]:
    """The names in some source."""
    return set(re.findall(NAME, text))


def tuple_of(texts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def moves(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The line `a, b = c, d` for what travels and has changed in a step; none if nothing has."""
    moved = [(name, text) for name, text in pairs if name != text]
    return [" = ".join(map(", ".join, zip(*moved, strict=True)))] if moved else []
