"""Parts of generated source that all writers share: names, tuples, assignments, indices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NAME = r"[^\W\d]\w*"


class FreeNames:
    """Unused names for generated source: none is returned twice."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken, self.count = set(taken), 0

    def fresh(self, stem: str = "x") -> str:
        """Return a new numbered name."""
        while True:
            self.count += 1
            if (name := f"{stem}{self.count}") not in self.taken:
                self.taken.add(name)
                return name

    def named(self, wanted: str) -> str:
        """Return a free name that resembles the wanted one."""
        stem = re.sub(r"\W|^(?=\d)", "_", wanted, flags=re.ASCII)
        while stem in self.taken or not stem.isidentifier():
            stem += "_"
        self.taken.add(stem)
        return stem


def joined(keys: Sequence[str]) -> str:
    """Join the slices of axes to an index; whole axes at the end are left out."""
    found = list(keys)
    while found and not found[-1]:
        found.pop()
    return ", ".join(k or ":" for k in found)


def words(text: str) -> set[str]:
    """The names in some source."""
    return set(re.findall(NAME, text))


def tuple_of(texts: Iterable[str]) -> str:
    """A tuple of expressions."""
    found = list(texts)
    return f"({', '.join(found)}{',' if len(found) == 1 else ''})"


def moves(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The line `a, b = c, d` that updates loop-carried variables; no line if none has changed."""
    changed = [(name, text) for name, text in pairs if name != text]
    return [" = ".join(map(", ".join, zip(*changed, strict=True)))] if changed else []
