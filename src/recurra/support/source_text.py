"""Parts of generated source: names, tuples, assignments and indices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NAME = r"[^\W\d]\w*"


class FreeNames:
    """A supply of unused names for generated source."""

    def __init__(self, used: Iterable[str]) -> None:
        self.used, self.count = set(used), 0

    def fresh(self, stem: str = "x") -> str:
        """Return a new numbered name."""
        while True:
            self.count += 1
            if (name := f"{stem}{self.count}") not in self.used:
                self.used.add(name)
                return name

    def named(self, name: str) -> str:
        """Return an unused name that resembles another one."""
        stem = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
        while stem in self.used or not stem.isidentifier():
            stem += "_"
        self.used.add(stem)
        return stem


def joined(keys: Sequence[str]) -> str:
    """Join the slices of axes to an index; whole axes at the end are omitted."""
    keys = list(keys)
    while keys and not keys[-1]:
        keys.pop()
    return ", ".join(k or ":" for k in keys)


def words(text: str) -> set[str]:
    """Return the names in some source."""
    return set(re.findall(NAME, text))


def tuple_of(texts: Iterable[str]) -> str:
    """Return the source of a tuple of expressions."""
    texts = list(texts)
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def moves(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the line `a, b = c, d` that updates loop-carried variables, if any has changed."""
    changed = [(name, text) for name, text in pairs if name != text]
    return [" = ".join(map(", ".join, zip(*changed, strict=True)))] if changed else []
